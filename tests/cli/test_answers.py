"""What scripts rely on in every verb: JSON if requested, messages on standard error, exit codes, no colors."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli_walk import commands, options
from cli_workspace import make_workspace
from gemel.cli.main import main

COMMANDS = dict(commands())
LINES = "Print JSON lines"

NO_JSON = {
    "serve": "it answers over HTTP; what it says is talk",
    "help": "it explains",
    "completion": "it prints a script",
    "completion bash": "it prints a script",
    "completion zsh": "it prints a script",
    "completion fish": "it prints a script",
}

# A small request for each verb. The verbs that train are covered by the tests of training.
ANSWERS = {
    "encode": "texts.txt",
    "evaluate": "./my-model --task sts --data pairs.tsv --rounds 5",
    "models list": "",
    "models pull": "all-MiniLM-L6-v2",
    "models show": "./my-model",
    "models check": "./my-model",
    "models remove": "spare",
    "models convert": "./my-model",
    "models wheel": "./my-model --license Apache-2.0 -o wheels",
    "demo": "",
    "info": "",
    "objectives": "",
    "example-data": "",
    "postprocess": "./my-model --data texts.txt --method centering -o centered",
    "bench": "texts.txt --sample 4 --repeats 1",
    "distill": "./my-model --how static --data texts.txt -o static",
    "export": "./my-model -o exported",
    "cluster": "texts.txt --min-score 0.5",
    "dedupe": "texts.txt -o clean",
    "negatives": "texts.txt --queries train.tsv -o triplets.jsonl",
    "pairs": "texts.txt -k 3",
    "search": "texts.txt dog -k 3",
    "explain": "dog cat",
    "plan": "--texts 1000",
    "index build": "built tickets.csv --text-column body --id-column number",
    "index create": "fresh",
    "index add": "notes tickets.csv --text-column body --id-column number",
    "index search": "notes dog",
    "index get": "notes t1",
    "index stats": "notes",
    "index verify": "notes",
    "index repair": "notes",
    "index words": "notes",
    "index compact": "notes",
    "index delete": "notes t0",
    "index migrate": "notes --model ./my-model",
    "index export": "notes -o exported.jsonl",
    "index facets": "notes title",
    "index update": "notes t1 --set title=new",
    "index remove-field": "notes title",
    "index ls": ".",
    "index snapshot": "notes backups/first",
    "index restore": "notes restored",
    "index drop": "notes --yes",
}
TRAINS = {"train": "tests/training/test_run.py"}


def skip_without_torch(line):
    """Without torch, training fails first with the missing package."""
    if line.startswith("train "):
        pytest.importorskip("torch", reason="training is in the train extra")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("workspace"))
    (folder / "path" / "to" / "a" / "folder").rename(folder / "cache" / "models" / "spare")
    return folder


@pytest.fixture(autouse=True)
def here(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    for name, value in {"CACHE": str(workspace / "cache"), "OFFLINE": "1", "CONFIG": "none"}.items():
        monkeypatch.setenv(f"GEMEL_{name}", value)
    monkeypatch.setenv("GEMEL_THREADS", "1")
    monkeypatch.setattr("gemel.texts.benchmark.BATCH_TOKENS", (256,))


def test_every_verb_that_prints_has_json():
    without = {
        words
        for words, command in COMMANDS.items()
        if "as_json" not in [each.name for each in options(command)]
    }
    assert without <= set(NO_JSON)


def test_every_verb_with_json_is_tested_here():
    assert set(COMMANDS) - set(NO_JSON) == {*ANSWERS, *TRAINS}


def make_notes(capsys):
    if main(["index", "stats", "notes"]):
        assert main(["index", "create", "notes"]) == 0
        assert main(["index", "add", *ANSWERS["index add"].split()]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("words", ANSWERS)
def test_json_is_all_that_is_on_standard_output(words, capsys):
    if words.startswith("index"):
        make_notes(capsys)
    code = main([*words.split(), *ANSWERS[words].split(), "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    help = next(each.help for each in options(COMMANDS[words]) if each.name == "as_json")
    lines = shown.out.splitlines()
    assert lines if help.startswith(LINES) else len(lines) == 1
    assert all(isinstance(json.loads(line), dict) for line in lines)


# Exit codes.


@pytest.mark.parametrize("words", COMMANDS)
def test_a_wrong_option_is_one_line_and_exit_2(words, capsys):
    refused([*words.split(), "--no-such-option"], capsys, "No such option")


@pytest.mark.parametrize(
    "line",
    [
        "encode no.txt",
        "evaluate ./my-model --task sts --data no.tsv",
        "postprocess ./my-model --data no.txt -o never",
        "bench no.txt",
        "train no.tsv --model ./my-model --objective regression -o new",
        "distill ./my-model --how static --data no.txt -o never",
        "cluster no.txt",
        "dedupe no.txt -o new",
        "negatives no.txt --queries train.tsv -o new.tsv",
        "negatives texts.txt --queries no.tsv -o new.tsv",
        "pairs no.txt",
        "pairs texts.txt --other no.txt",
        "search no.txt dog",
        "search texts.txt --queries no.txt",
        "models wheel ./my-model --license-file no.txt",
        "index add no-index texts.txt",
        "index build unmade no.txt",
        "index search no-index dog",
        "index get no-index 1",
        "index stats no-index",
        "index compact no-index",
        "index verify no-index",
        "index repair no-index",
        "index words no-index",
        "index delete no-index 1",
        "index migrate no-index --model ./my-model",
        "serve --index no-index --port 0",
        "serve --api-key-file no.txt --port 0",
    ],
)
def test_a_missing_file_is_one_line_and_exit_2(line, capsys):
    skip_without_torch(line)
    refused(line.split(), capsys, "no.t", "no-index")
    assert not Path("unmade").exists()


@pytest.mark.parametrize(
    "line",
    [
        "encode texts.txt --model {}",
        "evaluate {} --task sts --data pairs.tsv",
        "models show {}",
        "models pull {}",
        "models remove {}",
        "models convert {}",
        "models wheel {} --license Apache-2.0",
        "demo --model {}",
        "postprocess {} --data texts.txt -o new",
        "bench --model {}",
        "train pairs.tsv --model {} --objective regression -o new",
        "distill {} --how static --data texts.txt -o never",
        "export {} -o new",
        "cluster texts.txt --model {}",
        "dedupe texts.txt -o new --model {}",
        "negatives texts.txt --queries train.tsv -o new.tsv --model {}",
        "negatives texts.txt --queries train.tsv -o new.tsv --rerank {}",
        "pairs texts.txt --model {}",
        "search texts.txt dog --model {}",
        "search texts.txt dog --rerank {}",
        "explain dog cat --model {}",
        "serve --port 0 --model {}",
        "index create new --model {}",
        "index migrate notes --model {}",
        "index search notes dog --rerank {}",
    ],
)
def test_a_missing_model_is_one_line_and_exit_2(line, capsys):
    skip_without_torch(line)
    make_notes(capsys)
    refused(line.format("./no-model").split(), capsys, "no-model")


@pytest.mark.parametrize(
    "line",
    [
        "encode texts.txt -o {}",
        "evaluate ./my-model --task sts --data pairs.tsv --rounds 5 -o {}",
        "models convert ./my-model -o {}",
        "models wheel ./my-model --license Apache-2.0 -o {}",
        "postprocess ./my-model --data texts.txt --method centering -o {}",
        "distill ./my-model --how static --data texts.txt -o {}",
        "train pairs.tsv --model ./my-model --objective regression -o {}",
        "export ./my-model -o {}",
        "cluster texts.txt --min-score 0.5 --map none -o {}",
        "dedupe texts.txt --exact-only -o {}",
        "negatives texts.txt --queries train.tsv -o {}/triplets.tsv",
        "pairs texts.txt -o {}/pairs.tsv",
        "search texts.txt dog -o {}/hits.tsv",
        "explain dog cat -o {}/why.html",
        "index create {}",
        "index search notes dog -o {}/hits.tsv",
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(line, capsys):
    make_notes(capsys)
    code = main(line.format("texts.txt/below").split())
    shown = capsys.readouterr()
    assert code in (1, 2)
    assert "texts.txt" in message_of(shown.err)


def refused(words, capsys, *mentioned):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert any(each in message_of(shown.err) for each in mentioned), shown.err


def message_of(text):
    """The last line, which is the error; no line is a traceback's."""
    assert "Traceback" not in text
    last = text.splitlines()[-1]
    assert last.startswith("gemel "), text
    return last


