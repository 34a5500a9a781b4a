"""Every example of every `--help` works: it is run on small files and tiny models, or at least parsed."""

import io
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from cli_walk import everything, examples
from cli_workspace import make_workspace
from gemel.cli.main import VERBS, cli, main

EXAMPLES = {words: examples(command) for words, command in everything()}

# What is only parsed, and why.
PARSED = {
    r"^gemel train ": "tests/training/test_run.py trains; it takes longer than an example should",
    r"^gemel distill (?!.* static )": "it trains",
    r"^gemel models convert ": "tests/checkpoint/test_convert.py makes pickles",
    r"^gemel serve": "it would run forever",
    r"^gemel index drop notes$": "it asks a question on a terminal",
    r"--vector-column": "tests/cli/test_index.py adds vectors; the model of the examples is another one",
    r"--on ray": "a cluster is started by tests/integrations/test_ray.py",
    r"postgresql://": "a database is started by tests/index/test_postgres.py",
}

FILLED = [
    "gemel index create notes --field lang --field year:int --field label",
    "gemel index add notes tickets.jsonl --field lang --field year:int",
    "gemel index add notes articles.csv --text-column body --field lang --field year:int",
]
# What must be there before the examples of a command; "index" and "index create" make their own.
BEFORE = {
    "index add": ["gemel index create notes"],
    "index ls": ["gemel index create backups/notes"],
    "index restore": ["gemel index create first", "gemel index snapshot first backups/2026-11-18"],
    **{
        f"index {name}": FILLED
        for name in (
            *("search", "get", "delete", "stats", "compact", "migrate", "verify", "repair", "words"),
            *("export", "facets", "update", "remove-field", "snapshot", "drop"),
        )
    },
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture
def workspace(source, tmp_path, monkeypatch):
    """A copy for each command, whose examples run one after the other as a reader would type them."""
    folder = tmp_path / "workspace"
    shutil.copytree(source, folder)
    monkeypatch.chdir(folder)
    for name, value in {"CACHE": str(folder / "cache"), "OFFLINE": "1", "CONFIG": "none"}.items():
        monkeypatch.setenv(f"GEMEL_{name}", value)
    monkeypatch.setenv("GEMEL_THREADS", "1")
    monkeypatch.setattr("gemel.texts.benchmark.BATCH_TOKENS", (256,))
    monkeypatch.setattr(
        "gemel.cli.verbs.demo.sentences", lambda: (folder / "texts.txt").read_text().splitlines()
    )
    return folder


def parts(line):
    """The line at its pipes, each part as words."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="|>")
    reader.whitespace_split = True
    result = [[]]
    for word in reader:
        if word == "|":
            result.append([])
        else:
            result[-1].append(word)
    return result


def run(line, monkeypatch):
    """The part that is gemel, in this process, with what the part before it prints as its input."""
    pieces = parts(line)
    at = next(number for number, piece in enumerate(pieces) if piece[0] == "gemel")
    if at:
        before = subprocess.run(line.partition(" | gemel")[0], shell=True, capture_output=True, check=True)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(before.stdout)))
    words = pieces[at][1:]
    return main(words[: words.index(">")] if ">" in words else words)


@pytest.mark.parametrize("words", [words for words, lines in EXAMPLES.items() if lines])
def test_the_examples_run(words, workspace, monkeypatch, capsys):
    for line in (*BEFORE.get(words, ()), *EXAMPLES[words]):
        if any(re.search(pattern, line) for pattern in PARSED):
            parse(line)
            continue
        code = run(line, monkeypatch)
        shown = capsys.readouterr()
        assert code == 0, f"{line}\n{shown.err}"
        assert "Traceback" not in shown.err


def parse(line):
    """Fails if a flag, a choice or an argument is wrong."""
    import click

    words = next(piece for piece in parts(line) if piece[0] == "gemel")[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    command.make_context(line, words)


@pytest.mark.parametrize("words", EXAMPLES)
def test_every_command_has_an_example_of_itself(words):
    assert any(f"gemel {words}".strip() in line for line in EXAMPLES[words]), EXAMPLES[words]


def test_every_verb_is_covered():
    assert {words.split()[0] for words in EXAMPLES if words} == set(VERBS)


def test_a_wrong_example_would_be_noticed():
    import click

    with pytest.raises(click.UsageError):
        parse("gemel train pairs.tsv --objective classification -o my-model")


def test_a_line_is_divided_at_its_pipes():
    assert parts("cat 'a b' | gemel encode - > out") == [["cat", "a b"], ["gemel", "encode", "-", ">", "out"]]
