"""Paraphrase mining and translation matching: by hand, and against scikit-learn."""

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.evaluation.baselines import BM25, TfIdf
from gemel.evaluation.statistics import compare
from gemel.evaluation.task import load_task
from gemel.evaluation.tasks.mining import curve
from gemel.vectors.pairs import similar_pairs

VECTORS = {"a": [1, 0], "a2": [1, 0.1], "b": [0, 1], "b2": [0.1, 1], "c": [1, 1]}


class Known:
    """The vector of each text is in a table."""

    dim = 2

    def __init__(self, table=None):
        self.table = table or VECTORS

    def encode(self, texts):
        return np.array([self.table[text] for text in texts], dtype=np.float32)


def write_pairs(folder, *rows):
    path = folder / "pairs.tsv"
    path.write_text("\n".join(["label\tsentence1\tsentence2", *rows]) + "\n")
    return path


def task_of(name, path, **settings):
    (task,) = load_task(name, path, **{"rounds": 20, **settings})
    return task


def test_precision_and_recall_by_hand():
    cuts = curve(np.array([0.9, 0.8, 0.7, 0.6], np.float32), np.array([True, False, True, False]), gold=3)
    np.testing.assert_allclose(cuts.precision, [1, 1 / 2, 2 / 3, 1 / 2])
    np.testing.assert_allclose(cuts.recall, [1 / 3, 1 / 3, 2 / 3, 2 / 3])
    np.testing.assert_allclose(cuts.of_gold, [1, 2 / 3, 0])
    np.testing.assert_allclose(cuts.f1, [1 / 2, 2 / 5, 2 / 3, 4 / 7])


def test_equal_scores_are_one_step():
    cuts = curve(np.array([0.9, 0.9, 0.9], np.float32), np.array([True, False, False]), gold=1)
    assert cuts.precision.tolist() == [pytest.approx(1 / 3)]
    assert cuts.of_gold.tolist() == [pytest.approx(1 / 3)]


def test_no_pairs_make_an_empty_curve():
    cuts = curve(np.empty(0, np.float32), np.empty(0, np.bool_), gold=2)
    assert len(cuts.f1) == 0
    assert cuts.of_gold.tolist() == [0, 0]


def test_mining_by_hand(tmp_path):
    path = write_pairs(tmp_path, "1\ta\ta2", "1\tb\tb2", "0\ta\tc", "1\ta\ta")
    scores = task_of("mining", path).score(Known())
    assert scores.values["average-precision"].value == pytest.approx(100)
    assert scores.values["f1"].value == pytest.approx(100)
    assert scores.values["threshold"].value == pytest.approx(1 / np.sqrt(1.01), abs=1e-6)
    assert scores.items == 2
    assert (scores.protocol["texts"], scores.protocol["pairs_compared"]) == (5, 10)
    assert scores.protocol["complete"] is True


def test_average_precision_is_that_of_scikit_learn_over_all_pairs(tmp_path):
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    table = {f"t{i}": random.normal(size=4) for i in range(20)}
    pairs = {tuple(sorted(random.choice(20, 2, replace=False).tolist())) for _ in range(25)}
    rows = [f"1\tt{i}\tt{j}" for i, j in sorted(pairs)]
    task = task_of("mining", write_pairs(tmp_path, *rows))
    scores = task.score(Known(table))
    result = similar_pairs(Known(table).encode(task.texts), k=10_000)
    gold = [pair in task.gold for pair in zip(result.left.tolist(), result.right.tolist(), strict=True)]
    assert scores.values["average-precision"].value == pytest.approx(
        100 * sklearn.average_precision_score(gold, result.score)
    )
    precision, recall, _ = sklearn.precision_recall_curve(gold, result.score)
    best = max(2 * p * r / (p + r) for p, r in zip(precision, recall, strict=True) if p + r)
    assert scores.values["f1"].value == pytest.approx(100 * best)


def test_pairs_that_were_not_mined_count_as_missed(tmp_path):
    path = write_pairs(tmp_path, "1\ta\ta2", "1\ta\tb")
    scores = task_of("mining", path, k=1).score(Known())
    assert scores.values["average-precision"].value == 50
    nothing = task_of("mining", write_pairs(tmp_path, "1\ta\tb", "0\ta\ta2"), k=1).score(Known())
    assert nothing.values["f1"].value == 0
    assert nothing.values["threshold"].value is None
    assert nothing.values["threshold"].note == "no gold pair was mined"


