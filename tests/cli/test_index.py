"""`gemel index`, as typed: what of a file becomes a document, and what of a document is shown."""

import io
import json
import os
import sys
from datetime import UTC, date, datetime

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")

import gemel
from gemel.cli.main import main
from tiny import tiny_bert
from tiny_late import tiny_late
from tiny_sparse import tiny_sparse


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture
def workspace(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMEL_MODEL", model)
    monkeypatch.setenv("GEMEL_THREADS", "1")
    return tmp_path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(capsys, *words):
    code = main(["index", *words])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def refused(capsys, *words):
    code, rows, message = run(capsys, *words)
    assert (code, rows) == (2, [])
    return message.splitlines()[-1]


def typed_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# What is shown.


def test_a_field_never_replaces_a_column_of_the_result(workspace, capsys):
    fields = {"query": "q", "rank": 7, "score": 99, "cosine": 5.5, "passages": 8, "field_rank": 1}
    write_lines(workspace / "a.jsonl", [{"id": "a", "body": "a man", "text": "other", **fields}])
    run(capsys, "build", "notes", "a.jsonl", "--text-column", "body")
    _, (row,), _ = run(capsys, "search", "notes", "a man", "--hybrid")
    assert (row["rank"], row["text"], row["id"]) == (1, "a man", "a")
    assert row["cosine"] == pytest.approx(1, abs=1e-5)
    assert 0 < row["score"] < 1
    shown = ("field_query", "field_field_rank", "field_rank", "field_score", "field_cosine", "field_text")
    assert [row[name] for name in shown] == ["q", 7, 1, 99, 5.5, "other"]
    assert row["passages"] == 8
    _, (row, _), _ = run(capsys, "search", "notes", "a man", "the rain")
    assert (row["query"], row["field_query"]) == ("a man", "q")
    _, (row,), _ = run(capsys, "get", "notes", "a")
    assert (row["text"], row["field_text"], row["passages"], row["field_passages"]) == (
        "a man",
        "other",
        1,
        8,
    )
    assert row["score"] == 99


# Rows of JSON lines with different keys.


def test_a_key_that_comes_late_is_a_field_and_one_that_is_missing_is_null(workspace, capsys):
    rows = [{"text": f"a man {n}", "id": n} for n in range(30)]
    rows[3]["author"] = "x"
    rows[25] |= {"author": "y", "year": 2020}
    write_lines(workspace / "a.jsonl", rows)
    assert run(capsys, "build", "notes", "a.jsonl")[0] == 0
    with gemel.open_index("notes") as index:
        assert index.fields == {"author": "text", "year": "int"}
        shown = [dict(each.fields) for each in index.get(["3", "25", "0"])]
    assert shown == [
        {"author": "x", "year": None},
        {"author": "y", "year": 2020},
        {"author": None, "year": None},
    ]


def test_a_named_field_may_come_late_too(workspace, capsys):
    write_lines(
        workspace / "a.jsonl", [*({"text": f"a man {n}"} for n in range(30)), {"text": "b", "year": 1}]
    )
    assert run(capsys, "build", "notes", "a.jsonl", "--field", "year:int")[0] == 0
    with gemel.open_index("notes") as index:
        assert index.count("year = 1").documents == 1
    assert "no column 'month'" in refused(capsys, "add", "notes", "a.jsonl", "--field", "month")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "b"}, "a.jsonl:2: no field 'text'; this row has 'id'"),
        ({"text": "b"}, "a.jsonl:2: no field 'id'; this row has 'text'"),
        ({"text": None, "id": "b"}, "a.jsonl:2: 'text' must be a string, got null"),
        ({"text": "b", "id": None}, "a.jsonl:2: 'id' must be a string or a whole number, got null"),
    ],
)
def test_a_row_without_its_text_or_id_is_refused_with_file_and_line(workspace, capsys, row, message):
    write_lines(workspace / "a.jsonl", [{"text": "a", "id": "a"}, row])
    assert message in refused(capsys, "build", "notes", "a.jsonl")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", 1.5), ("int", True), ("float", "x"), ("bool", 1), ("float", [2]), ("int", "x")],
)
def test_a_value_of_another_type_is_refused_with_file_and_line(workspace, capsys, kind, value):
    write_lines(workspace / "a.jsonl", [{"text": "a", "n": None}, {"text": "b", "n": value}])
    message = refused(capsys, "build", "notes", "a.jsonl", "--field", f"n:{kind}")
    assert f"a.jsonl:2: n is {value!r}, which is no {kind}" in message


