"""`gemel pairs` and `gemel search`, as typed."""

import json

import pytest
from tests.texts.test_search_and_pairs import TEXTS

import gemel
from gemel.cli.main import main
from tiny import tiny_bert
from tiny_late import tiny_late


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMEL_MODEL", str(tiny_bert(tmp_path / "model")))
    monkeypatch.setenv("GEMEL_THREADS", "1")
    lines = [f"n{number}\t{'en' if number % 2 else 'de'}\t{text}" for number, text in enumerate(TEXTS)]
    (tmp_path / "texts.tsv").write_text("\n".join(["name\tlang\ttext", *lines]) + "\n", encoding="utf-8")
    return tmp_path


def run(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_pairs_are_json_lines_when_piped(workspace, capsys):
    code, rows, stderr = run(capsys, "pairs", "texts.tsv", "--id-column", "name", "-k", "3", "--calibrate")
    assert code == 0
    assert len(rows) == 3
    assert list(rows[0]) == [
        "score",
        "percentile",
        "expected_false",
        "left",
        "right",
        "left_id",
        "right_id",
        "left_text",
        "right_text",
        "differences",
    ]
    assert stderr.endswith("3 pairs, 7,140 compared, complete\n")
    assert "random pairs are expected" in stderr


def test_labeled_pairs_choose_the_threshold(workspace, capsys):
    candidates = run(capsys, "pairs", "texts.tsv", "-k", "200", "-o", "candidates.tsv")
    assert candidates[0] == 0
    head, *lines = (workspace / "candidates.tsv").read_text(encoding="utf-8").splitlines()
    labeled = [f"{head}\tlabel", *(f"{line}\t{int(at < 100)}" for at, line in enumerate(lines))]
    (workspace / "labeled.tsv").write_text("\n".join(labeled) + "\n", encoding="utf-8")
    words = ("pairs", "texts.tsv", "--labels", "labeled.tsv", "--target-precision", "0.9")
    code, rows, stderr = run(capsys, *words)
    assert code == 0
    assert len(rows) == pytest.approx(111, abs=5)
    assert "of which 90% are correct (95 % interval " in stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labels", "texts.tsv"], "--labels FILE and --target-precision P belong together"),
        (["--target-precision", "0.9"], "--labels FILE and --target-precision P belong together"),
        (["--labels", "texts.tsv", "--target-precision", "0.9"], "needs a column 'left_text' or 'sentence1'"),
        (["--labels", "none.tsv", "--target-precision", "0.9"], "no data file none.tsv"),
    ],
)
def test_wrong_labels_are_refused(workspace, capsys, words, message):
    assert main(["pairs", "texts.tsv", *words]) == 2
    assert message in capsys.readouterr().err


APART = [
    "the ticket costs twelve euros",
    "the ticket costs twenty euros",
    "the dog chased the cat",
    "the cat chased the dog",
]


def test_printed_pairs_say_what_sets_them_apart(workspace, capsys):
    (workspace / "apart.txt").write_text("\n".join(APART) + "\n", encoding="utf-8")
    code, rows, _ = run(capsys, "pairs", "apart.txt", "--min-score", "-1")
    assert code == 0
    marks = {(row["left"], row["right"]): row["differences"] for row in rows}
    assert len(marks) == 6
    assert marks.pop(("0", "1")) == ["number"]
    assert marks.pop(("2", "3")) == ["swapped roles"]
    assert set(map(tuple, marks.values())) == {()}


def test_a_table_has_a_column_of_differences_only_if_it_shows_any(workspace, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    (workspace / "apart.txt").write_text("\n".join(APART) + "\n", encoding="utf-8")
    assert main(["pairs", "apart.txt"]) == 0
    table = capsys.readouterr().out
    assert "differences" in table and "swapped roles" in table
    (workspace / "alike.txt").write_text("\n".join(APART[::2]) + "\n", encoding="utf-8")
    assert main(["pairs", "alike.txt"]) == 0
    table = capsys.readouterr().out
    assert "right text" in table and "differences" not in table


def test_only_pairs_that_a_table_shows_are_checked(workspace, capsys, monkeypatch):
    checked = []
    monkeypatch.setattr("gemel.texts.explanation.differences", lambda *texts: checked.append(texts) or ())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["pairs", "texts.tsv", "-k", "150"]) == 0
    assert "50 more; write all of them with -o FILE" in capsys.readouterr().err
    assert len(checked) == 100
    assert main(["pairs", "texts.tsv", "-k", "150", "-o", "pairs.jsonl"]) == 0
    assert len(checked) == 100


