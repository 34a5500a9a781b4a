"""Linear probes: folds, measures and fits by hand and against scikit-learn; the protocol from files to scores."""

import builtins
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse

import gemel
from gemel.errors import InputError, MissingExtra
from gemel.evaluation.baselines import TfIdf
from gemel.evaluation.metrics import LabelSample, accuracy, f1, macro_f1
from gemel.evaluation.probe import GRID, _predict, compact, pair_features, probe_dev, probe_folds, probe_inner
from gemel.evaluation.statistics import deal_folds
from gemel.evaluation.task import load_task
from gemel.evaluation.tasks.transfer import ORDER, SETS, Split, Transfer, load

DATA = Path(os.environ.get("GEMEL_DATA", Path(__file__).parents[3] / "shared" / "data"))
RANDOM = np.random.default_rng(0)


class Letters:
    """A vector counts the letters a and b, so that texts of many a are easy to tell from those of many b."""

    dim = 2

    def encode(self, texts):
        return np.array([[text.count("a"), text.count("b")] for text in texts], np.float32).reshape(-1, 2)


def two_classes(rows, dim=4, gap=1.5, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    vectors = random.normal(size=(rows, dim)) + gap * labels[:, None]
    return vectors.astype(np.float32), labels.astype(np.int64)


def write(path, header, rows):
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def easy_rows(count):
    return [("1", "a" * (3 + n % 4)) if n % 2 else ("0", "b" * (3 + n % 4)) for n in range(count)]


# folds


def test_folds_are_equal_and_so_is_each_label_s_share():
    labels = ["x"] * 30 + ["y"] * 10
    fold = deal_folds(labels, 5, seed=1)
    assert np.bincount(fold).tolist() == [8] * 5
    assert np.bincount(fold[:30]).tolist() == [6] * 5
    assert fold.tolist() == deal_folds(labels, 5, seed=1).tolist()
    assert fold.tolist() != deal_folds(labels, 5, seed=2).tolist()


@pytest.mark.parametrize(("rows", "folds"), [(3, 4), (10, 1)])
def test_folds_that_cannot_be_dealt_are_refused(rows, folds):
    with pytest.raises(InputError, match=f"{rows} rows cannot make {folds} folds"):
        deal_folds(["a"] * rows, folds, 0)


# measures


def test_f1_by_hand():
    gold, predicted = np.array([1, 1, 1, 0]), np.array([1, 0, 1, 1])
    assert f1(gold, predicted) == pytest.approx(2 / 3)
    assert f1(gold, predicted, positive=0) == 0
    assert macro_f1(gold, predicted) == pytest.approx(1 / 3)
    assert accuracy(gold, predicted) == 0.5


def test_undefined_metrics_are_none():
    zeros = np.zeros(3, np.int64)
    assert f1(zeros, zeros) is None
    assert macro_f1(zeros[:0], zeros[:0]) is None
    assert accuracy(zeros[:0], zeros[:0]) is None


def test_measures_equal_those_of_scikit_learn():
    from sklearn.metrics import f1_score

    gold, predicted = RANDOM.integers(0, 4, 100), RANDOM.integers(0, 4, 100)
    assert macro_f1(gold, predicted) == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert f1(gold, predicted, 2) == pytest.approx(f1_score(gold == 2, predicted == 2))


def test_a_sample_counts_repeated_rows_again():
    sample = LabelSample(np.array([1, 0]), np.array([1, 1]), "accuracy")
    assert sample.items == 2
    assert sample.number(np.array([0, 0, 1])) == pytest.approx(2 / 3)


# probes


def test_pair_features_do_not_depend_on_the_order():
    left, right = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, -1.0]], np.float32)
    assert pair_features(left, right).tolist() == [[2, 3, 3, -2]]
    assert (pair_features(left, right) == pair_features(right, left)).all()


def test_a_probe_equals_a_grid_search_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, PredefinedSplit

    vectors, labels = two_classes(120, gap=0.5)
    test, _ = two_classes(40, gap=0.5, seed=1)
    result = probe_inner(vectors, labels, test, folds=5, seed=0)
    search = GridSearchCV(
        LogisticRegression(tol=1e-5, max_iter=1000),
        {"C": list(GRID)},
        cv=PredefinedSplit(deal_folds(labels, 5, 0)),
    )
    search.fit(vectors, labels)
    assert result.chosen == (search.best_params_["C"],)
    assert (
        result.predicted == search.predict(test)
    ).mean() >= 0.975  # the two fits stop at slightly different points