def test_whole_numbers_of_a_float_column_fit_an_int_field(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"text": "a", "n": 2.0}, {"text": "b", "n": 3}])
    assert run(capsys, "build", "notes", "a.jsonl", "--field", "n:int")[0] == 0
    with gemel.open_index("notes") as index:
        assert index.count("n in (2, 3)").documents == 2


# Which column is the text.


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_the_text_is_the_only_column_with_strings(workspace, capsys, name):
    rows = [{"id": n, "body": f"a man {n}", "year": 2000 + n} for n in range(3)]
    if name == "a.csv":
        (workspace / name).write_text("id,body\n" + "".join(f"{n},a man {n}\n" for n in range(3)))
    elif name == "a.jsonl":
        write_lines(workspace / name, rows)
    else:
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.Table.from_pylist(rows), workspace / name)
    assert run(capsys, "build", "notes", name)[0] == 0
    with gemel.open_index("notes") as index:
        assert index.get(["2"])[0].text == "a man 2"
        assert index.fields == ({} if name == "a.csv" else {"year": "int"})


def test_two_columns_with_strings_require_a_choice(workspace, capsys):
    (workspace / "a.csv").write_text("title,body\na,b\n")
    assert "which column holds the texts?" in refused(capsys, "build", "notes", "a.csv")


# Files of bytes that are no text.


def test_standard_input_is_read_as_files_are(workspace, capsys, monkeypatch):
    run(capsys, "create", "notes")
    typed_input(monkeypatch, b"\xef\xbb\xbfa man\r\n\nthe\rrain\n")
    assert run(capsys, "add", "notes", "-")[0] == 0
    with gemel.open_index("notes") as index:
        assert sorted(hit.text for hit in index.search("a", 9)) == ["a man", "the\rrain"]
    typed_input(monkeypatch, b"a dog\n\xff\n")
    assert "<stdin>:2: not UTF-8" in refused(capsys, "add", "notes", "-")


def test_a_file_of_ids_is_read_as_files_are(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"text": each, "id": each} for each in ("a", "b", "c")])
    run(capsys, "build", "notes", "a.jsonl")
    (workspace / "ids.txt").write_bytes(b"\xef\xbb\xbfa\r\n\nb\n")
    assert "2 documents deleted" in run(capsys, "delete", "notes", "--ids-file", "ids.txt")[2]
    (workspace / "ids.txt").write_bytes(b"c\n\xff\n")
    assert "ids.txt:2: not UTF-8" in refused(capsys, "delete", "notes", "--ids-file", "ids.txt")
    assert "notes is a folder, not a file" in refused(capsys, "delete", "notes", "--ids-file", "notes")
    with gemel.open_index("notes") as index:
        assert len(index) == 1


# Another model.


def test_a_migration_keeps_the_settings_of_the_index(workspace, capsys, model):
    other = str(tiny_bert(workspace / "other", seed=3, width=48))
    run(capsys, "create", "notes", "--dim", "16", "--precision", "int8", "--passage-tokens", "12")
    write_lines(workspace / "a.jsonl", [{"text": "a man is playing a guitar in the rain. " * 3}])
    run(capsys, "add", "notes", "a.jsonl")

    def settings():
        with gemel.open_index("notes") as index:
            return index.dim, index._state.binding.fingerprint.precision, index.stats().passage_tokens

    assert "nothing to do" in run(capsys, "migrate", "notes", "--model", model)[2]
    assert run(capsys, "migrate", "notes", "--model", other)[0] == 0
    assert settings() == (16, "int8", 12)
    flags = ("--dim", "40", "--precision", "float32", "--passage-tokens", "20")
    assert run(capsys, "migrate", "notes", "--model", other, *flags)[0] == 0
    assert settings() == (40, "float32", 20)
    assert "Give a --dim of at most that" in refused(capsys, "migrate", "notes", "--model", model)


