"""The command line: help, errors and exit codes, in this process and as a program."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gemel.cli import main as module
from gemel.cli.main import VERBS, main
from gemel.errors import InputError, MissingExtra, ModelError, WorkError
from tiny import tiny_bert


@pytest.fixture
def failing(monkeypatch):
    """Make the program raise the error that a test needs."""

    def install(error):
        def fail(_):
            raise error

        monkeypatch.setattr(module, "_run", fail)

    return install


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_bert(folder)
    return str(folder)


def test_help_lists_every_verb_with_its_line(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in VERBS:
        assert f"  {name}" in shown
        assert VERBS.about(name).split()[0] in shown


def test_no_arguments_show_what_people_do_with_gemel(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    used = set(re.findall(r"^  gemel ([a-z-]+)", shown, re.MULTILINE))
    assert used == {"demo", "encode", "search", "pairs", "cluster", "train", "serve"}
    assert "gemel --help" in shown
    assert max(map(len, shown.splitlines())) < 80


def test_no_arguments_load_neither_numpy_nor_torch():
    code = (
        "import sys; from gemel.cli.main import main; main([]); "
        "sys.exit(bool({'numpy', 'torch', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("module", ["gemel", "gemel.cli.main"])
def test_the_entry_point_and_the_module_run_the_same_program(module):
    """`uvx gemel` and `pipx run gemel` start the entry point, whose name is that of the package."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {project["project"]["name"]: "gemel.cli.main:main"}
    command = {
        "gemel": ["-m", "gemel", "--version"],
        "gemel.cli.main": [
            "-c",
            "import sys; from gemel.cli.main import main; sys.exit(main(['--version']))",
        ],
    }
    done = subprocess.run([sys.executable, *command[module]], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("gemel ")


def test_the_version_is_the_package_s(capsys):
    import gemel

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gemel {gemel.__version__}\n"


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_exits_0_and_has_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: gemel {name}")
    assert "Example" in shown
    assert f"  gemel {name}" in shown.partition("Example")[2]


@pytest.mark.parametrize("name", VERBS)
def test_an_unknown_option_is_one_line_and_exit_2(name, capsys):
    assert main([name, "--no-such-option"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gemel {name}: ")
    assert error.endswith(f"See: gemel {name} --help\n")
    assert error.count("\n") == 1


def test_an_unknown_verb_is_answered_with_the_nearest_one(capsys):
    assert main(["encod"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gemel: unknown verb 'encod'. Did you mean 'encode'? Known: bench, ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("index add nowhere nofile.txt", "gemel index add: "),
        ("index migrate nowhere", "gemel index migrate: no index at nowhere"),
        (
            "index serch nowhere",
            "gemel index: No such command 'serch'. Did you mean 'search'? See: gemel index",
        ),
    ],
)
def test_an_error_names_the_whole_verb(capsys, words, start):
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(start)


def test_an_unknown_option_before_the_verb_is_refused(capsys):
    assert main(["--color"]) == 2
    assert capsys.readouterr().err.startswith("gemel: No such option")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("k must be at least 1, got 0"), 2),
        (ModelError("no model called 'x'"), 2),
        (MissingExtra("Parquet", "pyarrow", "parquet"), 2),
        (WorkError("the disk is full"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_our_errors_are_one_line_with_the_right_exit_code(failing, capsys, error, code):
    failing(error)
    assert main(["encode", "a.txt"]) == code
    shown = capsys.readouterr().err
    mark = " [GEM-101]" if isinstance(error, MissingExtra) else ""
    assert shown == f"gemel encode: {str(error) or 'interrupted'}{mark}\n"


def test_a_message_of_several_lines_becomes_one(failing, capsys):
    failing(InputError("first\nsecond"))
    assert main(["encode"]) == 2
    assert capsys.readouterr().err == "gemel encode: first second\n"


def test_an_error_that_is_not_ours_is_not_hidden(failing):
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["encode"])


@pytest.mark.parametrize("arguments", [["--debug", "encode"], ["encode", "--debug"]])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(failing, capsys, arguments):
    failing(InputError("wrong"))
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("gemel encode: wrong\n")


def test_a_file_that_is_not_there_is_exit_2_and_one_line(capsys, tmp_path, model):
    assert main(["encode", str(tmp_path / "missing.txt"), "--model", model]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_model_that_is_not_there_is_exit_2_and_one_line(capsys, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("one\n")
    assert main(["encode", str(texts), "--model", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "gemel", *arguments], capture_output=True, check=False, **options
    )


def test_a_closed_pipe_is_not_a_failure(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gemel", "--help"], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_python_m_gemel_is_the_command():
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"gemel ")
    assert run("nonsense").returncode == 2


def test_info_is_readable_and_json(capsys):
    assert main(["info"]) == 0
    assert "gemel" in capsys.readouterr().out
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["numpy"]
    assert facts["cache"]["folder"]
    assert isinstance(facts["cache"]["models"], list)
    assert set(facts["engines"]) == {"native", "onnxruntime", "scan"}


def test_the_demo_shows_pairs_and_hits(capsys, model):
    assert main(["demo", "--model", model]) == 0
    shown = capsys.readouterr().out
    assert "The most similar pairs:" in shown
    assert shown.count("Search: ") == 2
    assert "Time: load" in shown
    assert "A cosine tells that two texts are about the same thing" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-3:]] == [
        ["gemel", "pairs"],
        ["gemel", "cluster"],
        ["gemel", "search"],
    ]
    assert max(map(len, shown.replace(model, "").splitlines())) <= 80


def test_the_demo_marks_pairs_that_a_cosine_cannot_tell_apart(capsys, model, monkeypatch):
    texts = [
        "The dog chased the cat.",
        "The cat chased the dog.",
        "It rains.",
        "It does not rain.",
        "Five men ran.",
    ]
    monkeypatch.setattr("gemel.cli.verbs.demo.sentences", lambda: texts)
    assert main(["demo", "--model", model, "--json"]) == 0
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    marked = {tuple(sorted((pair["left"], pair["right"]))): pair["differences"] for pair in pairs}
    assert marked["The cat chased the dog.", "The dog chased the cat."] == ["swapped roles"]
    assert main(["demo", "--model", model]) == 0
    assert "! set apart by: swapped roles" in capsys.readouterr().out


def test_the_demo_in_json_has_the_same_facts(capsys, model):
    assert main(["demo", "--model", model, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["pairs"]) == 10
    assert len(facts["hits"]) == 6
    assert set(facts["seconds"]) == {"load", "encode", "pairs", "search"}
    assert facts["pairs"][0]["score"] >= facts["pairs"][-1]["score"]


def test_the_sample_has_a_few_hundred_different_sentences():
    from gemel.cli.verbs.demo import sentences

    texts = sentences()
    assert 280 <= len(texts) == len(set(texts)) <= 350
    assert all(text == text.strip() and text.endswith((".", "?")) for text in texts)
