"""Files to rows: every format, unusual content, and every error."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tracemalloc
from pathlib import Path

import pytest

from gemel.errors import InputError, MissingExtra
from gemel.files import records
from gemel.files.records import RecordFile
from gemel.files.rows import Row, read_rows, read_texts

ODD = "a\u2028b\x0bc\x85d\x1ce\u2029f\x00g"  # str.splitlines would cut this into pieces; it is one text


def write(folder, name, data):
    path = folder / name
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def texts(path, **options):
    return [row.text for row in read_rows(path, **options)]


@pytest.fixture
def parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def make(columns, **options):
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet", **options)
        return tmp_path / "rows.parquet"

    return make


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("in.txt", ["one", "", "zwei ü"]),
        ("in.jsonl", ['{"text": "one"}', '{"text": ""}', '{"text": "zwei \\u00fc"}']),
        ("in.ndjson", ['"one"', '""', '"zwei ü"']),
        ("in.csv", ["n,text", "1,one", "2,", '3,"zwei ü"']),
        ("in.tsv", ["n\ttext", "1\tone", "2\t", "3\tzwei ü"]),
    ],
)
def test_every_text_format_gives_the_same_rows(tmp_path, name, lines, bom, newline, ending):
    expected = [Row("0", "one"), Row("1", ""), Row("2", "zwei ü")]
    for last in ("", newline):  # a newline at the end is no extra row
        path = write(tmp_path, name + ending, bom + newline.join(lines) + last)
        assert list(read_rows(path)) == expected


def test_parquet_gives_the_same_rows(parquet):
    path = parquet({"n": [1, 2, 3], "text": ["one", "", "zwei ü"]}, row_group_size=2)
    assert list(read_rows(path)) == [Row("0", "one"), Row("1", ""), Row("2", "zwei ü")]


def test_a_text_line_keeps_its_unicode_separators(tmp_path):
    assert texts(write(tmp_path, "a.txt", f"{ODD}\n{ODD}\n")) == [ODD, ODD]
    assert texts(write(tmp_path, "a.tsv", f"text\tn\n{ODD}\t1\n")) == [ODD]
    assert texts(write(tmp_path, "a.csv", f"text,n\n{ODD},1\n")) == [ODD]
    assert texts(write(tmp_path, "a.jsonl", json.dumps(ODD, ensure_ascii=False) + "\n")) == [ODD]


def test_empty_lines_of_a_txt_file_are_texts_so_that_line_i_is_row_i(tmp_path):
    assert texts(write(tmp_path, "a.txt", "\n\nx\n\n")) == ["", "", "x", ""]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv", "a.txt.gz"])
@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(tmp_path, name, data):
    with pytest.raises(InputError, match=rf"{name} is empty: there are no rows to read"):
        texts(write(tmp_path, name, data))


def test_a_lone_carriage_return_belongs_to_the_text(tmp_path):
    assert texts(write(tmp_path, "a.txt", b"x\ry\r\nz\r")) == ["x\ry", "z\r"]


def test_quotes_mean_nothing_in_tsv(tmp_path):
    assert texts(write(tmp_path, "a.tsv", 'text\tn\n"open\t1\n"closed"\t2\n')) == ['"open', '"closed"']


def test_a_quoted_csv_field_may_contain_newlines_commas_and_quotes(tmp_path):
    path = write(tmp_path, "a.csv", 'id,text\n7,"a\nb, ""c"""\n8,d\n')
    assert list(read_rows(path, id_column="id")) == [Row("7", 'a\nb, "c"'), Row("8", "d")]


def test_a_csv_field_may_be_long_and_the_limit_of_the_process_stays(tmp_path):
    import csv

    before = csv.field_size_limit()
    assert texts(write(tmp_path, "a.csv", "text,n\n" + "x" * 300_000 + ",1\n")) == ["x" * 300_000]
    assert csv.field_size_limit() == before


