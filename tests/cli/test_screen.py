"""What commands print: untrusted text does not control the terminal, and JSON round-trips."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemel.cli.main import main
from gemel.cli.output import cell, echo, echo_path, printable_warnings
from gemel.files.rows import write_rows
from gemel.terminal import printable, printable_json
from tiny import tiny_bert

CLI = Path(__file__).parents[2] / "src" / "gemel" / "cli"
CLEAR, TITLE, CLIPBOARD = "\x1b[2J\x1b[H", "\x1b]0;pwned\x07", "\x1b]52;c;cHduZWQ=\x07"
ATTACKS = [
    CLEAR,
    TITLE,
    CLIPBOARD,
    "\x9b2J",
    "\x7f\x08\x08",
    "\u202egnp.exe\u202c",
    "\u2066x\u2069",
    "a\rb",
    "\x85",
]
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What rich itself sends: colors and styles.
STYLE = re.compile("\x1b\\[[0-9;]*m")


@pytest.mark.parametrize("attack", ATTACKS)
def test_control_characters_are_escaped(attack):
    assert not STEERS.search(printable(attack))
    assert not STEERS.search(cell(attack).plain)
    assert printable("\x1b[2J \u202e é 漢 🙂\n\t") == "\\x1b[2J \\u202e é 漢 🙂\n\t"


@given(st.text(alphabet=st.characters(), max_size=40))
def test_json_is_safe_to_print_and_round_trips(text):
    line = printable_json({"text": text, text: 1})
    assert json.loads(line) == {"text": text, text: 1}
    assert not STEERS.search(line)
    assert "\n" not in line
    line.encode("utf-8")


@given(st.text(alphabet=st.characters(), max_size=40))
def test_printable_text_can_be_encoded_and_stays_when_cleaned_twice(text):
    once = printable(text)
    assert printable(once) == once
    once.encode("utf-8")


def test_control_characters_in_messages_are_escaped_on_both_streams(capsys):
    echo(f"a {CLEAR}")
    echo(f"b {TITLE}", err=True)
    output = capsys.readouterr()
    assert output.out == "a \\x1b[2J\\x1b[H\n"
    assert output.err == "b \\x1b]0;pwned\\x07\n"


def test_a_path_is_exact_for_a_program(capsys, monkeypatch):
    echo_path(Path("a\u202eb"))
    assert capsys.readouterr().out == "a\u202eb\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    echo_path(Path("a\u202eb"))
    assert capsys.readouterr().out == "a\\u202eb\n"


@pytest.mark.parametrize("verb", ["encode", "pairs", "dedupe", "cluster"])
def test_control_characters_in_file_names_are_escaped_in_errors(capsys, verb):
    arguments = [verb, f"no{CLEAR}such{TITLE}.txt", "--debug", *(["-o", "out"] if verb == "dedupe" else [])]
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert "\\x1b[2J" in output
    assert "\x1b" not in output


def test_control_characters_in_warnings_are_escaped():
    with printable_warnings():
        assert warnings.formatwarning(UserWarning(f"a\n{CLEAR}"), UserWarning, "x.py", 1) == (
            "warning: a \\x1b[2J\\x1b[H\n"
        )
        output = warnings.formatwarning(RuntimeWarning(CLEAR), RuntimeWarning, f"{TITLE}.py", 1, CLEAR)
        assert "\\x1b[2J" in output
        assert "\x1b" not in output
    assert "\x1b" in warnings.formatwarning(UserWarning(CLEAR), UserWarning, "x.py", 1, "")


PROGRAM = """
import json, sys
from gemel.cli.main import main
for arguments in json.loads(sys.argv[1]):
    print("$", *[repr(each) for each in arguments], flush=True)
    main(arguments)
