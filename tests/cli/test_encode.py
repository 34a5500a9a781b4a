"""`gemel encode` with a tiny model: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import fields

import click
import numpy as np
import pytest

import gemel
from gemel.cli.flags import DEFAULT_MODEL, field_docs
from gemel.cli.main import main
from gemel.cli.verbs import cluster, evaluate
from gemel.cli.verbs.encode import command
from gemel.evaluation.task import TASKS
from gemel.files.records import InputFormat
from gemel.groups.grouping import METHODS
from gemel.options import EncodeOptions
from gemel.texts.folder_files import FORMATS
from tiny import tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TEXTS = ["a man is playing a guitar", "", "the stock market fell", "a man is playing a guitar", "été 日本 😀"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "how do i "}))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    rows = [{"key": f"k{n}", "body": text} for n, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(model, capfd):
    """Exit code, standard output and standard error of one command line."""

    def call(*arguments):
        code = main(["encode", *map(str, arguments), "--model", model])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return call


COLUMNS = ("--text-column", "body", "--id-column", "key")


def test_without_a_folder_the_vectors_are_json_lines(run, source, model):
    code, out, err = run(source, *COLUMNS)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["id"] for line in lines] == ["k0", "k1", "k2", "k3", "k4"]
    vectors = np.array([line["vector"] for line in lines], np.float32)
    assert np.array_equal(vectors, gemel.load(model).encode(TEXTS))
    assert err.startswith("5 texts, 1 repeated, none cut, ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["-"], [], ["-", "--input-format", "txt"]])
def test_standard_input_is_read_as_lines(run, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a man\n\na dog\n")))
    code, out, _ = run(*arguments)
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["0", "1", "2"]


def test_input_from_a_terminal_is_not_read(run, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    code, _, err = run()
    assert code == 2
    assert "no input: name a file" in err


@pytest.mark.parametrize("format", list(FORMATS))
def test_a_folder_contains_the_same_vectors_in_every_format(run, source, model, tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    code, out, err = run(source, *COLUMNS, "-o", tmp_path / "out", "--format", format, "--keep-texts")
    assert (code, out) == (0, "")
    assert "5 rows; now 5 texts, 1 repeated, none cut" in err
    folder = gemel.read_folder(tmp_path / "out")
    folder.verify()
    assert np.array_equal(folder.vectors, gemel.load(model).encode(TEXTS))
    assert (folder.ids, folder.texts) == (["k0", "k1", "k2", "k3", "k4"], TEXTS)


def test_the_manifest_has_the_fingerprint_of_the_options(run, source, model, tmp_path):
    run(
        source,
        *COLUMNS,
        "-o",
        tmp_path / "out",
        "--dim",
        "8",
        "--prompt-name",
        "query",
        "--output",
        "float16",
    )
    options = EncodeOptions(dim=8, prompt_name="query", output="float16")
    loaded = gemel.load(model)
    expected = {**loaded.fingerprint_for(options).to_json(), "engine": loaded.kernel}
    folder = gemel.read_folder(tmp_path / "out")
    assert folder.manifest["fingerprint"] == json.loads(json.dumps(expected))
    assert np.array_equal(folder.vectors, loaded.encode(TEXTS, options))
    assert folder.vectors.dtype == np.float16


def test_running_again_says_that_it_is_complete(run, source, tmp_path):
    run(source, *COLUMNS, "-o", tmp_path / "out")
    code, _, err = run(source, *COLUMNS, "-o", tmp_path / "out")
    assert (code, err) == (0, f"already complete: 5 texts in {tmp_path / 'out'}\n")


def test_other_options_in_the_same_folder_are_refused_and_can_overwrite(run, source, tmp_path):
    run(source, *COLUMNS, "-o", tmp_path / "out")
    code, _, err = run(source, *COLUMNS, "-o", tmp_path / "out", "--dim", "8")
    assert code == 2
    assert "fingerprint.dim is 32 there and 8 here" in err
    assert run(source, *COLUMNS, "-o", tmp_path / "out", "--dim", "8", "--overwrite")[0] == 0
    assert gemel.read_folder(tmp_path / "out").dim == 8


def test_texts_that_were_cut_are_counted_in_one_line(run, source):
    code, _, err = run(source, *COLUMNS, "--max-length", "5")
    assert code == 0
    assert "4 cut (10 tokens lost)" in err
    assert err.count("\n") == 1


def test_a_long_text_can_be_an_error(run, source, tmp_path):
    for where in ((), ("-o", tmp_path / "out")):
        code, _, err = run(source, *COLUMNS, "--max-length", "5", "--on-long", "error", *where)
        assert code == 2
        assert "texts[0] has 8 tokens" in err
        assert "positions count from row 0 of the input" in err


def test_bad_rows_stop_the_run_or_are_counted(run, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('"one"\n{"text"\n"three"\n')
    code, _, err = run(path)
    assert code == 2
    assert f"{path}:2: not JSON" in err
    code, out, err = run(path, "--skip-bad")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["0", "2"]
    assert f"1 bad row skipped, the first: {path}:2: not JSON" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{source}", "--format", "npy"], "Name it with -o"),
        (["{source}", "--overwrite"], "Name it with -o"),
        (["{source}"], "which column holds the texts"),
        (["{source}", "--text-column", "body", "--dim", "0"], "dim must be a whole number of at least 1"),
        (["{source}", "--text-column", "body", "--memory", "lots"], "memory must be bytes or a size"),
        (["missing.txt"], "no file at missing.txt"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_2(run, source, arguments, message):
    code, out, err = run(*(argument.format(source=source) for argument in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_every_field_has_a_flag_with_its_description_and_default():
    flags = {option.name: option for option in command.params}
    docs = field_docs(EncodeOptions)
    for field in fields(EncodeOptions):
        option = flags[field.name]
        assert option.opts == ["--" + field.name.replace("_", "-")]
        assert option.default == (None if field.name == "progress" else field.default)
        assert docs[field.name].split()[0] in option.help
        assert "None:" not in option.help
        assert "`" not in option.help


def test_choices_are_those_of_the_library():
    flags = {option.name: option for option in command.params}
    assert sorted(flags["format"].type.choices) == sorted(FORMATS)
    assert tuple(flags["input_format"].type.choices) == InputFormat.__args__
    assert list(METHODS) == cluster.METHOD_NAMES
    assert ", ".join(TASKS) == evaluate.TASK_NAMES
    assert flags["model"].default == DEFAULT_MODEL


def test_a_setting_can_come_from_the_environment(run, source, monkeypatch):
    monkeypatch.setenv("GEMEL_DIM", "4")
    assert len(json.loads(run(source, *COLUMNS)[1].splitlines()[0])["vector"]) == 4


def test_the_help_loads_no_numpy():
    code = "import sys; from gemel.cli.main import main; main(['encode', '--help']); assert 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_progress_line_shows_texts_and_rate(run, source, tmp_path, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    code, _, err = run(source, *COLUMNS, "-o", tmp_path / "out", "--progress")
    assert code == 0
    assert "5 texts" in err


# Runs the program and kills it with the n-th file that gets its final name; the second is the first block's journal.
KILLED = """
import os, signal, sys
real, left = os.replace, [int(sys.argv[1])]
def replace(*names):
    real(*names)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace
from gemel.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_killed_run_with_a_real_model_is_resumed(tmp_path, model, run):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{TEXTS[n % 5]} {n}\n" for n in range(1200)))  # a block is 1,024 texts
    for kills, resumed in ((2, 1024), (4, 1200)):
        out = tmp_path / f"out{kills}"
        arguments = ["encode", path, "-o", out, "--model", model]
        done = subprocess.run([sys.executable, "-c", KILLED, str(kills), *arguments], check=False)
        assert done.returncode == -signal.SIGKILL
        code, _, err = run(path, "-o", out)
        assert code == 0
        assert f"{resumed:,} were there already" in err or f"already complete: {resumed:,}" in err
    assert run(path, "-o", tmp_path / "whole")[0] == 0
    for name in ["manifest.json", "ids.jsonl", "vectors.npy"]:
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "out2" / name).read_bytes() == (tmp_path / "out4" / name).read_bytes() == whole
    assert np.array_equal(
        np.load(tmp_path / "out2" / "vectors.npy"), gemel.load(model).encode(path.read_text().splitlines())
    )


def test_the_command_is_a_click_command():
    assert isinstance(command, click.Command)