def test_ids_come_from_a_column_or_count_the_rows(tmp_path, parquet):
    path = write(tmp_path, "a.jsonl", '{"id": 5, "text": "x"}\n\n{"id": "b", "text": "y"}\n')
    assert [row.id for row in read_rows(path, id_column="id")] == ["5", "b"]
    rows = read_rows(path)
    assert [row.id for row in rows] == ["5", "b"]
    assert rows.with_ids
    rows = read_texts(path)
    assert [row.id for row in rows] == ["0", "1"]
    assert not rows.with_ids
    path = parquet({"key": [10, 11], "text": ["x", "y"]})
    assert [row.id for row in read_rows(path, id_column="key")] == ["10", "11"]


def test_the_text_column_is_text_or_the_only_one_with_strings(tmp_path, parquet):
    assert texts(write(tmp_path, "a.jsonl", '{"n": 1, "body": "x"}\n')) == ["x"]
    assert texts(write(tmp_path, "a.csv", "body\nx\n")) == ["x"]
    assert texts(write(tmp_path, "b.csv", "key,body\n1,x\n"), id_column="key") == ["x"]
    assert texts(write(tmp_path, "c.csv", "text,body\n1,x\n"), text_column="body") == ["x"]
    assert texts(parquet({"n": [1], "body": ["x"]})) == ["x"]


def test_two_columns_without_a_name_are_an_error_that_lists_them(tmp_path, parquet):
    message = "which column holds the texts.*'title', 'body'"
    for path in (
        write(tmp_path, "a.csv", "title,body\nx,y\n"),
        write(tmp_path, "a.tsv", "title\tbody\nx\ty\n"),
        write(tmp_path, "a.jsonl", '{"title": "x", "body": "y"}\n'),
        parquet({"title": ["x"], "body": ["y"]}),
    ):
        with pytest.raises(InputError, match=message):
            texts(path)


@pytest.mark.parametrize("wanted", [{"text_column": "no"}, {"id_column": "no"}])
def test_a_column_that_is_not_there_is_named(tmp_path, parquet, wanted):
    for path in (write(tmp_path, "a.csv", "text,n\nx,y\n"), parquet({"text": ["x"], "n": ["y"]})):
        with pytest.raises(InputError, match=r"no column 'no'\. Columns: 'text', 'n'"):
            texts(path, **wanted)
    with pytest.raises(InputError, match=r"a\.jsonl:1: no field 'no'"):
        texts(write(tmp_path, "a.jsonl", '{"text": "x"}\n'), **wanted)
    with pytest.raises(InputError, match="no columns to name"):
        texts(write(tmp_path, "a.txt", "x\n"), **wanted)


BAD = [
    ("a.txt", b"ok\nb\xffd\nfine\n", 2, "not UTF-8: byte 0xff at position 1"),
    ("a.txt.gz", b"ok\nb\xffd\nfine\n", 2, "not UTF-8"),
    ("a.jsonl", b'"ok"\n{"text": \n"fine"\n', 2, "not JSON"),
    ("a.jsonl", b'"ok"\n\n[1]\n"fine"\n', 3, "expected an object or a string, got a list"),
    (
        "a.jsonl",
        b'{"text": "ok"}\n{"text": null}\n{"text": "fine"}\n',
        2,
        "'text' must be a string, got null",
    ),
    ("a.jsonl", b'{"text": "ok"}\n{"t": 1}\n{"text": "fine"}\n', 2, "no field 'text'; this row has 't'"),
    ("a.jsonl", b'"ok"\n' + b"[" * 100_000 + b'\n"fine"\n', 2, "not JSON"),
    ("a.jsonl", b'"ok"\n' + b"1" * 5_000 + b'\n"fine"\n', 2, "not JSON that can be read"),
    ("a.tsv", b"text\tn\nok\t1\nx\nfine\t3\n", 3, "1 fields, but the first line names 2 columns"),
    ("a.csv", b"text,n\nok,1\nx,2,3\nfine,3\n", 3, "3 fields, but the first line names 2 columns"),
    ("a.csv", b'text,n\nok,1\n"x"y,2\nfine,3\n', 3, "not CSV"),
    ("a.csv", b"text,n\nok,1\n\xc3(,2\nfine,3\n", 3, "not UTF-8"),
]


@pytest.mark.parametrize(("name", "data", "line", "reason"), BAD)
def test_a_bad_row_is_reported_with_its_line(tmp_path, name, data, line, reason):
    path = write(tmp_path, name, data)
    with pytest.raises(InputError) as caught:
        texts(path)
    assert str(caught.value).startswith(f"{path}:{line}: {reason}")