# As a program.


@pytest.mark.parametrize("line", ["encode texts.txt", "pairs texts.txt", "models list"])
def test_a_closed_pipe_ends_silently(line):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gemel", *line.split()], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr and b"Broken" not in done.stderr


COLOR = re.compile(rb"\x1b\[[0-9;]*[34]8?[;0-9]*m")


def on_a_terminal(line, **environment):
    """The program with a terminal for both streams, started; and a function that returns what the terminal received."""
    inner, outer = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-m", "gemel", *line],
        stdout=outer,
        stderr=outer,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(outer)

    def shown():
        text = b""
        with contextlib.suppress(OSError):  # reading past the end of a terminal is an error
            while part := os.read(inner, 65536):
                text += part
        os.close(inner)
        assert child.wait() == 0, text
        return text

    return shown


def test_colors_are_shown_on_terminals_only_and_no_color_is_honored():
    line = ["explain", "a dog", "a cat"]
    colored, plain = on_a_terminal(line), on_a_terminal(line, NO_COLOR="1")
    assert COLOR.search(colored())
    assert not COLOR.search(plain())


@pytest.mark.parametrize("line", ["explain dog cat", "demo", "info", "models list"])
def test_piped_output_has_no_colors(line, capsys, monkeypatch):
    monkeypatch.setattr("gemel.cli.verbs.demo.sentences", lambda: ["a dog", "a cat", "the rain", "a man"] * 3)
    assert main(line.split()) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
