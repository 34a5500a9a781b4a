"""Progress on standard error."""

import pytest

from gemel import terminal
from gemel.terminal import Progress, StatusLine, counted


@pytest.fixture
def on_a_terminal(monkeypatch):
    monkeypatch.setattr(terminal, "is_live", lambda: True)


@pytest.mark.usefixtures("on_a_terminal")
def test_progress_counts_to_the_end_and_is_silent_unless_shown(capsys):
    for shown in (True, False):
        progress = Progress(10, "texts", shown=shown)
        [progress.add(5) for _ in range(2)]
        progress.close()
        line = capsys.readouterr().err
        assert ("10 of 10 texts" in line) is shown


def test_short_work_writes_nothing_to_a_log(capsys):
    progress = Progress(10, "texts", shown=True)
    progress.add(10)
    progress.close()
    assert capsys.readouterr().err == ""


def test_long_work_writes_plain_lines_to_a_log(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PLAIN_S", 0.0)
    progress = Progress(10, "texts", shown=True, what="encoding")
    [progress.add(5) for _ in range(2)]
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line[: line.index(",")] for line in lines] == [
        "encoding: 5 of 10 texts",
        "encoding: 10 of 10 texts",
        "encoding: 10 of 10 texts",
    ]


def test_a_log_gets_a_line_about_every_half_minute(capsys):
    now = [0.0]
    line = StatusLine(shown=True, clock=lambda: now[0])
    for second in range(0, 100, 5):
        now[0] = float(second)
        if line.due():
            line.write(f"{second} s")
    assert capsys.readouterr().err == "30 s\n60 s\n90 s\n"


def test_a_sentence_stands_above_the_line(capsys):
    StatusLine(shown=True).say("warning: \x1b[2J", "step 1")
    assert capsys.readouterr().err == "warning: \\x1b[2J\n"


@pytest.mark.usefixtures("on_a_terminal")
@pytest.mark.parametrize(("unit", "shown"), [("texts", "1 of 1 text,"), ("queries", "1 of 1 query,")])
def test_one_thing_is_not_plural(capsys, unit, shown):
    progress = Progress(1, unit, shown=True)
    progress.add(1)
    progress.close()
    assert shown in capsys.readouterr().err


def test_numbers_with_their_nouns():
    assert [counted(count, "text") for count in (0, 1, 2000)] == ["0 texts", "1 text", "2,000 texts"]
    assert counted(2, "query", "queries") == "2 queries"