# Lists and times.


def test_lists_and_dates_of_a_file_keep_their_types(workspace, capsys):
    rows = [
        {
            "id": "a",
            "text": "a man",
            "tags": ["x", "y"],
            "sizes": [1, 2.5],
            "day": "2024-02-29",
            "more": {"a": ["b"]},
        },
        {"id": "b", "text": "a cat", "tags": [], "mixed": ["x", 1]},
    ]
    write_lines(workspace / "a.jsonl", rows)
    assert run(capsys, "build", "notes", "a.jsonl")[0] == 0
    code, result, _ = run(capsys, "get", "notes", "a", "b")
    assert code == 0
    assert (result[0]["tags"], result[0]["sizes"], result[1]["tags"]) == (["x", "y"], [1.0, 2.5], [])
    assert (result[0]["more"], result[1]["mixed"]) == ('{"a": ["b"]}', '["x", 1]')
    assert [
        each["id"] for each in run(capsys, "search", "notes", "man", "--where", "tags contains 'y'")[1]
    ] == ["a"]
    assert run(capsys, "build", "typed", "a.jsonl", "--field", "day:date", "--field", "tags:texts")[0] == 0
    with gemel.open_index("typed", create=False) as index:
        assert index.fields == {"day": "date", "tags": "texts"}
    assert len(run(capsys, "search", "typed", "man", "--where", "day < '2025-01-01'")[1]) == 1
    assert run(capsys, "get", "typed", "a")[1][0]["day"] == "2024-02-29"
    write_lines(workspace / "b.jsonl", [{"id": "c", "text": "x", "day": "yesterday"}])
    message = refused(capsys, "add", "typed", "b.jsonl", "--field", "day")
    assert "b.jsonl:1: day is 'yesterday', which is no date" in message


def test_lists_and_times_of_parquet_go_in_and_out(workspace, capsys):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    moment = datetime(2024, 2, 29, 12)
    columns = {
        "id": ["a", "b"],
        "text": ["a man", "a cat"],
        "tags": [["x"], None],
        "day": [date(2024, 2, 29), None],
        "at": pa.array([moment, None], pa.timestamp("ns")),
        "days": [[date(2024, 2, 29)], []],
    }
    pq.write_table(pa.table(columns), "a.parquet")
    assert run(capsys, "build", "notes", "a.parquet")[0] == 0
    with gemel.open_index("notes", create=False) as index:
        assert index.fields == {"tags": "texts", "day": "date", "at": "datetime", "days": "dates"}
        assert index.get(["a"])[0].fields["at"] == moment.replace(tzinfo=UTC)
    row = run(capsys, "get", "notes", "a")[1][0]
    assert (row["day"], row["at"], row["days"]) == ("2024-02-29", "2024-02-29T12:00:00+00:00", ["2024-02-29"])
    assert run(capsys, "get", "notes", "a", "-o", "out.parquet")[0] == 0
    assert pq.read_table("out.parquet")["day"].to_pylist() == [date(2024, 2, 29)]
    assert run(capsys, "get", "notes", "a", "-o", "out.csv")[0] == 0
    shown = (workspace / "out.csv").read_text()
    assert '"[""x""]",2024-02-29' in shown
    assert run(capsys, "build", "again", "out.csv", "--field", "tags:texts", "--field", "day:date")[0] == 0
    assert run(capsys, "get", "again", "a")[1][0]["tags"] == ["x"]


# Words and recall.