def test_folds_predict_rows_that_their_fit_did_not_see():
    vectors, labels = two_classes(100, gap=0.0)  # nothing to learn: a fit that saw its rows would beat chance
    wide = np.concatenate([vectors, RANDOM.normal(size=(100, 60)).astype(np.float32)], axis=1)
    result = probe_folds(wide, labels, folds=5, seed=0)
    assert len(result.chosen) == 5
    assert (result.predicted == labels).mean() < 0.65


def test_dev_rows_choose_the_penalty():
    vectors, labels = two_classes(80)
    dev, dev_labels = two_classes(40, seed=1)
    test, gold = two_classes(40, seed=2)
    result = probe_dev(vectors, labels, dev, dev_labels, test)
    assert result.chosen[0] in GRID
    assert len(result.predicted) == 40
    assert (result.predicted == gold).mean() > 0.9


def test_small_numbers_are_fitted_to_the_end():
    vectors, labels = two_classes(200, gap=1.0)
    small = vectors / 30  # about the numbers of a vector of length 1 with a thousand dimensions
    from sklearn.linear_model import LogisticRegression

    exact = LogisticRegression(C=32.0, tol=1e-9, max_iter=10_000).fit(small, labels).predict(small)
    path = _predict(small, labels, small, GRID)
    assert (path[-1] == exact).mean() >= 0.995


def test_several_classes_are_distinguished():
    labels = np.repeat(np.arange(3), 20)
    vectors = np.eye(3, dtype=np.float32)[labels]
    assert (probe_folds(vectors, labels, folds=4, seed=0).predicted == labels).all()


def test_a_training_part_of_one_label_predicts_that_label():
    labels = np.array([0, 0, 0, 0, 0, 1])
    result = probe_folds(np.eye(6, dtype=np.float32), labels, folds=2, seed=0)
    assert result.predicted.shape == (6,)


# the task


def test_easy_texts_are_all_right_and_the_protocol_says_how():
    rows = easy_rows(40)
    task = Transfer("easy", Split([label for label, _ in rows], [text for _, text in rows]), folds=4)
    scores = task.score(Letters())
    assert scores.values["accuracy"].value == 100
    assert (scores.values["accuracy"].low, scores.values["accuracy"].high) == (100, 100)
    assert scores.sample.items == scores.items == 40
    assert scores.protocol["tested"] == "all rows, 4 folds"
    assert scores.protocol["grid"] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0]
    assert len(scores.protocol["chosen"]) == 4
    assert scores.unit == "texts"


def test_pairs_have_an_f1_too(tmp_path):
    pairs = [("1", "aa", "aa") if n % 3 else ("0", "aa", "bb") for n in range(30)]
    write(tmp_path / "mrpc-train.tsv", "label\tsentence1\tsentence2", pairs)
    write(tmp_path / "mrpc-test.tsv", "label\tsentence1\tsentence2", pairs[:9])
    (task,) = load(tmp_path, folds=3)
    scores = task.score(Letters())
    assert scores.values["accuracy"].value == scores.values["f1"].value == 100
    assert (scores.items, scores.unit) == (9, "pairs")
    assert scores.protocol["features"] == "|u - v|, u * v"
    assert scores.protocol["chosen_on"] == "3 folds of the training rows"


def test_sets_are_found_by_name_below_the_folder(tmp_path):
    for name in ("mr", "sst2-train", "sst2-dev", "sst2-test"):
        (tmp_path / "deep").mkdir(exist_ok=True)
        write(tmp_path / "deep" / f"{name}.tsv", "label\tsentence", easy_rows(20))
    tasks = load_task("transfer", tmp_path, folds=2)
    assert [task.dataset for task in tasks] == ["mr", "sst2"]
    assert tasks[1].score(Letters()).protocol["chosen_on"] == "dev"
    assert [task.dataset for task in load(tmp_path, only="sst2")] == ["sst2"]
    assert [task.dataset for task in load(tmp_path, only="sst2,mr")] == ["sst2", "mr"]


def test_a_single_file_is_tested_by_folds(tmp_path):
    path = write(tmp_path / "mine.tsv", "label\ttext", easy_rows(12))
    (task,) = load(path, folds=3)
    assert (task.dataset, task.test) == ("mine", None)


def test_limit_applies_to_training_rows_only_and_is_reported(tmp_path):
    write(tmp_path / "trec-train.tsv", "label\tsentence", easy_rows(40))
    write(tmp_path / "trec-test.tsv", "label\tsentence", easy_rows(30))
    (task,) = load(tmp_path, limit=20, folds=2)
    scores = task.score(Letters())
    assert scores.items == 30
    assert scores.protocol["training_rows"] == "20 of 40"
    assert len(load(tmp_path, limit=0)[0].train.labels) == 40