@pytest.mark.parametrize(("name", "data", "line", "reason"), BAD)
def test_an_error_closes_the_file(tmp_path, monkeypatch, name, data, line, reason):
    path, opened = write(tmp_path, name, data), []

    def recorded(self, *args, open=Path.open, **options):
        opened.append(open(self, *args, **options))
        return opened[-1]

    monkeypatch.setattr(Path, "open", recorded)
    rows = read_rows(path)
    with pytest.raises(InputError) as caught:  # its traceback is alive while the files are looked at
        list(rows)
    assert opened and all(file.closed for file in opened), caught.value


@pytest.mark.parametrize(("name", "data", "line", "reason"), BAD)
def test_bad_rows_can_be_skipped_and_are_counted(tmp_path, name, data, line, reason):
    path = write(tmp_path, name, data)
    rows = read_rows(path, skip_bad=True)
    assert list(rows) == [Row("0", "ok"), Row("2", "fine")]  # the bad row keeps its number
    assert rows.skipped == 1
    assert rows.bad[0].startswith(f"{path}:{line}: {reason}")


def test_a_missing_text_in_parquet_is_a_bad_row(parquet):
    path = parquet({"text": ["ok", None, "fine"]})
    with pytest.raises(InputError, match=r"rows\.parquet:row 1: 'text' must be a string, got null"):
        texts(path)
    assert texts(path, skip_bad=True) == ["ok", "fine"]


def test_parquet_needs_a_column_of_strings(parquet, tmp_path):
    with pytest.raises(InputError, match="column 'text' holds int64, not strings"):
        texts(parquet({"text": [1]}))
    with pytest.raises(InputError, match="not a parquet file"):
        texts(write(tmp_path, "b.parquet", "hello"))


def test_parquet_dictionary_and_large_strings_are_strings(parquet):
    pa = pytest.importorskip("pyarrow")
    assert texts(parquet({"text": pa.array(["a", "b", "a"]).dictionary_encode()})) == ["a", "b", "a"]
    assert texts(parquet({"text": pa.array(["a", "b"], pa.large_string())})) == ["a", "b"]


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"gemel\[parquet\]"):
        read_rows(write(tmp_path, "a.parquet", "x"))


def test_a_bad_integer_id_is_a_bad_row(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"id": 1.5, "text": "x"}\n')
    with pytest.raises(InputError, match="'id' must be a string or a whole number, got a number"):
        texts(path, id_column="id")


def test_a_line_over_the_limit_is_refused_or_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LINE_LIMIT", 10)
    path = write(tmp_path, "a.txt", "0123456789\n" + "x" * 35 + "\nend\n")
    with pytest.raises(InputError, match=r"a\.txt:2: the line is longer than 10 bytes"):
        texts(path)
    assert texts(path, skip_bad=True) == ["0123456789", "end"]


def test_an_open_quote_cannot_fill_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LINE_LIMIT", 100)
    path = write(tmp_path, "a.csv", 'text,n\n"open,1\n' + "y,2\n" * 100)
    with pytest.raises(InputError, match=r"a\.csv:2: the record is longer than 100 characters; is a quote"):
        texts(path)


def test_an_open_quote_at_the_end_is_a_bad_row(tmp_path):
    with pytest.raises(InputError, match=r"a\.csv:3: not CSV: unexpected end of data"):
        texts(write(tmp_path, "a.csv", 'text,n\nx,1\n"open,2\n'))


@pytest.mark.parametrize("data", [b"not gzip", gzip.compress(b"hello\n" * 1000)[:-12]])
def test_damaged_gzip_is_an_input_error(tmp_path, data):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="gzip data is damaged"):
        texts(path)


def test_names_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="no file at"):
        read_rows(tmp_path / "missing.txt")
    with pytest.raises(InputError, match="is a folder"):
        read_rows(tmp_path)
    with pytest.raises(InputError, match="cannot tell the format"):
        read_rows(write(tmp_path, "a.dat", "x"))
    with pytest.raises(InputError, match="unknown input format 'xml'"):
        read_rows(tmp_path / "a", format="xml")
    with pytest.raises(InputError, match=r"unpack the \.gz first"):
        read_rows(write(tmp_path, "a.parquet.gz", "x"))
    with pytest.raises(InputError, match="two columns 'text'"):
        texts(write(tmp_path, "a.csv", "text,text\nx,y\n"))