def test_twenty_pairs_are_the_default(workspace, capsys):
    assert len(run(capsys, "pairs", "texts.tsv")[1]) == 20


def test_pairs_are_written_to_a_file_and_the_working_folder_is_removed(workspace, capsys):
    code, rows, stderr = run(capsys, "pairs", "texts.tsv", "--min-score", "0.6", "-o", "pairs.tsv")
    assert (code, rows) == (0, [])
    lines = (workspace / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "score\tleft\tright\tleft_row\tright_row\tleft_text\tright_text"
    scores = [float(line.split("\t")[0]) for line in lines[1:]]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= 0.6
    assert f"pairs.tsv: {len(scores):,} rows" in stderr
    assert not (workspace / ".pairs.tsv.pairs").exists()


def test_pairs_between_two_files(workspace, capsys):
    (workspace / "other.txt").write_text("a man is sleeping\n", encoding="utf-8")
    code, rows, stderr = run(capsys, "pairs", "texts.tsv", "--other", "other.txt", "-k", "2")
    assert code == 0
    assert [row["right_text"] for row in rows] == ["a man is sleeping"] * 2
    assert "120 compared" in stderr


def test_a_fast_student_is_created_once_and_its_recall_is_shown(workspace, capsys):
    code, rows, stderr = run(capsys, "pairs", "texts.tsv", "-k", "5", "--fast", "20")
    assert code == 0
    assert len(rows) == 5
    assert "not complete, recall about" in stderr
    assert len(list((workspace / "cache" / "models").iterdir())) == 1
    code, rows, stderr = run(capsys, "search", "texts.tsv", "a man", "-k", "2", "--fast", "20")
    assert code == 0
    assert "recall about" in stderr
    assert len(list((workspace / "cache" / "models").iterdir())) == 1


def test_search_answers_each_query(workspace, capsys):
    (workspace / "queries.txt").write_text("rain\nstock market\n", encoding="utf-8")
    words = (TEXTS[7], "--queries", "queries.txt", "-k", "2", "--id-column", "name")
    code, rows, stderr = run(capsys, "search", "texts.tsv", *words)
    assert code == 0
    assert [row["query"] for row in rows] == [TEXTS[7]] * 2 + ["rain"] * 2 + ["stock market"] * 2
    assert (rows[0]["id"], rows[0]["text"]) == ("n7", TEXTS[7])
    assert stderr == "3 queries, 120 texts, scored by cosine, every text compared\n"


def test_search_filters_rows_by_a_condition(workspace, capsys):
    code, rows, _ = run(capsys, "search", "texts.tsv", "rain", "--where", "lang = 'en'", "--hybrid")
    assert code == 0
    assert len(rows) == 10
    assert all(int(row["id"]) % 2 == 1 for row in rows)


def test_a_condition_uses_the_types_of_columns(workspace, capsys):
    years = [1999, 2001, 2024]
    lines = [json.dumps({"text": text, "year": year}) for text, year in zip(TEXTS, years, strict=False)]
    (workspace / "years.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows = [f"{year},{text}" for year, text in zip(years, TEXTS, strict=False)]
    (workspace / "years.csv").write_text("\n".join(["year,text", *rows]), encoding="utf-8")
    for file, more in (("years.jsonl", ()), ("years.csv", ("--field", "year:int"))):
        code, result, _ = run(capsys, "search", file, "a man", "--where", "year between 2000 and 2010", *more)
        assert code == 0
        assert [(row["id"], row["text"]) for row in result] == [("1", TEXTS[1])]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_a_condition_reads_only_the_columns_that_it_names(workspace, capsys):
    rows = [{"body": text, "year": 2000 + n} for n, text in enumerate(TEXTS[:40])]
    rows[1]["odd"] = 5
    rows[2]["odd"] = [1, {"x": None}]
    del rows[4]["year"]
    rows[38]["late"] = True
    write_lines(workspace / "a.jsonl", rows)

    def result(where, *more):
        code, hits, stderr = run(capsys, "search", "a.jsonl", "a man", "--where", where, *more)
        assert code == 0, stderr
        return sorted(int(hit["id"]) for hit in hits)

    assert result("year < 2006") == [0, 1, 2, 3, 5]
    assert result("year is null") == [4]
    assert result("late = true") == [38]
    assert result("id = '7' or not (year < 2039)") == [7, 39]
    assert result("year < 2002", "--field", "odd:int") == [0, 1]


def test_ids_and_texts_are_the_same_with_a_condition_and_without(workspace, capsys):
    write_lines(workspace / "a.jsonl", [{"body": text, "key": n, "n": n} for n, text in enumerate(TEXTS[:4])])
    words = ("search", "a.jsonl", "a man", "--id-column", "key")
    assert run(capsys, *words, "--where", "n >= 0")[1] == run(capsys, *words)[1]
    for bad in ({"body": "b", "key": None}, {"body": "b"}, {"body": "b", "key": 1.5}, {"body": 3, "key": 1}):
        write_lines(workspace / "a.jsonl", [{"body": "a", "key": "a", "n": 1}, bad])
        told = [run(capsys, *words, *more) for more in ((), ("--where", "n = 1"))]
        assert [(code, rows) for code, rows, _ in told] == [(2, [])] * 2
        assert all("a.jsonl:2: " in stderr for _, _, stderr in told)


def test_search_reranks_by_a_model_for_late_interaction(workspace, capsys):
    folder = str(tiny_late(workspace / "late"))
    code, rows, _ = run(
        capsys, "search", "texts.tsv", "rain", "-k", "3", "--rerank", folder, "--candidates", "9"
    )
    assert code == 0
    late = gemel.load_late(folder)
    scores = [float(late.scores(["rain"], [row["text"]], on_long="truncate")[0]) for row in rows]
    assert [row["score"] for row in rows] == pytest.approx(scores, abs=1e-4)
    assert scores == sorted(scores, reverse=True)


def test_search_reranks_by_a_cross_encoder(workspace, capsys):
    pytest.importorskip("transformers", reason="the tiny cross-encoder is made with transformers")
    from tiny_cross import tiny_cross

    folder = str(tiny_cross(workspace / "cross"))
    code, rows, stderr = run(
        capsys, "search", "texts.tsv", "rain", "-k", "3", "--rerank", folder, "--candidates", "9"
    )
    assert code == 0
    assert len(rows) == 3
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert "scored by cross" in stderr


@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        (("search", "texts.tsv"), "no query. Give QUERY or --queries FILE"),
        (("search", "texts.tsv", "a", "--where", "lang"), "after lang"),
        (
            ("search", "texts.tsv", "a", "--where", "color = 'red'"),
            "unknown field 'color'. Known: name, lang",
        ),
        (("search", "texts.tsv", "a", "--where", "lang = 'fr'"), "no row meets lang = 'fr'"),
        (("search", "-", "a", "--where", "lang = 'fr'"), "--where needs a file"),
        (("search", "texts.tsv", "a", "--field", "name:int"), "there is no --where"),
        (("search", "texts.tsv", "a", "--where", "name > 3", "--field", "name:int"), "which is no int"),
        (("search", "texts.tsv", "a", "--where", "name = ''", "--field", "nmae"), "no column 'nmae'"),
        (("pairs", "texts.tsv", "--min-score", "0.9", "--fast", "2"), "a student needs k"),
        (("pairs", "texts.tsv", "-o", "pairs.xyz"), "cannot tell from its name"),
        (("pairs", "texts.tsv", "--text-column", "color"), "no column 'color'"),
        (("pairs", "nowhere.tsv"), "no file at nowhere.tsv"),
    ],
)
def test_a_wrong_request_is_one_line(workspace, capsys, words, stderr):
    code = main(list(words))
    error = capsys.readouterr().err
    assert code == 2
    assert stderr in error
    assert len(error.splitlines()) == 1


def test_a_terminal_gets_a_table(workspace, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["pairs", "texts.tsv", "-k", "150", "--calibrate"]) == 0
    captured = capsys.readouterr()
    assert "expected" in captured.out
    assert "50 more; write all of them with -o FILE" in captured.err
    assert main(["pairs", "texts.tsv", "--min-score", "1.5"]) == 0
    assert "nothing found" in capsys.readouterr().err
