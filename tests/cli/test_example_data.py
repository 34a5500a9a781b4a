"""`gemel example-data`: the files of the how-to guides, from the package."""

import csv
import json
import re
from pathlib import Path

import pytest

from gemel.cli.main import main
from gemel.cli.verbs.example_data import SETS

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("name", SETS)
def test_the_files_of_a_set_are_written_and_their_paths_printed(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["example-data", name, "-o", "try-out/"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert all(Path(line).stat().st_size > 100 for line in printed)
    assert sum(Path(line).stat().st_size for line in printed) < 30_000


def test_without_a_name_the_sets_are_listed(capsys):
    assert main(["example-data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(SETS)
    assert main(["example-data", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == list(SETS)


def test_a_file_of_the_user_is_not_replaced(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tickets.csv").write_text("mine\n", encoding="utf-8")
    assert main(["example-data", "tickets"]) == 2
    assert "tickets.csv exists with another content" in capsys.readouterr().err
    assert Path("tickets.csv").read_text(encoding="utf-8") == "mine\n"
    assert main(["example-data", "tickets", "--overwrite"]) == 0
    assert main(["example-data", "tickets"]) == 0  # the same file again is no error


def test_a_wrong_name_is_refused_with_the_known_ones(capsys):
    assert main(["example-data", "poems"]) == 2
    assert "'tickets', 'labeled-pairs', 'bugs'" in capsys.readouterr().err


def test_the_tickets_are_enough_to_calibrate_on(tmp_path):
    assert main(["example-data", "tickets", "-o", str(tmp_path)]) == 0
    with (tmp_path / "tickets.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["body"] for row in rows}) == len(rows) == 64
    assert len(rows) * (len(rows) - 1) // 2 >= 1000


@pytest.mark.parametrize("page", sorted(HOW_TO.glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_starts_from_files_that_it_writes(page):
    """What the tests give to a page is no file that a reader would have to bring."""
    given = re.findall(r"<!-- given: (.*?) -->", page.read_text(encoding="utf-8"))
    files = {name.strip() for names in given for name in names.split(",")}
    assert files <= MODELS


MODELS = {
    "my-model",
    "google-bert/bert-base-uncased",
    "FacebookAI/xlm-roberta-base",
    "cross-encoder/ms-marco-MiniLM-L6-v2",
}
"""What a reader gets from the Hub or has trained."""
