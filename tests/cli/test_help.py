"""Error codes: one table, used by the source, printed by `gemel help`, listed in the documentation."""

import pickle
import re
from pathlib import Path

import pytest

from gemel.cli import main as module
from gemel.cli.main import main
from gemel.cli.verbs.help import error_help
from gemel.errors import InputError, MissingExtra
from gemel.serve.errors import error_body, problem_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gemel"
TABLE = error_help()
USED = {
    code
    for path in SOURCE.rglob("*.py")
    if path.name != "help.py"
    for code in re.findall(r"\bcode ?= ?\"(GEM-\d+)\"|else \"(GEM-\d+)\"", path.read_text(encoding="utf-8"))
    for code in code
    if code
}


def test_every_code_of_the_source_is_in_the_table_and_the_other_way_round():
    assert set(TABLE) == USED


def test_codes_are_in_order_and_listed_once():
    codes = re.findall(
        r"^\[(.+)\]$", (SOURCE / "cli" / "errors.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert codes == sorted(set(codes))
    assert all(re.fullmatch(r"GEM-[1-9]\d\d", code) for code in codes)


@pytest.mark.parametrize("code", TABLE)
def test_the_page_of_a_code_exists_and_the_reference_lists_it(code):
    assert (ROOT / "docs" / TABLE[code].page).is_file()
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert f"### {code}\n\n**{TABLE[code].title}.**" in page


@pytest.mark.parametrize("code", TABLE)
def test_help_prints_the_entry_of_a_code(code, capsys):
    assert main(["help", code]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{code}: {TABLE[code].title}\n")
    assert shown.endswith(f"Documentation: docs/{TABLE[code].page}\n")
    assert " ".join(TABLE[code].do.split()) in " ".join(shown.split())


@pytest.mark.parametrize("spelling", ["GEM-301", "gem-301", "gem301", "301"])
def test_a_code_may_be_written_in_several_ways(spelling, capsys):
    assert main(["help", spelling]) == 0
    assert capsys.readouterr().out.startswith("GEM-301: ")


def test_an_unknown_code_is_answered_with_the_nearest_one(capsys):
    assert main(["help", "GEM-391"]) == 2
    assert "there is no error code 'GEM-391'. Did you mean 'GEM-3" in capsys.readouterr().err


def test_help_lists_all_codes(capsys):
    assert main(["help", "errors"]) == 0
    assert [line[:7] for line in capsys.readouterr().out.splitlines()] == list(TABLE)


def test_help_of_a_verb_is_that_of_the_verb(capsys):
    assert main(["help", "index", "search"]) == 0
    shown = capsys.readouterr().out
    assert main(["index", "search", "--help"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["help", "index", "serch"]) == 2
    assert "gemel index has no verb 'serch'" in capsys.readouterr().err


def test_a_terminal_also_says_where_to_read_more(monkeypatch, capsys):
    def fail(_):
        raise InputError("no file at x.txt", code="GEM-301")

    monkeypatch.setattr(module, "_run", fail)
    assert main(["search"]) == 2
    assert capsys.readouterr().err == "gemel search: no file at x.txt [GEM-301]\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["search"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["more: gemel help GEM-301"]


def test_the_code_is_not_in_the_message_and_survives_a_pickle():
    error = InputError("no file at x.txt", code="GEM-301")
    assert str(error) == "no file at x.txt"
    assert pickle.loads(pickle.dumps(error)).code == "GEM-301"
    assert InputError("plain").code is None


def test_a_missing_package_has_the_code_of_its_extra():
    assert MissingExtra("Parquet", "pyarrow", "parquet").code == "GEM-101"
    assert MissingExtra("training", "torch", "train").code == "GEM-102"


def test_a_server_answers_with_the_code():
    problem = problem_of(InputError("texts[0] is too long", code="GEM-306"))
    assert b'"help":"GEM-306"' in error_body("/search", problem)
    assert b'"help":"GEM-306"' in error_body("/v1/embeddings", problem)
    assert b"help" not in error_body("/search", problem_of(InputError("wrong")))


@pytest.mark.parametrize("columns", [40, 60, 79, 80, 200])
def test_the_start_screen_fits_the_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= max(columns, 40)
    assert len([line for line in lines if line.startswith("  gemel")]) == 7
    assert sum("an HTTP API and a web page" in line for line in lines) == 1
