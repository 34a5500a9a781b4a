"""What people do with their files: ids, encodings, bad rows, blank rows, empty files, typed columns, `--output`."""

import csv
import json
import re

import pytest

from gemel.cli.main import main
from tiny import tiny_bert

TEXTS = ["a man", "a woman", "hello there", "the cat sat", "on the mat"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMEL_MODEL", str(tiny_bert(tmp_path / "model")))
    monkeypatch.setenv("GEMEL_THREADS", "1")
    rows = [(f"t{n}", 8 + n, 0.5 * n, f"2024-03-0{n + 1}", f"0{n}", text) for n, text in enumerate(TEXTS)]
    write_csv(tmp_path / "tickets.csv", ("id", "size", "price", "day", "code", "text"), rows)
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "head.csv").write_text("id,text\n", encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text("[1]\n[2]\n", encoding="utf-8")
    (tmp_path / "queries.tsv").write_text("query\tpositive\na man 7\ta man 8\n", encoding="utf-8")
    (tmp_path / "french.csv").write_bytes("id,text\n1,Où est le café ?\n2,déjà vu\n".encode("cp1252"))
    return tmp_path


def write_csv(path, names, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


def run(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


# Ids


def test_encode_gives_the_ids_of_the_file(workspace, capsys):
    _, rows, _ = run(capsys, "encode", "tickets.csv")
    assert [row["id"] for row in rows] == ["t0", "t1", "t2", "t3", "t4"]
    assert "row" not in rows[0]
    _, rows, _ = run(capsys, "encode", "lines.txt")
    assert [(row["id"], row["row"]) for row in rows[:2]] == [("0", 0), ("1", 1)]


def test_pairs_and_search_give_the_ids_of_the_file(workspace, capsys):
    _, rows, _ = run(capsys, "pairs", "tickets.csv", "-k", "1")
    assert {rows[0]["left_id"], rows[0]["right_id"]} <= {"t0", "t1", "t2", "t3", "t4"}
    assert (rows[0]["left"], rows[0]["right"]) == (rows[0]["left_id"], rows[0]["right_id"])
    _, rows, _ = run(capsys, "search", "tickets.csv", "a man", "-k", "1")
    assert rows[0]["id"] == "t0"


def test_row_numbers_are_called_rows(workspace, capsys):
    _, rows, _ = run(capsys, "pairs", "lines.txt", "-k", "1")
    assert (rows[0]["left"], rows[0]["right"]) == (str(rows[0]["left_row"]), str(rows[0]["right_row"]))
    _, rows, _ = run(capsys, "search", "lines.txt", "hello there", "-k", "1")
    assert (rows[0]["id"], rows[0]["row"]) == ("2", 2)


def test_two_files_have_names_of_their_own(workspace, capsys):
    _, rows, _ = run(capsys, "pairs", "lines.txt", "--other", "tickets.csv", "-k", "1")
    assert "left_row" in rows[0]
    assert rows[0]["right_id"].startswith("t")


def test_tables_say_what_the_numbers_are(workspace, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for file, heading in (("lines.txt", "left row"), ("tickets.csv", "left id")):
        assert main(["pairs", file, "-k", "1"]) == 0
        assert heading in capsys.readouterr().out
    assert main(["search", "lines.txt", "a man", "-k", "1"]) == 0
    assert "row" in capsys.readouterr().out.split("\n")[1]


def test_dedupe_names_the_kept_row_by_its_id(workspace, capsys):
    write_csv(workspace / "twice.csv", ("id", "text"), [("x1", "a man"), ("x2", "a man")])
    (workspace / "twice.txt").write_text("a man\na man\n", encoding="utf-8")
    assert run(capsys, "dedupe", "twice.csv", "--exact-only", "-o", "one")[0] == 0
    assert run(capsys, "dedupe", "twice.txt", "--exact-only", "-o", "two")[0] == 0
    assert (workspace / "one/removed.csv").read_text().splitlines()[1] == "x2,a man,x1,exact,1.0"
    lines = (workspace / "two/removed.tsv").read_text().splitlines()
    assert lines == [
        "text\tduplicate_of\treason\tscore\tduplicate_of_row",
        "a man\t0\texact\t1.0\t0",
    ]


def test_cluster_writes_the_ids_of_the_file(workspace, capsys):
    assert run(capsys, "cluster", "tickets.csv", "--k", "2", "-o", "groups", "--map", "none")[0] == 0
    lines = (workspace / "groups/assignments.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == ["t0", "t1", "t2", "t3", "t4"]


# Encodings and bad rows


def test_the_error_names_the_likely_encoding_and_its_flag(workspace, capsys):
    for words in (("encode",), ("pairs",), ("dedupe", "-o", "clean"), ("index", "build", "notes")):
        code, _, err = run(capsys, *words, "french.csv")
        assert code == 2
        assert "french.csv:2: not UTF-8: byte 0xf9 at position 3. It looks like cp1252" in err
        assert err.endswith("read it with --encoding cp1252\n")


def test_a_file_is_read_in_its_encoding(workspace, capsys):
    code, rows, _ = run(capsys, "encode", "french.csv", "--encoding", "cp1252", "--keep-texts")
    assert code == 0
    assert [row["text"] for row in rows] == ["Où est le café ?", "déjà vu"]
    (workspace / "wide.txt").write_text("hello there\n", encoding="utf-16")
    assert "It looks like utf-16" in run(capsys, "search", "wide.txt", "a")[2]
    assert run(capsys, "search", "wide.txt", "a", "--encoding", "utf-16")[1][0]["text"] == "hello there"
    code, _, err = run(capsys, "pairs", "lines.txt", "--encoding", "klingon")
    assert code == 2
    assert "unknown encoding 'klingon'" in err


@pytest.mark.parametrize(
    "words",
    [
        ("encode",),
        ("pairs",),
        ("search",),
        ("cluster",),
        ("dedupe", "-o", "out"),
        ("negatives", "--queries", "queries.tsv", "--no-ratio", "-o", "out.tsv"),
        ("bench",),
        ("postprocess", "model", "--json", "-o", "out", "--data"),
        ("index", "build", "notes"),
    ],
)
class TestEveryVerb:
    def call(self, capsys, words, file, *more):
        return run(capsys, *words, file, *(("a man",) if words == ("search",) else ()), *more)

    def test_skipping_every_row_is_an_error(self, workspace, capsys, words):
        code, rows, err = self.call(capsys, words, "bad.jsonl", "--skip-bad")
        assert (code, rows) == (2, [])
        assert "bad.jsonl: no row can be used: 2 bad rows skipped, the first: bad.jsonl:1: " in err or (
            "bad.jsonl:1: expected an object" in err
        )

    def test_bad_rows_are_skipped_and_counted(self, workspace, capsys, words):
        if words == ("bench",):
            pytest.skip("it measures for a while")
        lines = [json.dumps({"text": f"a man {n}"}) for n in range(4)]
        (workspace / "some.jsonl").write_text("\n".join([*lines, "[1]"]), encoding="utf-8")
        code, _, err = self.call(capsys, words, "some.jsonl")
        assert code == 2
        assert "some.jsonl:5: expected an object" in err
        code, _, err = self.call(capsys, words, "some.jsonl", "--skip-bad")
        assert code == 0, err
        assert re.search(r"\b1 bad rows? skipped, the first: some\.jsonl:5: expected an object", err)

    @pytest.mark.parametrize("file", ["empty.txt", "head.csv"])
    def test_empty_input_is_one_error(self, workspace, capsys, words, file):
        code, rows, err = self.call(capsys, words, file)
        assert (code, rows) == (2, [])
        assert err.endswith(f": {file} is empty: there are no rows to read [GEM-302]\n")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["pairs", "dedupe"])
def test_blank_texts_do_not_pair_without_a_word(workspace, capsys, verb):
    (workspace / "blank.txt").write_text("a man\n\nhello there\n  \n", encoding="utf-8")
    code, _, err = run(capsys, verb, "blank.txt", *(("-o", "out") if verb == "dedupe" else ()))
    assert code == 0
    assert "warning: 2 texts are blank (row 1, 3)." in err


# Columns with numbers and dates


def test_numbers_and_dates_of_a_table_are_recognized(workspace, capsys):
    def found(where, *more):
        code, rows, err = run(capsys, "search", "tickets.csv", "a", "--where", where, *more)
        assert code == 0, err
        return sorted(row["id"] for row in rows), err.splitlines()[0]

    ids, said = found("size > 9")
    assert ids == ["t2", "t3", "t4"]  # as texts, '10' would be below '9'
    assert said == "tickets.csv: by their values these columns are size int (for a text: --field size:text)"
    assert found("day >= '2024-03-04' and price < 1.9")[0] == ["t3"]
    assert found("code = '03'")[0] == ["t3"]  # leading zeros: a code, not a number
    assert found("size = '8'", "--field", "size:text")[0] == ["t0"]


def test_ids_of_a_table_are_compared_as_numbers(workspace, capsys):
    write_csv(
        workspace / "n.csv", ("id", "text"), [(n, text) for n, text in zip((2, 9, 10), TEXTS, strict=False)]
    )
    _, rows, _ = run(capsys, "search", "n.csv", "a", "--where", "id > 3")
    assert sorted(row["id"] for row in rows) == ["10", "9"]


def test_an_index_keeps_numbers_and_dates_of_a_table(workspace, capsys):
    code, _, err = run(capsys, "index", "build", "notes", "tickets.csv")
    assert code == 0
    assert err.count("by their values these columns are size int, price float, day date ") == 1
    _, rows, _ = run(capsys, "index", "search", "notes", "a", "--where", "size > 9 and day < '2024-03-05'")
    assert sorted((row["id"], row["size"], row["day"]) for row in rows) == [
        ("t2", 10, "2024-03-03"),
        ("t3", 11, "2024-03-04"),
    ]
    code, _, err = run(capsys, "index", "search", "notes", "a", "--where", "code > 3")
    assert code == 2
    assert "Texts are ordered by characters, '10' before '9'" in err
    assert err.endswith("read the column as int: --field code:int\n")
    assert "ids are texts" in run(capsys, "index", "search", "notes", "a", "--where", "id > 3")[2]
    assert "write code = '3'" in run(capsys, "index", "search", "notes", "a", "--where", "code = 3")[2]


def test_a_column_with_one_other_value_is_text(workspace, capsys):
    write_csv(
        workspace / "n.csv", ("n", "m", "text"), [(1, "", "a man"), ("x", "", "a woman"), ("", "", "the cat")]
    )
    code, _, err = run(capsys, "index", "build", "notes", "n.csv")
    assert code == 0
    assert "by their values" not in err


# Fields of results


def test_index_search_shortens_fields_on_a_screen(workspace, capsys, monkeypatch):
    long = "very long words " * 200
    write_csv(
        workspace / "long.csv",
        ("id", "body", "year", "text"),
        [("a", long, 2020, "a man"), ("b", long, 2021, long)],
    )
    assert main(["index", "build", "notes", "long.csv"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    search = ["index", "search", "notes", "a man"]
    assert main(search) == 0
    out = capsys.readouterr().out
    assert "2020" in out
    assert "…" in out
    assert len(out.splitlines()) < 30
    assert main([*search, "--show", "body"]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("very long words") >= 400
    assert "2020" not in out
    assert main([*search, "--show", "all", "-k", "1"]) == 0
    assert "   year  2020" in capsys.readouterr().out
    assert main([*search, "--show", "yaer"]) == 2
    assert (
        "--show: no field 'yaer'. Did you mean 'year'? Known: body, year; or all" in capsys.readouterr().err
    )


def test_json_has_all_fields_unless_some_are_named(workspace, capsys):
    run(capsys, "index", "build", "notes", "tickets.csv")
    _, rows, _ = run(capsys, "index", "search", "notes", "a", "-k", "1")
    assert list(rows[0]) == ["rank", "score", "id", "size", "price", "day", "code", "text"]
    _, rows, _ = run(capsys, "index", "search", "notes", "a", "-k", "1", "--show", "day")
    assert list(rows[0]) == ["rank", "score", "id", "day", "text"]


# Words of the program


@pytest.mark.parametrize("verb", [("encode",), ("pairs",), ("index", "stats"), ("train",)])
def test_output_hints_at_o(workspace, capsys, verb):
    code, _, err = run(capsys, *verb, "lines.txt", "--output", "vectors")
    assert code == 2
    assert "A file or folder for the result is named with -o" in err


def test_warnings_name_flags(workspace, capsys, recwarn):
    (workspace / "long.txt").write_text("the cat sat on the mat " * 200 + "\na man\n", encoding="utf-8")
    code, _, err = run(capsys, "pairs", "long.txt", "--on-long", "error")
    assert code == 2
    assert "use --on-long truncate" in err
    assert "on_long" not in err
    code, _, err = run(capsys, "postprocess", "model", "--data", "lines.txt", "-o", "model")
    assert code == 2
    assert "overwrite it (--overwrite)" in err


def test_one_thing_is_not_plural(workspace, capsys):
    (workspace / "one.txt").write_text("a man\n", encoding="utf-8")
    assert run(capsys, "encode", "one.txt")[2].startswith("1 text, ")
    assert "1 query, 1 text, " in run(capsys, "search", "one.txt", "a man")[2]
    assert "1 pair, 5 compared" in run(capsys, "pairs", "one.txt", "--other", "lines.txt", "-k", "1")[2]
    assert "1 passage encoded" in run(capsys, "index", "build", "notes", "one.txt")[2]


def test_long_work_in_a_log_says_how_far_it_is(workspace, capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.PLAIN_S", 0.0)
    for words in (
        ("encode", "lines.txt", "-o", "vectors"),
        ("pairs", "lines.txt"),
        ("index", "build", "i", "lines.txt"),
    ):
        code, _, err = run(capsys, *words)
        assert code == 0
        assert "5 of 5 texts, " in err or "5 documents, " in err
        assert "\r" not in err
        assert "/s" not in run(capsys, *words, "--no-progress")[2].split("; now")[0]