def test_sparse_and_late_vectors_are_stored_searched_and_removed(workspace, capsys):
    sparse, late = str(tiny_sparse(workspace / "splade")), str(tiny_late(workspace / "colbert"))
    (workspace / "a.txt").write_text("a man plays a guitar\nthe dog runs\n", encoding="utf-8")
    _, (made,), _ = run(capsys, "create", "notes", "--sparse", sparse, "--mode", "sparse", "--json")
    assert (made["sparse"], made["mode"]) == ("splade", "sparse")
    run(capsys, "add", "notes", "a.txt")
    _, rows, _ = run(capsys, "search", "notes", "the dog")
    assert len(rows) == 2 and "cosine" not in rows[0] and rows[0]["score"] > 1
    _, (row,), _ = run(
        capsys, "search", "notes", "the dog", "-k", "1", "--mode", "hybrid", "--weights", "dense=2"
    )
    assert row["score"] <= 3 / 61 and "cosine" in row
    assert "no late vectors. It can be searched by: dense, sparse" in refused(
        capsys, "search", "notes", "the dog", "--mode", "late"
    )
    assert "--weights takes names and numbers" in refused(
        capsys, "search", "notes", "a", "--weights", "dense"
    )
    assert "exclude each other" in refused(
        capsys, "migrate", "notes", "--sparse", sparse, "--without", "sparse"
    )
    run(capsys, "migrate", "notes", "--late", late, "--late-form", "int8", "--without", "sparse")
    _, (facts,), _ = run(capsys, "stats", "notes")
    assert facts["kinds"]["late"]["form"] == "int8" and facts["mode"] == "hybrid"
    _, rows, _ = run(capsys, "search", "notes", "the dog", "--rerank", late)
    assert len(rows) == 2
    run(capsys, "create", "words", "--no-dense", "--sparse", sparse)
    assert gemel.open_index("words").dim == 0
    run(capsys, "build", "both", "a.txt", "--late", late)
    _, rows, _ = run(capsys, "search", "both", "the dog", "--mode", "late")
    assert len(rows) == 2


def test_words_are_rebuilt_with_stemming(workspace, capsys):
    pytest.importorskip("Stemmer", reason="needs the extra stemming")
    write_lines(
        workspace / "a.jsonl", [{"id": "a", "text": "two connections"}, {"id": "b", "text": "東京タワー"}]
    )
    assert run(capsys, "build", "notes", "a.jsonl")[0] == 0
    assert run(capsys, "search", "notes", "東京", "--hybrid", "-k", "1")[1][0]["id"] == "b"
    code, rows, _ = run(capsys, "words", "notes", "--stemming", "english", "--json")
    assert (code, rows) == (0, [{"location": "notes", "documents": 2, "stemming": "english"}])
    assert run(capsys, "stats", "notes")[1][0]["words"] == "version 2, stemming english"
    assert run(capsys, "search", "notes", "connected", "--hybrid", "-k", "1")[1][0]["id"] == "a"
    assert "nothing to do" in run(capsys, "words", "notes", "--stemming", "english")[2]
    assert run(capsys, "create", "other", "--stemming", "english")[0] == 0
    assert "no stemming for 'klingon'" in refused(capsys, "create", "third", "--stemming", "klingon")


def test_a_recall_can_be_requested(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"id": "a", "text": "a man"}])
    assert run(capsys, "build", "notes", "a.jsonl")[0] == 0
    assert len(run(capsys, "search", "notes", "man", "--recall", "0.99")[1]) == 1


def test_documents_are_shown_by_condition_and_page_by_page(workspace, capsys):
    rows = [{"id": f"d{n}", "text": f"a man {n}", "year": 2000 + n} for n in range(6)]
    write_lines(workspace / "a.jsonl", rows)
    run(capsys, "build", "notes", "a.jsonl")
    shown = run(capsys, "get", "notes", "--where", "year >= 2002", "--limit", "2")[1]
    assert [row["id"] for row in shown] == ["d2", "d3"]
    rest = run(capsys, "get", "notes", "--where", "year >= 2002", "--after", "d3", "--vectors")[1]
    assert [row["id"] for row in rest] == ["d4", "d5"]
    assert (len(rest[0]["vectors"]), rest[0]["passages"]) == (1, 1)
    assert "not both" in refused(capsys, "get", "notes", "d1", "--limit", "3")