"""


def on_a_terminal(folder: Path, *commands: list[str]) -> str:
    """What a terminal gets when these commands run in it."""
    pty = pytest.importorskip("pty", reason="needs a terminal of POSIX")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "PYTHONUTF8": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    except OSError:  # Linux says "input/output error" when the other side is closed
        pass
    finally:
        os.close(ours)
        process.wait(60)
    return b"".join(chunks).decode("utf-8")


def test_no_table_of_any_verb_controls_the_terminal(tmp_path):
    model = ["--model", str(tiny_bert(tmp_path / "model"))]
    texts = [f"a man {attack} plays a guitar" for attack in ATTACKS for _ in range(2)]
    rows = [
        json.dumps({"id": f"{n}{CLEAR}", "text": text, f"f{TITLE}": TITLE}) for n, text in enumerate(texts)
    ]
    (tmp_path / f"data{TITLE}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    data = ["--text-column", "text", "--id-column", "id", "--no-progress"]
    file = f"data{TITLE}.jsonl"
    output = on_a_terminal(
        tmp_path,
        ["pairs", file, "-k", "5", *data, *model],
        ["search", file, f"guitar{CLEAR}", "-k", "5", *data, *model],
        ["cluster", file, "--min-score", "0.5", *data, *model],
        ["dedupe", file, "-o", f"out{CLEAR}", *data, *model],
        ["explain", f"a{CLEAR}man", f"a {TITLE} guitar", *model],
        ["explain", *(" ".join([f"word{CLEAR}"] * 60),) * 2, *model],
        ["encode", file, *data, "--keep-texts", "--output", "int8", *model],
        ["index", "create", f"index{TITLE}", *model],
        ["index", "add", f"index{TITLE}", file, *data[:4], "--no-fields"],
        ["index", "search", f"index{TITLE}", f"guitar{CLEAR}", "-k", "3"],
        ["index", "get", f"index{TITLE}", f"0{CLEAR}", f"no{CLEAR}"],
        ["index", "stats", f"index{TITLE}"],
        ["pairs", f"absent{CLEAR}.txt", *model],
    )
    assert output.count("\\x1b[2J") > 20
    for line in STYLE.sub("", output).replace("\r\n", "\n").split("\n"):
        # A progress bar overwrites its own line; no other control sequence remains.
        assert not STEERS.search(line), line


def test_commands_print_only_through_the_output_module():
    """Only ASCII JSON, help and completion scripts may bypass gemel.cli.output."""
    wrong = []
    for path in sorted(CLI.rglob("*.py")):
        name = path.relative_to(CLI).as_posix()
        if name in {"output.py", "verbs/completion.py"}:
            continue
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "click.echo",
                "click.secho",
                "print",
            }:
                given = ast.unparse(node.args[0]) if node.args else ""
                ascii_json = given.startswith("json.dumps(") and "ensure_ascii" not in given
                if not ascii_json and given not in {"bare.ctx.get_help()", "f'gemel {__version__}'"}:
                    wrong.append(f"{name}:{node.lineno} {ast.unparse(node)[:80]}")
            if isinstance(node, ast.ImportFrom) and node.module in {"rich.markup", "rich"}:
                wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, "print with gemel.cli.output:\n" + "\n".join(wrong)


FORMULAS = ['=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "＝1"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_formulas_are_escaped_on_request(tmp_path, kind):
    rows = [{"text": text, "score": -0.5, "=name": "x"} for text in (*FORMULAS, "plain", "a=b", "")]
    for escape in (False, True):
        path = tmp_path / f"{escape}.{kind}"
        write_rows(path, rows, escape_formulas=escape)
        with path.open(encoding="utf-8", newline="") as file:
            result = list(csv.reader(file, delimiter="," if kind == "csv" else "\t"))
        mark = "'" if escape else ""
        assert result[0][2] == f"{mark}=name"
        expected = FORMULAS if kind == "csv" else [text.replace("\t", " ") for text in FORMULAS]
        assert [row[0] for row in result[1:]] == [*(f"{mark}{text}" for text in expected), "plain", "a=b", ""]
        assert {row[1] for row in result[1:]} == {"-0.5"}


def test_jsonl_and_parquet_are_never_changed(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"text": "=1"}], escape_formulas=True)
    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "=1"}


def test_a_command_escapes_formulas_with_the_flag(tmp_path):
    model = str(tiny_bert(tmp_path / "model"))
    (tmp_path / "texts.txt").write_text("=1+1 man\n=1+1 woman\n", encoding="utf-8")
    for flags in ([], ["--escape-formulas"]):
        out = tmp_path / f"pairs{len(flags)}.csv"
        assert main(["pairs", str(tmp_path / "texts.txt"), "-o", str(out), "--model", model, *flags]) == 0
        assert ("'=1+1" in out.read_text(encoding="utf-8")) == bool(flags)


def test_a_planted_symlink_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    try:
        (tmp_path / ".rows.csv.part").symlink_to(victim)
    except OSError:
        pytest.skip("no symbolic links here")
    write_rows(tmp_path / "rows.csv", [{"text": "x"}])
    assert victim.read_text() == "kept"