def test_chains_count_if_requested(tmp_path):
    path = write_pairs(tmp_path, "1\ta\ta2", "1\ta2\tc")
    assert task_of("mining", path).gold == ((0, 1), (1, 2))
    assert task_of("mining", path, closed=True).gold == ((0, 1), (0, 2), (1, 2))


def test_two_models_are_compared_gold_pair_by_gold_pair(tmp_path):
    task = task_of("mining", write_pairs(tmp_path, "1\ta\tb", "1\ta\ta2", "1\tb\tb2"))
    values = task.score(Known()).sample.values
    assert values[0] < values[1] == values[2] == 1  # in the order of the file, not of the scores
    assert compare(task.score(Known()).sample, task.score(Known()).sample).difference == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0\ta\tb"], "no pair of two texts with label 1"),
        (["2\ta\tb"], ":2: label must be 0 or 1, got 2"),
        (["x\ta\tb"], ":2: 'x' is not a number"),
    ],
)
def test_bad_pairs_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load_task("mining", write_pairs(tmp_path, *rows))


def test_test_files_of_a_folder_win_over_their_train_files(tmp_path):
    for name in ("x-train", "x-test", "y-dev"):
        (tmp_path / f"{name}.tsv").write_text("label\tsentence1\tsentence2\n1\ta\tb\n")
    (tmp_path / "other.tsv").write_text("text\na\n")
    assert [task.dataset for task in load_task("mining", tmp_path)] == ["x-test", "y-dev"]
    with pytest.raises(InputError, match="no data at"):
        load_task("mining", tmp_path / "none")


def test_a_retriever_without_vectors_is_refused(tmp_path):
    with pytest.raises(InputError, match="task 'mining' compares vectors, but bm25 only ranks"):
        task_of("mining", write_pairs(tmp_path, "1\ta\tb")).score(BM25())


def test_tfidf_learns_from_the_texts_of_the_task(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    path = write_pairs(tmp_path, "1\tred fox\tfox red", "0\tblue sea\tgreen hill")
    assert task_of("mining", path).score(TfIdf()).values["average-precision"].value == 100


def write_languages(folder, *rows, header="en\tde\tfr"):
    path = folder / "parallel.tsv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


# Two sentences; German is in order, French is the other way round.
WORDS = {"one": [1, 0], "two": [0, 1], "eins": [1, 0.2], "zwei": [0.2, 1], "un": [0, 1], "deux": [1, 0]}


def test_translation_by_hand(tmp_path):
    path = write_languages(tmp_path, "one\teins\tun", "two\tzwei\tdeux")
    scores = task_of("translation", path).score(Known(WORDS))
    assert {name: score.value for name, score in scores.values.items()} == {
        "accuracy": 50,
        "en-de": 100,
        "en-fr": 0,
    }
    german, french = scores.parts
    assert (german.dataset, german.values["en-to-de"].value) == ("parallel en-de", 100)
    assert (french.values["en-to-fr"].value, french.values["fr-to-en"].value) == (0, 0)


def test_one_pair_of_languages_is_a_result_without_parts(tmp_path):
    path = write_languages(tmp_path, "one\teins\tun", "two\tzwei\tdeux")
    scores = task_of("translation", path, source="de", target="en").score(Known(WORDS))
    assert (scores.dataset, scores.parts, scores.values["accuracy"].value) == ("parallel de-en", (), 100)
    other = task_of("translation", path, target="en")
    assert (other.source, other.targets) == ("de", ("en",))


def test_a_repeated_sentence_counts_as_a_match(tmp_path):
    path = write_languages(tmp_path, "one\teins", "one\teins", header="en\tde")
    assert task_of("translation", path).score(Known(WORDS)).values["accuracy"].value == 100


@pytest.mark.parametrize(
    ("header", "settings", "message"),
    [
        ("id\ten", {}, "at least two columns named by language codes; it has id, en"),
        ("en\tde", {"source": "fr"}, "needs a column 'fr'; it has en, de"),
        ("en\tde", {"source": "en", "target": "en"}, "source and target are both 'en'"),
    ],
)
def test_languages_that_are_not_there_are_refused(tmp_path, header, settings, message):
    with pytest.raises(InputError, match=message):
        load_task("translation", write_languages(tmp_path, "a\tb", header=header), **settings)