def test_an_export_is_a_file_of_the_documents(workspace, capsys):
    rows = [{"id": f"d{n}", "text": f"a man {n}", "year": 2000 + n} for n in range(3)]
    write_lines(workspace / "a.jsonl", rows)
    run(capsys, "build", "notes", "a.jsonl")
    code, (facts,), _ = run(capsys, "export", "notes", "-o", "out.jsonl", "--where", "year > 2000", "--json")
    assert (code, facts["documents"]) == (0, 2)
    assert [json.loads(line) for line in (workspace / "out.jsonl").read_text().splitlines()] == rows[1:]
    assert "Known endings" in refused(capsys, "export", "notes", "-o", "out.doc")


def test_search_by_example_leaves_the_examples_out(workspace, capsys):
    texts = ["a man plays a guitar", "a man plays", "two dogs run", "the market fell"]
    write_lines(workspace / "a.jsonl", [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)])
    run(capsys, "build", "notes", "a.jsonl")
    with gemel.open_index("notes", create=False) as index:
        like = [hit.id for hit in index.more_like(["d0"], unlike=["d2"], texts=["a man"])]
        diverse = [hit.id for hit in index.search("a man", 3, diversity=0.8)]
    shown = run(capsys, "search", "notes", "a man", "--like", "d0", "--unlike", "d2")[1]
    assert [row["id"] for row in shown] == like
    assert "query" not in shown[0]
    assert len(run(capsys, "search", "notes", "--like", "d0")[1]) == 3
    assert run(capsys, "search", "notes", "--like", "d0", "--min-score", "1.5")[1] == []
    shown = run(capsys, "search", "notes", "a man", "-k", "3", "--diversity", "0.8")[1]
    assert [row["id"] for row in shown] == diverse
    assert "without --hybrid" in refused(capsys, "search", "notes", "--like", "d0", "--hybrid")
    assert "no example" in refused(capsys, "search", "notes", "--unlike", "d0")
    assert "'zz' is not in the index" in refused(capsys, "search", "notes", "--like", "zz")


def test_facets_are_counted_with_a_condition(workspace, capsys):
    rows = [{"id": f"d{n}", "text": f"a man {n}", "lang": "en" if n % 3 else "de", "n": n} for n in range(6)]
    write_lines(workspace / "a.jsonl", rows)
    run(capsys, "build", "notes", "a.jsonl")
    assert run(capsys, "facets", "notes", "lang", "--where", "n > 0")[1] == [
        {"value": "en", "documents": 4},
        {"value": "de", "documents": 1},
    ]
    assert len(run(capsys, "facets", "notes", "n", "--limit", "2")[1]) == 2
    assert "unknown field" in refused(capsys, "facets", "notes", "lnag")


def test_fields_are_set_and_cleared_without_the_texts(workspace, capsys):
    rows = [{"id": f"d{n}", "text": f"a man {n}", "lang": "en", "year": n, "tags": ["x"]} for n in range(3)]
    write_lines(workspace / "a.jsonl", rows)
    run(capsys, "build", "notes", "a.jsonl")
    changes = ("--set", "year=2024", "--set", 'tags=["a", "b"]', "--clear", "lang")
    assert run(capsys, "update", "notes", "--where", "year >= 1", *changes, "--json")[1] == [
        {"location": "notes", "changed": 2, "unchanged": 0}
    ]
    row = run(capsys, "get", "notes", "d1")[1][0]
    assert (row["year"], row["tags"], row["lang"], row["text"]) == (2024, ["a", "b"], None, "a man 1")
    assert run(capsys, "update", "notes", "d0", "--set", "lang=a=b")[0] == 0
    assert run(capsys, "get", "notes", "d0")[1][0]["lang"] == "a=b"
    assert "no int" in refused(capsys, "update", "notes", "d0", "--set", "year=x")
    assert "nothing to change" in refused(capsys, "update", "notes", "d0")
    assert "one of the two" in refused(capsys, "update", "notes", "--set", "year=1")
    assert "NAME=VALUE" in refused(capsys, "update", "notes", "d0", "--set", "year")
    assert "unknown field" in refused(capsys, "update", "notes", "d0", "--set", "yaer=1")


