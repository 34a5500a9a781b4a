"""Duplicates: exact by folding, near by vectors, no chains, contradictions, and `gemel dedupe` as typed."""

import csv
import json

import numpy as np
import pytest

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.head import ClassificationHead
from gemel.checkpoint.write import write_checkpoint
from gemel.cli.main import main
from gemel.errors import InputError
from gemel.groups.dedupe import folded
from gemel.groups.dedupe_files import highlighted
from tiny import tiny_bert


def on_a_circle(*degrees):
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


# Exact


def test_case_space_and_unicode_forms_make_no_other_text():
    texts = ["Caf\u00e9  au lait", "cafe\u0301 au lait", "CAFÉ au\tlait ", "tea"]
    result = gemel.dedupe(texts, min_score=None)
    assert result.kept.tolist() == [0, 3]
    assert result.removed.tolist() == [1, 2]
    assert result.duplicate_of.tolist() == [0, 0]
    assert result.exact.all()
    assert result.score.tolist() == [1, 1]


def test_case_and_whitespace_rules_can_be_chosen():
    texts = ["Tea", "tea", "tea ", "te\u0301a", "téa"]
    strict = gemel.dedupe(texts, min_score=None, ignore_case=False, ignore_space=False)
    assert strict.kept.tolist() == [0, 1, 2, 3]
    assert gemel.dedupe(texts, min_score=None, ignore_case=False).kept.tolist() == [0, 1, 3]
    assert folded("  A  b ") == "a b"


# Near


def test_chains_are_not_duplicates():
    texts = ["a", "b", "c", "d"]
    result = gemel.dedupe(
        texts, vectors=on_a_circle(0, 20, 40, 90), min_score=0.9
    )  # cos 20° = 0.94, cos 40° = 0.77
    assert result.kept.tolist() == [0, 2, 3]
    assert result.duplicate_of.tolist() in ([0], [2])  # b is as near to a as to c
    assert gemel.dedupe(
        texts, vectors=on_a_circle(0, 20, 40, 90), min_score=0.9, keep="central"
    ).kept.tolist() == [
        1,
        3,
    ]


