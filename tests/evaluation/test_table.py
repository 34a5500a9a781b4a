"""Evaluation tables: what is read, errors with file and line, and which files of a folder are used."""

from __future__ import annotations

import gzip

import pytest

from gemel.errors import InputError
from gemel.evaluation.data import fingerprint, read_table, tables_with, with_columns

NEEDED = with_columns(("sentence1", "left"), ("score",))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_quote_in_a_tsv_is_a_quote(tmp_path):
    table = read_table(write(tmp_path / "a.tsv", 'sentence1\tscore\n"He said\t1\r\nno" end\t2\n\n'))
    assert table.texts("sentence1") == ['"He said', 'no" end']
    assert table.numbers("score").tolist() == [1, 2]


def test_csv_jsonl_and_gz_give_the_same_table(tmp_path):
    rows = [("a, b", "1.5"), ("c", "2")]
    write(tmp_path / "a.csv", 'text,score\n"a, b",1.5\nc,2\n')
    write(tmp_path / "b.jsonl", '{"text": "a, b", "score": 1.5}\n{"text": "c", "score": 2}\n')
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbftext\tscore\na, b\t1.5\nc\t2\n"))
    for name in ("a.csv", "b.jsonl", "c.tsv.gz"):
        table = read_table(tmp_path / name)
        assert list(zip(table.texts("text"), map(str, table.texts("score")), strict=True)) == rows


def test_json_values_become_cells(tmp_path):
    table = read_table(write(tmp_path / "a.jsonl", '{"a": null, "b": true, "c": "é"}\n'))
    assert (table.texts("a"), table.texts("b"), table.texts("c")) == ([""], ["1"], ["é"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "", "is empty"),
        ("a.tsv", "x\ty\n", "no rows"),
        ("a.tsv", "x\ty\n1\t2\n\n3\n", r"a.tsv:4: 1 fields, but the first line names 2 columns"),
        ("a.tsv", "x\tx\n1\t2\n", "two columns 'x'"),
        ("a.csv", 'x,y\n"1"2,3\n', "a.csv:2"),
        ("a.jsonl", '{"x": 1}\n{"y": 1}\n', "a.jsonl:2: no field 'x'"),
        ("a.jsonl", '{"x": 1}\n{"x"\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: expected an object"),
        ("a.txt", "x\n", "is not .tsv"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / name, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no data file"):
        read_table(tmp_path / "none.tsv")


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"x\ty\n1\t2\n" * 99)[:-9]])
def test_a_broken_gz_is_refused(tmp_path, content):
    (tmp_path / "a.tsv.gz").write_bytes(content)
    with pytest.raises(InputError, match="gzip"):
        read_table(tmp_path / "a.tsv.gz")


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"text\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"a.tsv:2: not UTF-8"):
        read_table(tmp_path / "a.tsv")


@pytest.mark.parametrize(("bad", "word"), [("high", "not a number"), ("nan", "finite"), ("", "not a number")])
def test_a_score_that_is_no_number_is_named_with_its_line(tmp_path, bad, word):
    table = read_table(write(tmp_path / "a.tsv", f"text\tscore\na\t1\n\nb\t{bad}\n"))
    with pytest.raises(InputError, match=rf"a\.tsv:4: '{bad}' is .*{word}"):
        table.numbers("score")


def test_the_line_after_a_cell_of_two_lines_is_right(tmp_path):
    table = read_table(write(tmp_path / "a.csv", 'text,score\n"two\nlines",1\nb,x\n'))
    with pytest.raises(InputError, match=r"a\.csv:4"):
        table.numbers("score")


def test_a_missing_column_is_named_with_those_that_exist(tmp_path):
    table = read_table(write(tmp_path / "a.tsv", "one\ttwo\n1\t2\n"))
    with pytest.raises(InputError, match=r"'sentence1' or 'left'; it has one, two"):
        table.texts("sentence1", "left")


def test_the_test_splits_of_a_folder_are_used(tmp_path):
    for name in (
        "s-test",
        "s-train",
        "s-dev",
        "t-train-part",
        "t-test",
        "u-train",
        "u-dev",
        "plain",
        "other",
    ):
        head = "text" if name == "other" else "sentence1"
        write(tmp_path / f"{name}.tsv", f"{head}\tscore\na\t1\n")
    write(tmp_path / "readme.md", "words")
    result = tables_with(tmp_path, NEEDED)
    assert [table.path.stem for table in result] == ["plain", "s-test", "t-test", "u-dev"]
    assert result[0].left_out == ("s-dev", "s-train", "t-train-part", "u-train")
    assert result[0].protocol == {"left_out": ["s-dev", "s-train", "t-train-part", "u-train"]}


def test_files_whose_names_fit_go_before_others(tmp_path):
    for name in ("sts1", "else"):
        write(tmp_path / f"{name}.tsv", "sentence1\tscore\na\t1\n")
    assert [t.path.stem for t in tables_with(tmp_path, NEEDED, names="sts")] == ["sts1"]
    assert len(tables_with(tmp_path, NEEDED, names="nothing")) == 2


def test_a_folder_without_data_says_what_it_holds(tmp_path):
    write(tmp_path / "a.tsv", "x\n1\n")
    with pytest.raises(InputError, match=r"'sentence1' or 'left', 'score'. The folder holds a.tsv"):
        tables_with(tmp_path, NEEDED)


def test_a_folder_of_two_kinds_of_tables_gives_both(tmp_path):
    write(tmp_path / "a.tsv", "sentence1\tscore\na\t1\n")
    write(tmp_path / "b.csv", "bug,master\n1,2\n")
    bugs = with_columns(("bug",))
    assert [table.path.name for table in tables_with(tmp_path, NEEDED, bugs)] == ["a.tsv", "b.csv"]
    with pytest.raises(InputError, match="has the columns 'x'; or 'y'"):
        tables_with(tmp_path, with_columns(("x",)), with_columns(("y",)))


def test_a_test_split_of_another_kind_does_not_hide_the_others(tmp_path):
    write(tmp_path / "s-test.tsv", "text\na\n")
    write(tmp_path / "s-dev.tsv", "sentence1\tscore\na\t1\n")
    result = tables_with(tmp_path, NEEDED)
    assert ([table.path.stem for table in result], result[0].left_out) == (["s-dev"], ())


def test_a_table_that_cannot_be_read_is_not_passed_over(tmp_path):
    write(tmp_path / "a.tsv", "sentence1\tscore\na\t1\n")
    write(tmp_path / "b.tsv", "")
    with pytest.raises(InputError, match=r"b\.tsv is empty"):
        tables_with(tmp_path, NEEDED)


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no data at .*none\. Give a \.tsv"):
        tables_with(tmp_path / "none", NEEDED)


def test_a_long_folder_is_not_listed_whole(tmp_path):
    for number in range(20):
        write(tmp_path / f"{number:02}.tsv", "x\n1\n")
    with pytest.raises(InputError, match=r"holds 00\.tsv, .*, 11\.tsv and 8 more$"):
        tables_with(tmp_path, NEEDED)


def test_fingerprints_of_different_data_differ():
    assert fingerprint(["a", "b"], [1.0]) == fingerprint(("a", "b"), (1.0,))
    assert len({fingerprint(["a", "b"]), fingerprint(["ab"]), fingerprint(["a"], ["b"])}) == 3