def test_a_search_by_groups_shows_the_best_of_each_value(workspace, capsys):
    rows = [{"id": f"d{n}", "text": f"a man {n}", "lang": "en" if n < 5 else "de"} for n in range(8)]
    write_lines(workspace / "a.jsonl", rows)
    run(capsys, "build", "notes", "a.jsonl")
    found = run(capsys, "search", "notes", "a man", "--group-by", "lang")[1]
    assert sorted(row["lang"] for row in found) == ["de", "en"]
    found = run(capsys, "search", "notes", "--like", "d0", "--group-by", "lang", "--per-group", "2")[1]
    assert sorted(row["lang"] for row in found) == ["de", "de", "en", "en"]
    assert "unknown field" in refused(capsys, "search", "notes", "a", "--group-by", "x")


def test_indexes_are_listed(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"id": "a", "text": "a man"}])
    run(capsys, "build", "notes", "a.jsonl")
    run(capsys, "create", "deep/er/empty")
    rows = run(capsys, "ls")[1]
    assert [(row["location"], row["documents"], row["problem"]) for row in rows] == [
        ("deep/er/empty", 0, None),
        ("notes", 1, None),
    ]
    assert run(capsys, "ls", "deep")[1][0]["location"] == "deep/er/empty"
    assert "there is no folder" in refused(capsys, "ls", "nowhere")


def test_a_snapshot_is_written_and_restored(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"id": "a", "text": "a man", "year": 3}])
    run(capsys, "build", "notes", "a.jsonl")
    (done,) = run(capsys, "snapshot", "notes", "backups/1", "--json")[1]
    assert (done["location"], done["documents"]) == ("backups/1", 1)
    run(capsys, "drop", "notes", "--yes")
    assert run(capsys, "restore", "backups/1", "notes", "--json")[1][0]["documents"] == 1
    assert run(capsys, "search", "notes", "a man")[1][0]["year"] == 3
    assert [row["location"] for row in run(capsys, "ls")[1]] == ["backups/1", "notes"]
    assert "nothing is overwritten" in refused(capsys, "restore", "backups/1", "notes")


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv", "npy", "export"])
def test_vectors_of_a_file_are_stored_as_they_are(workspace, capsys, model, form):
    texts = ["a man plays", "two dogs run", "the rain"]
    vectors = 2 * gemel.load(model).encode(texts, threads=1)
    rows = [
        {
            "id": f"d{n}",
            "text": text,
            "year": n,
            "v": vectors[n].tolist() if form != "export" else [vectors[n].tolist()],
        }
        for n, text in enumerate(texts)
    ]
    name, column = f"a.{form}", "v"
    if form == "parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), workspace / name)
    elif form == "csv":
        lines = ["id,text,year,v", *(f'{row["id"]},{row["text"]},{row["year"]},"{row["v"]}"' for row in rows)]
        (workspace / name).write_text("\n".join(lines), encoding="utf-8")
    else:
        name = "a.jsonl"
        write_lines(
            workspace / name, [{k: v for k, v in row.items() if k != "v" or form != "npy"} for row in rows]
        )
    if form == "npy":
        column = "v.npy"
        np.save(workspace / column, vectors)
    done = run(capsys, "build", "notes", name, "--vector-column", column, "--json")[1][0]
    assert (done["added"], done["encoded"]) == (3, 0)
    with gemel.open_index("notes", create=False) as index:
        assert index.fields == {"year": "int"}
        for each in index.documents(vectors=True):
            assert np.allclose(each.vectors[0], vectors[int(each.id[1])] / 2, atol=1e-6)
    assert run(capsys, "add", "notes", name, "--vector-column", column, "--json")[1][0]["unchanged"] == 3