@pytest.mark.parametrize("keep", ["first", "longest", "central"])
def test_no_two_kept_texts_are_near_and_each_removed_one_is_near_to_its_own(keep):
    rows = np.random.default_rng(0).normal(size=(300, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    texts = [f"text {'x' * (number % 7)}{number}" for number in range(300)]
    result = gemel.dedupe(texts, vectors=rows, min_score=0.9, keep=keep)
    scores = rows @ rows.T
    among = scores[np.ix_(result.kept, result.kept)][np.triu_indices(len(result.kept), 1)]
    assert among.max() < 0.9
    assert (scores[result.removed, result.duplicate_of] >= 0.9 - 1e-6).all()
    assert (
        scores[result.removed][:, result.kept].max(axis=1) <= result.score + 1e-6
    ).all()  # the nearest kept one
    assert sorted([*result.kept.tolist(), *result.removed.tolist()]) == list(range(300))
    assert sum(len(group.removed) for group in result.groups()) == len(result.removed)


def test_the_longest_is_kept_if_requested():
    texts = ["a cat", "a cat sleeps here", "a  cat  sleeps  here"]
    rows = on_a_circle(0, 5, 5)
    result = gemel.dedupe(texts, vectors=rows, min_score=0.9, keep="longest")
    assert result.kept.tolist() == [2]
    assert result.exact.tolist() == [False, True]


def test_central_and_longest_do_not_depend_on_the_order():
    random = np.random.default_rng(1)
    rows = random.normal(size=(120, 3))
    texts = [f"text {number:03}" for number in range(120)]
    order = random.permutation(120)
    for keep in ("central", "longest"):
        one = gemel.dedupe(texts, vectors=rows, min_score=0.95, keep=keep)
        other = gemel.dedupe([texts[at] for at in order], vectors=rows[order], min_score=0.95, keep=keep)
        assert set(one.kept.tolist()) == set(order[other.kept].tolist())


@pytest.mark.parametrize("keep", ["central", "longest"])
def test_among_exact_copies_the_same_one_is_kept_in_any_order(keep):
    texts = ["Hello There", "hello there", "HELLO there"]
    kept = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        given = [texts[at] for at in order]
        kept.add(given[int(gemel.dedupe(given, min_score=None, keep=keep, ignore_case=True).kept[0])])
    assert len(kept) == 1


def test_exact_copies_follow_their_text():
    texts = ["a", "b", "B", "c"]
    result = gemel.dedupe(texts, vectors=on_a_circle(0, 5, 5, 90), min_score=0.9)
    assert result.kept.tolist() == [0, 3]
    assert result.removed.tolist() == [1, 2]
    assert result.duplicate_of.tolist() == [0, 0]
    assert result.exact.tolist() == [False, False]  # not the same as the kept one
    assert result.score[1] == pytest.approx(np.cos(np.radians(5)))


class Fake:
    """Counts the texts that it encodes."""

    dim = 2

    def __init__(self):
        self.seen = []

    def encode(self, texts):
        self.seen += texts
        return on_a_circle(*(30 * len(text) for text in texts)).astype(np.float32)


def test_exact_copies_are_not_encoded():
    fake = Fake()
    result = gemel.dedupe(["a", "A", "bb", "a"], model=fake, min_score=0.99)
    assert fake.seen == ["a", "bb"]
    assert result.kept.tolist() == [0, 2]


def test_no_texts_have_no_duplicates():
    result = gemel.dedupe([], min_score=None)
    assert result.summary() == "0 texts: 0 kept, 0 removed (0 exact, 0 near duplicates)"
    assert gemel.dedupe([], vectors=np.empty((0, 3))).groups() == []


# A model with a classification head


@pytest.fixture
def contradicting(tmp_path):
    """A head that predicts a contradiction wherever two vectors differ slightly."""
    plain = read_checkpoint(tiny_bert(tmp_path / "plain"))
    weight = np.zeros((3, 32), np.float32)
    weight[2] = 1e4
    head = ClassificationHead(
        "|u-v|", weight, np.array([1, 0, 0], np.float32), ("entailment", "neutral", "contradiction")
    )
    return gemel.load(write_checkpoint(plain, tmp_path / "kept", relation=head))


def test_texts_that_contradict_are_no_duplicates(contradicting, tmp_path):
    texts = ["the cat is sleeping", "the cat is not sleeping", "The cat is  sleeping"]
    plain = gemel.dedupe(texts, model=gemel.load(tmp_path / "plain"), min_score=-1)
    assert plain.kept.tolist() == [0]
    result = gemel.dedupe(texts, model=contradicting, min_score=-1)
    assert result.kept.tolist() == [0, 1]
    assert result.removed.tolist() == [2]
    (pair,) = result.spared
    assert (pair.left, pair.right) == (0, 1)
    assert pair.probability > 0.5
    assert "1 near pairs not joined because they contradict each other" in result.summary()


# Bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "near duplicates need a model or vectors"),
        ({"vectors": np.eye(3)}, "2 texts but 3 vectors"),
        ({"vectors": np.eye(2), "min_score": float("nan")}, "min_score must be a finite number"),
        ({"vectors": np.eye(2), "keep": "best"}, "keep must be one of first, longest, central, got 'best'"),
        ({"vectors": [[0, 1], [np.nan, 1]]}, "row 1 has NaN"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(given, message):
    with pytest.raises(InputError, match=message):
        gemel.dedupe(["a", "b"], **given)


def test_a_threshold_that_joins_everything_is_refused():
    rows = np.abs(np.random.default_rng(0).normal(size=(2000, 4)))
    with pytest.raises(InputError, match=r"pairs of 2,000 texts are as similar as min_score=0: too many"):
        gemel.dedupe([str(number) for number in range(2000)], vectors=rows, min_score=0, memory="1MB")


def test_vectors_of_zeros_are_like_nothing():
    assert gemel.dedupe(["a", "b"], vectors=np.zeros((2, 3))).kept.tolist() == [0, 1]


# As typed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_bert(tmp_path / "model")
    rows = [
        "id,title,body",
        'x1,Hello,"a cat, and\na dog"',
        'x2,hello,"A cat, and a dog"',
        "x3,Market,it fell",
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path


def run(capsys, *words):
    code = main(["dedupe", *words, "--model", "model", "--threads", "1"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_rows_keep_all_columns_and_removed_ones_say_why(folder, capsys):
    columns = ("--text-column", "title", "--text-column", "body", "--id-column", "id")
    code, out, err = run(capsys, "t.csv", *columns, "--exact-only", "-o", "clean")
    assert code == 0, err
    counts = {"texts": 3, "kept": 2, "removed": 1, "exact": 1, "spared": 0, "skipped": 0}
    assert json.loads(out) == {"out": "clean", **counts}
    with (folder / "clean" / "kept.csv").open(encoding="utf-8", newline="") as file:
        kept = list(csv.DictReader(file))
    assert [row["id"] for row in kept] == ["x1", "x3"]
    assert kept[0]["body"] == "a cat, and\na dog"
    with (folder / "clean" / "removed.csv").open(encoding="utf-8", newline="") as file:
        (removed,) = csv.DictReader(file)
    assert (removed["id"], removed["duplicate_of"], removed["reason"]) == ("x2", "x1", "exact")
    report = json.loads((folder / "clean" / "report.json").read_text(encoding="utf-8"))
    assert report["duplicates"][0]["duplicate_of_id"] == "x1"
    assert "Duplicates in t.csv" in (folder / "clean" / "report.html").read_text(encoding="utf-8")
    assert "3 texts: 2 kept, 1 removed (1 exact, 0 near duplicates)" in err


def test_near_duplicates_of_a_text_file(folder, capsys):
    (folder / "t.txt").write_text("the cat sleeps\nthe cat sleeps.\nTHE CAT sleeps\n", encoding="utf-8")
    code, _, err = run(capsys, "t.txt", "--min-score", "0.3", "-o", "clean")
    assert code == 0, err
    assert (folder / "clean" / "kept.txt").read_text(encoding="utf-8") == "the cat sleeps\n"
    lines = (folder / "clean" / "removed.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "text\tduplicate_of\treason\tscore\tduplicate_of_row"
    assert [line.split("\t")[2] for line in lines[1:]] == ["near", "exact"]


def test_objects_with_different_fields_stay_as_they_are(folder, capsys):
    rows = [{"text": "a", "n": 1}, {"text": "b", "tags": ["x"]}, {"text": "A", "score": 5}]
    text = "\n".join(json.dumps(row) for row in rows)
    (folder / "t.jsonl").write_text(text + "\n\n", encoding="utf-8")
    code, _, err = run(capsys, "t.jsonl", "--exact-only", "-o", "clean")
    assert code == 0, err
    kept = (folder / "clean" / "kept.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in kept] == rows[:2]
    (removed,) = (folder / "clean" / "removed.jsonl").read_text(encoding="utf-8").splitlines()
    why = {"duplicate_of": "0", "duplicate_of_row": 0, "reason": "exact", "dedupe_score": 1.0}
    assert json.loads(removed) == {**rows[2], **why}


def test_an_empty_list_of_removed_rows_is_a_table(folder, capsys):
    code, *_ = run(capsys, "t.csv", "--text-column", "id", "--exact-only", "-o", "clean")
    assert code == 0
    content = (folder / "clean" / "removed.csv").read_text(encoding="utf-8")
    assert content == "id,title,body,duplicate_of,reason,score,duplicate_of_row\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("t.csv", "-o", "c"), "which column holds the texts?"),
        (("t.csv", "--text-column", "nope", "-o", "c"), "no column 'nope'"),
        (("missing.csv", "-o", "c"), "no file at missing.csv"),
        (("t.csv", "--text-column", "body"), "Missing option '-o'"),
    ],
)
def test_a_wrong_command_exits_2_with_one_line(folder, capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_report_marks_words_and_escapes_all(folder, capsys):
    assert highlighted("the old cat", "The new cat") == "The <mark>new</mark> cat"
    evil = "<script>alert(1)</script>"
    (folder / "t.txt").write_text(f"{evil}\n{evil.upper()}\n", encoding="utf-8")
    assert run(capsys, "t.txt", "--exact-only", "-o", "clean")[0] == 0
    page = (folder / "clean" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_terminal_sees_the_largest_groups(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    code, out, _ = run(capsys, "t.csv", "--text-column", "title", "--exact-only", "-o", "clean")
    assert code == 0
    assert "for example" in out