def test_missing_files_and_columns_are_named(tmp_path):
    write(tmp_path / "sst2-train.tsv", "label\tsentence", easy_rows(4))
    with pytest.raises(InputError, match=r"sst2 needs the file sst2-dev\.tsv"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"mr needs the file mr\.tsv"):
        load(tmp_path, only=["mr"])
    with pytest.raises(InputError, match=r"unknown transfer data set 'mpqq'\. Did you mean 'mpqa'"):
        load(tmp_path, only="mpqq")


def test_bad_files_are_refused_with_the_reason(tmp_path):
    with pytest.raises(InputError, match="no transfer data in"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"a\.tsv:3: the label is empty"):
        load(write(tmp_path / "a.tsv", "label\ttext", [("1", "x"), ("", "y")]))
    with pytest.raises(InputError, match="has one label only in its training rows, '1'"):
        load(write(tmp_path / "b.tsv", "label\ttext", [("1", "x"), ("1", "y")]))
    with pytest.raises(InputError, match="needs a column 'sentence' or 'text'; it has label, words"):
        load(write(tmp_path / "c.tsv", "label\twords", [("1", "x"), ("0", "y")]))


def test_an_encoder_that_is_fitted_on_texts_gets_all_splits_together(tmp_path):
    class Words:
        dim = 0

        def encode(self, texts):
            raise AssertionError("it has not been fitted yet")

        def fitted(self, texts):
            seen.append(len(texts))
            return Letters()

    seen = []
    write(tmp_path / "trec-train.tsv", "label\tsentence", easy_rows(20))
    write(tmp_path / "trec-test.tsv", "label\tsentence", easy_rows(10))
    (task,) = load(tmp_path, folds=2, rounds=0)
    assert task.score(Words()).values["accuracy"].value == 100
    assert seen == [30]


@pytest.mark.skipif(not (DATA / "senteval").is_dir(), reason="the SentEval data are not on this machine")
def test_the_seven_sets_of_the_paper_are_read():
    tasks = {task.dataset: task for task in load(DATA, limit=100)}
    assert tuple(tasks) == ORDER
    assert len(tasks["sst2"].dev.labels) == 872
    assert len(tasks["trec"].test.labels) == 500
    assert len(set(tasks["trec"].test.labels)) == 6
    assert len(tasks["mrpc"].test.right) == 1725


def test_the_order_names_every_set():
    assert sorted(ORDER) == list(SETS)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    vectors, labels = two_classes(10)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[evaluate\]'"):
        probe_inner(vectors, labels, vectors, folds=2, seed=0)


# vectors of words


def word_rows(count):
    """Two classes with their own words, among many uninformative words."""
    words = np.random.default_rng(1).integers(0, 300, (count, 6))
    return [
        (str(n % 2), " ".join([f"{'xy'[n % 2]}{n % 5}", *(f"w{word}" for word in row)]))
        for n, row in enumerate(words)
    ]


def test_word_counts_are_fitted_in_sparse_form_with_the_same_result(monkeypatch):
    vectors = TfIdf().fitted([text for _, text in word_rows(80)]).encode([text for _, text in word_rows(80)])
    labels = np.array([int(label) for label, _ in word_rows(80)])
    assert issparse(compact(vectors))
    assert not issparse(compact(vectors[:, vectors.any(axis=0)][:, :5] + 1))
    sparse = (
        probe_folds(vectors, labels, folds=4, seed=0),
        probe_dev(vectors, labels, vectors, labels, vectors),
    )
    monkeypatch.setattr("gemel.evaluation.probe.compact", lambda each: each)
    dense = (
        probe_folds(vectors, labels, folds=4, seed=0),
        probe_dev(vectors, labels, vectors, labels, vectors),
    )
    for one, other in zip(sparse, dense, strict=True):
        assert one.predicted.tolist() == other.predicted.tolist()
        assert one.chosen == other.chosen


@pytest.mark.parametrize("task", ["transfer", "clustering"])
def test_the_plain_baseline_tfidf_needs_no_texts_of_its_own(tmp_path, task):
    path = write(tmp_path / "words.tsv", "label\ttext", word_rows(60))
    [scores] = gemel.evaluate("tfidf", task=task, data=path, rounds=10)
    assert scores.model == "tfidf"
    assert scores.values[scores.main].value is not None
    with pytest.raises(InputError, match=f"'{task}' compares vectors, but bm25 only ranks. Give an encoder"):
        gemel.evaluate("bm25", task=task, data=path)
