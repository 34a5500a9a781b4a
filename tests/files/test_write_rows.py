"""Rows to files and back, and rows chosen by their other columns."""

import gzip
import json

import pytest

from gemel.errors import InputError, WorkError
from gemel.files.records import RecordFile
from gemel.files.rows import write_rows

ROWS = [
    {"score": 0.5, "left": "a", "text": "plain"},
    {"score": -1.25, "left": "b", "text": 'comma, "quote" é'},
]


@pytest.mark.parametrize(
    "name", ["x.tsv", "x.csv", "x.jsonl", "x.tsv.gz", "x.csv.gz", "x.jsonl.gz", "x.parquet"]
)
def test_rows_come_back_as_they_were(tmp_path, name):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="parquet needs the extra parquet")
    assert write_rows(tmp_path / name, iter(ROWS)) == 2
    file = RecordFile(tmp_path / name)
    assert file.columns() == ["score", "left", "text"]
    result = [record.values for record in file.records(["score", "left", "text"])]
    assert [(float(score), *rest) for score, *rest in result] == [tuple(row.values()) for row in ROWS]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_tab_or_a_line_break_is_a_space_in_tsv(tmp_path):
    write_rows(tmp_path / "x.tsv", [{"text": "a\tb\r\nc\u2028d", "none": None}])
    assert (tmp_path / "x.tsv").read_text(encoding="utf-8") == "text\tnone\na b c d\t\n"


def test_equal_rows_give_equal_bytes_when_packed(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_rows(tmp_path / name, ROWS)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert json.loads(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()[0]) == ROWS[0]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    def broken():
        yield ROWS[0]
        raise InputError("the third row is bad")

    (tmp_path / "x.tsv").write_text("old")
    with pytest.raises(InputError, match="third row"):
        write_rows(tmp_path / "x.tsv", broken())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("name", ["x.txt", "x", "x.parquet.gz", "nowhere/x.tsv"])
def test_a_file_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(InputError):
        write_rows(tmp_path / name, ROWS)


def test_no_rows_make_an_empty_file(tmp_path):
    assert write_rows(tmp_path / "x.jsonl", []) == 0
    assert (tmp_path / "x.jsonl").read_bytes() == b""


# Parquet, whose columns have one type each.


@pytest.fixture
def groups_of_two(monkeypatch):
    pytest.importorskip("pyarrow", reason="parquet needs the extra parquet")
    monkeypatch.setattr("gemel.files.rows._GROUP", 2)


def values_in(path, name="a"):
    return [record.values[0] for record in RecordFile(path).records([name])]


@pytest.mark.parametrize(
    "values",
    [
        [None, None, "x", None, "y"],
        [1, 2, 2.5, 3],
        [None, None, 1, 2, None, 0.5, None],
        [None, None, [1], None, [0.5]],
        [2.5, 1, 3, 4],
    ],
)
def test_a_later_group_may_need_a_wider_type(tmp_path, groups_of_two, values):
    path = tmp_path / "x.parquet"
    assert write_rows(path, ({"n": n, "a": value} for n, value in enumerate(values))) == len(values)
    assert values_in(path) == values
    assert values_in(path, "n") == list(range(len(values)))
    assert [each.name for each in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize(
    "values",
    [[1, 2, "x"], ["x", "y", 1], [1, "x"], [2**60 + 1, 1, 0.5], [True, True, 1], [2**70], ["\ud800"]],
)
def test_a_later_group_that_fits_no_type_is_refused_and_never_cut(tmp_path, groups_of_two, values):
    (tmp_path / "x.parquet").write_bytes(b"old")
    with pytest.raises(WorkError, match=r"cannot write row \d and those after it to parquet.*Write \.jsonl"):
        write_rows(tmp_path / "x.parquet", [{"a": value} for value in values])
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("x.parquet", b"old")]


def test_no_rows_make_a_parquet_file_without_columns(tmp_path, groups_of_two):
    assert write_rows(tmp_path / "x.parquet", []) == 0
    assert RecordFile(tmp_path / "x.parquet").types() == {}