def test_the_format_can_be_given_for_any_name(tmp_path):
    assert texts(write(tmp_path, "a.dat", '{"text": "x"}\n'), format="jsonl") == ["x"]


def test_standard_input_is_read_as_the_given_format(monkeypatch):
    for data, format, expected in [(b"a\nb\n", None, ["a", "b"]), (b'{"text":"a"}\n', "jsonl", ["a"])]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        rows = read_rows("-", format=format)
        assert [row.text for row in rows] == expected
        assert rows.fraction is None
    with pytest.raises(InputError, match="parquet cannot be read from standard input"):
        read_rows("-", format="parquet")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    with pytest.raises(InputError, match="<stdin>:1: not UTF-8"):
        list(read_rows("-"))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_the_fraction_grows_from_zero_to_one(tmp_path, name):
    rows = read_rows(write(tmp_path, name, "".join(f"{n} {n * n}\n" for n in range(100_000))))
    assert rows.fraction == 0
    seen = [rows.fraction for _ in rows]
    assert seen == sorted(seen)
    assert 0.3 < seen[50_000] < 0.8
    assert rows.fraction == 1


def test_a_large_file_is_read_in_little_memory(tmp_path):
    path = write(tmp_path, "a.txt", b"x" * 99 + b"\n")
    path.write_bytes(path.read_bytes() * 50_000)  # 5 MB
    tracemalloc.start()
    count = sum(1 for _ in read_rows(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 50_000
    assert peak < 1_000_000


def test_a_damaged_page_of_parquet_is_refused(parquet):
    path = parquet({"text": [f"text {n} {n * 7919 % 1009}" for n in range(4000)]})
    data = bytearray(path.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"rows\.parquet: the parquet file is damaged"):
        texts(path)
    with pytest.raises(InputError, match=r"rows\.parquet: the parquet file is damaged"):
        list(RecordFile(path).records(["text"]))


def test_types_of_columns_are_those_of_every_row(tmp_path, parquet):
    rows = [{"a": 1, "b": None}] * 30 + [{"a": 2.5, "c": True}]
    path = write(tmp_path, "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert RecordFile(path).types() == {"a": {int, float}, "b": set(), "c": {bool}}
    assert RecordFile(path).columns() == ["a", "b"]
    assert RecordFile(write(tmp_path, "in.csv", "a,b\n1,2\n")).types() == {"a": {str}, "b": {str}}
    columns = {"a": [None, 1], "b": ["x", None], "c": [1.5, 2.0], "d": [True, None], "e": [[1], [2]]}
    types = {"a": {int}, "b": {str}, "c": {float}, "d": {bool}, "e": {list[int]}}
    assert RecordFile(parquet(columns)).types() == types


def test_an_empty_line_of_a_table_with_several_columns_is_not_a_row(tmp_path):
    for path in (
        write(tmp_path, "a.tsv", "text\tn\nx\t1\n\ny\t2\n"),
        write(tmp_path, "a.csv", "text,n\nx,1\n\ny,2\n"),
    ):
        assert list(read_rows(path)) == [Row("0", "x"), Row("1", "y")]
        assert [record.values for record in RecordFile(path).good_records(["n", "text"])] == [
            ("1", "x"),
            ("2", "y"),
        ]
    assert texts(write(tmp_path, "b.tsv", "text\nx\n\ny\n")) == ["x", "", "y"]


def test_a_file_of_bad_rows_has_no_columns_and_names_the_first(tmp_path):
    with pytest.raises(InputError, match=r"a\.jsonl:1: expected an object or a string, got a list"):
        RecordFile(write(tmp_path, "a.jsonl", "[1]\n[2]\n")).columns()
    with pytest.raises(InputError, match=r"b\.jsonl is empty: there are no rows to read"):
        RecordFile(write(tmp_path, "b.jsonl", "\n")).columns()