def test_vectors_of_another_model_are_refused(workspace, capsys):
    dim = 32
    write_lines(
        workspace / "a.jsonl",
        [{"id": "a", "text": "a man", "u": 3, "v": [1.0] * dim, "w": [[1.0] * dim] * 2}],
    )
    run(capsys, "create", "notes")
    add = ("add", "notes", "a.jsonl", "--vector-column")
    assert "is not the one that the model of the index notes makes of it" in refused(capsys, *add, "v")
    assert "has 2 vectors, one per passage" in refused(capsys, *add, "w")
    assert "which is no vector: a list of numbers" in refused(capsys, *add, "u")
    assert "'vv'" in refused(capsys, *add, "vv")
    assert "is the column of the texts" in refused(capsys, *add, "text")
    assert "cannot be read" in refused(capsys, *add, "no.npy")
    np.save(workspace / "two.npy", np.ones((2, dim)))
    assert "has the shape (2, 32), but a.jsonl has 1 row" in refused(capsys, *add, "two.npy")
    write_lines(workspace / "b.jsonl", [{"id": "a", "text": "a man", "v": [1.0] * 5}])
    assert "5 dimensions but the index has 32" in refused(
        capsys, "add", "notes", "b.jsonl", "--vector-column", "v"
    )
    assert "needs a file" in refused(capsys, "add", "notes", "-", "--vector-column", "v")
    with gemel.open_index("notes", create=False) as index:
        assert len(index) == 0


def test_a_field_is_removed(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"id": "a", "text": "a man", "year": 1, "lang": "en"}])
    run(capsys, "build", "notes", "a.jsonl")
    assert run(capsys, "remove-field", "notes", "year", "--json")[1] == [
        {"location": "notes", "field": "year", "documents": 1}
    ]
    assert "year" not in run(capsys, "get", "notes", "a")[1][0]
    write_lines(workspace / "b.jsonl", [{"id": "a", "text": "a man", "lang": "en"}])
    assert run(capsys, "add", "notes", "b.jsonl", "--json")[1][0]["unchanged"] == 1
    assert "unknown field 'year'" in refused(capsys, "remove-field", "notes", "year")


