"""Completion: the protocol between shell and program, and a real bash where there is one."""

import os
import shutil
import subprocess
import sys

import pytest

from gemel.cli.main import VERBS, main

BASH = shutil.which("bash")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one model in it."""
    (tmp_path / "cache" / "models" / "my-own-model").mkdir(parents=True)
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offered(monkeypatch, capfd):
    """What bash is offered after `line`; the last word is being typed."""

    def ask(line, shell="bash"):
        words = line.split(" ")
        monkeypatch.setenv("_GEMEL_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
        code = main([])
        shown = capfd.readouterr()
        assert shown.err == ""
        return code, shown.out.split("\n")[:-1] if shown.out.strip() else []

    return ask


def test_verbs_are_offered(offered):
    assert offered("gemel ") == (0, [f"plain,{name}" for name in VERBS])
    assert offered("gemel enc")[1] == ["plain,encode"]


def test_verbs_of_a_group_and_flags_are_offered(offered):
    assert offered("gemel index se")[1] == ["plain,search"]
    assert "plain,--text-column" in offered("gemel encode --te")[1]
    assert "plain,--version" in offered("gemel --")[1]


def test_choices_are_offered(offered):
    assert offered("gemel encode --on-long ")[1] == [
        "plain,warn",
        "plain,error",
        "plain,truncate",
        "plain,chunk",
    ]


def test_models_of_the_cache_and_of_the_table_are_offered(offered, cache):
    assert offered("gemel encode --model ")[1] == ["plain,all-MiniLM-L6-v2", "plain,my-own-model"]
    assert offered("gemel encode -m my")[1] == ["plain,my-own-model"]
    assert offered("gemel evaluate my")[1] == ["plain,my-own-model"]
    assert offered("gemel models show my")[1] == ["plain,my-own-model"]
    assert offered("gemel models remove my")[1] == ["plain,my-own-model"]


def test_other_words_than_model_names_are_completed_as_folders(offered, cache):
    assert offered("gemel encode --model ./")[1] == ["dir,./"]


def test_texts_that_are_files_are_completed_as_files(offered):
    assert offered("gemel encode tick")[1] == ["file,tick"]
    assert offered("gemel index add notes ")[1] == ["file,"]
    assert offered("gemel search a.txt --queries q")[1] == ["file,q"]


def test_tasks_and_objectives_are_offered(offered):
    assert offered("gemel evaluate m --task trip")[1] == ["plain,triplets"]
    assert "plain,classification" in offered("gemel train a.tsv --objective cl")[1]


def test_errors_on_the_line_are_ignored_by_completion(offered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemel.toml").write_text("[[[")
    assert offered("gemel nonsense ") == (1, [])
    assert offered("gemel encode --threads many --on-l")[1] == ["plain,--on-long"]


def test_zsh_and_fish_get_help_lines_too(offered):
    assert offered("gemel enc", shell="zsh")[1] == ["plain", "encode", VERBS.about("encode")]
    assert offered("gemel enc", shell="fish")[1] == [f"plain,encode\t{VERBS.about('encode')}"]


def test_completing_a_verb_imports_none(tmp_path):
    code = (
        "import sys; from gemel.cli.main import main; main([]); "
        "print([name for name in sys.modules if name in ('gemel.cli.verbs.encode', 'gemel.cli.verbs.train', 'numpy')])"
    )
    variables = {"_GEMEL_COMPLETE": "bash_complete", "COMP_WORDS": "gemel ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", "complete -o nosort -F _gemel_completion gemel"),
        ("zsh", "#compdef gemel"),
        ("fish", "complete --no-files --command gemel"),
    ],
)
def test_the_script_of_a_shell_is_printed(capsys, shell, words):
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert words in shown
    assert "_GEMEL_COMPLETE" in shown


def test_an_unknown_shell_is_refused(capsys):
    assert main(["completion", "csh"]) == 2
    assert "'csh' is not one of" in capsys.readouterr().err


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
def test_a_real_bash_completes(tmp_path, cache):
    program = tmp_path / "bin" / "gemel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gemel "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(gemel completion bash)"
    complete -p gemel
    ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _gemel_completion gemel; echo "${COMPREPLY[@]}"; }
    ask gemel enc
    ask gemel encode texts.txt --model my
    """
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [BASH, "--norc", "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _gemel_completion gemel",
        "encode",
        "my-own-model",
    ]
    assert done.stderr == ""