def test_an_index_is_dropped_after_a_question(workspace, capsys, monkeypatch):
    write_lines(workspace / "a.jsonl", [{"id": "a", "text": "a man"}])
    run(capsys, "build", "notes", "a.jsonl")
    typed_input(monkeypatch, b"yes\n")
    assert "notes has 1 document. To delete it without a question: --yes" in refused(capsys, "drop", "notes")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    typed_input(monkeypatch, b"no\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert run(capsys, "drop", "notes")[0] == 1
    assert run(capsys, "get", "notes", "a")[0] == 0
    typed_input(monkeypatch, b"yes\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert run(capsys, "drop", "notes", "--json")[1] == [{"location": "notes", "deleted": True}]
    assert "no index at notes" in refused(capsys, "drop", "notes")
    run(capsys, "build", "notes", "a.jsonl")
    assert run(capsys, "drop", "notes", "--yes")[0] == 0
    assert "there is no index at notes" in refused(capsys, "drop", "notes", "--yes")


# Folders of files.


@pytest.fixture
def documents(workspace):
    for package in ("pypdf", "selectolax", "docx", "markdown_it"):
        pytest.importorskip(package, reason="the extra 'files' is not installed")
    from document_samples import folder_of_documents

    return folder_of_documents(workspace / "notes")


def test_a_folder_becomes_an_index_beside_it(documents, workspace, capsys):
    code, _, message = run(capsys, "build", "notes/")
    assert (code, message) == (
        0,
        "notes.index: 5 files (0 unchanged), 11 added, 0 replaced, 0 removed, 11 passages encoded\n",
    )
    _, (row,), _ = run(capsys, "search", "notes.index", "The third page.", "-k", "1", "--where", "page = 3")
    shown = {name: row[name] for name in row if name not in ("rank", "score")}
    assert shown == {
        "id": "notes/scan.pdf#page=3",
        "path": "notes/scan.pdf",
        "title": "scan",
        "page": 3,
        "heading": None,
        "section": 2,
        "text": "The third page.",
    }
    (documents / "page.html").unlink()
    (documents / "guide.md").write_text("# Guide\nNew.\n", encoding="utf-8")
    (documents / "bad.pdf").write_bytes(b"no PDF")
    code, (facts,), message = run(capsys, "build", "notes", "--json")
    assert (code, facts["location"], facts["added"], facts["removed"]) == (0, "notes.index", 1, 6)
    assert message == "skipped: notes/bad.pdf: damaged, or no .pdf file (Stream has ended unexpectedly)\n"
    assert facts["skipped"][0]["path"] == "notes/bad.pdf"


def test_the_source_of_an_index_may_be_named_first_or_last(documents, workspace, capsys):
    for words in (["notes", "one"], ["two", "notes"], ["one", "notes"], ["notes/guide.md", "three"]):
        code, _, _ = run(capsys, "build", *words, "--glob", "**/*.{md,txt}")
        assert code == 0
    assert [len(gemel.open_index(each)) for each in ("one", "two", "three")] == [5, 5, 4]
    (workspace / "rows.txt").write_text("a text\n", encoding="utf-8")
    assert "can both be read" in refused(capsys, "build", "notes", "rows.txt")
    assert "nothing to index" in refused(capsys, "build", "nothing")
    assert "matches '*.pdx'" in refused(capsys, "build", "notes", "four", "--glob", "*.pdx")
    assert not (workspace / "four").exists()


def test_files_that_are_gone_are_deleted_with_sync_only(documents, workspace, capsys):
    run(capsys, "build", "notes")
    (documents / "page.html").unlink()
    _, (facts,), _ = run(capsys, "add", "notes.index", "notes", "--json")
    assert (facts["files_unchanged"], facts["removed"]) == (4, 0)
    _, (facts,), _ = run(capsys, "add", "notes.index", "notes", "--json", "--sync")
    assert (facts["files_removed"], facts["removed"]) == (1, 2)


def test_flags_of_rows_and_of_files_do_not_mix(documents, workspace, capsys):
    run(capsys, "build", "notes")
    assert "document files, not rows" in refused(capsys, "add", "notes.index", "notes", "--no-fields")
    (workspace / "rows.txt").write_text("a text\n", encoding="utf-8")
    message = refused(capsys, "add", "notes.index", "rows.txt", "--glob", "*.md")
    assert "--glob is for a folder" in message


def test_a_folder_in_which_nothing_can_be_read_is_an_error(workspace, capsys):
    (workspace / "bad").mkdir()
    (workspace / "bad" / "a.txt").write_bytes(b"\xff\xfe\xff")
    assert "none of 1 file could be read" in refused(capsys, "build", "bad")


def test_a_folder_can_be_indexed_with_late_chunks_and_a_mode(documents, workspace, capsys):
    code, _, _ = run(capsys, "build", "notes", "--late-chunks", "--passage-tokens", "16", "--mode", "hybrid")
    _, (facts,), _ = run(capsys, "stats", "notes.index")
    assert (code, facts["late_chunks"], facts["passage_tokens"]) == (0, True, 16)
    assert gemel.open_index("notes.index").mode == "hybrid"
    assert run(capsys, "build", "notes")[0] == 0  # settings of the index stay
    assert run(capsys, "verify", "notes.index", "--json")[0] == 0
    _, (facts,), _ = run(
        capsys, "migrate", "notes.index", "--model", workspace_model(), "--no-late-chunks", "--json"
    )
    assert facts["encoded"] > 0
    assert run(capsys, "stats", "notes.index")[1][0]["late_chunks"] is False
    run(capsys, "create", "empty", "--late-chunks")
    assert run(capsys, "stats", "empty")[1][0]["late_chunks"] is True


def workspace_model():
    return os.environ["GEMEL_MODEL"]
