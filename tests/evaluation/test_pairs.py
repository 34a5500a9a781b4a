"""Tasks binary-pairs, triplets and nli: numbers by hand, what is refused, what is undefined."""

from __future__ import annotations

import numpy as np
import pytest
from tests.evaluation.test_sts import Angles, Constant, table

from gemel.errors import InputError
from gemel.evaluation.evaluate import evaluate
from gemel.evaluation.tasks import binary_pairs, nli, triplets

PAIRS = [(1, 0, 10), (0, 0, 20), (1, 0, 30), (0, 0, 40)]
HEAD = "label\tquestion1\tquestion2"


def score(module, path, encoder=None, **settings):
    [task] = module.load(path, **{"rounds": 50, **settings})
    return task.score(encoder or Angles())


def test_binary_pairs_by_hand(tmp_path):
    scores = score(binary_pairs, table(tmp_path / "a.tsv", PAIRS, HEAD))
    values = {name: value.value for name, value in scores.values.items()}
    assert values["average-precision"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert values["roc-auc"] == pytest.approx(75)
    assert values["f1"] == pytest.approx(80)
    assert (values["precision"], values["recall"]) == (pytest.approx(200 / 3), pytest.approx(100))
    assert values["accuracy"] == pytest.approx(75)
    cos = np.cos(np.radians([10, 20, 30, 40]))
    assert values["f1-threshold"] == pytest.approx((cos[2] + cos[3]) / 2)
    assert values["accuracy-threshold"] == pytest.approx((cos[0] + cos[1]) / 2)
    assert scores.main == "average-precision"


def test_binary_pairs_are_those_of_scikit_learn(tmp_path):
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    rows = [(label, 0, int(random.integers(0, 60) + 30 * (1 - label))) for label in random.integers(0, 2, 60)]
    scores = score(binary_pairs, table(tmp_path / "a.tsv", rows, HEAD))
    labels, similar = [row[0] for row in rows], [-row[2] for row in rows]
    average = scores.values["average-precision"]
    assert average.value == pytest.approx(100 * sklearn.average_precision_score(labels, similar))
    assert average.low < average.value < average.high
    assert scores.values["roc-auc"].value == pytest.approx(100 * sklearn.roc_auc_score(labels, similar))


def test_binary_pairs_side_by_side(tmp_path):
    scores = score(binary_pairs, table(tmp_path / "a.tsv", PAIRS, HEAD), metric="all", rounds=5)
    assert {f"average-precision-{metric}" for metric in ("cosine", "dot", "euclidean", "manhattan")} <= set(
        scores.values
    )
    assert scores.values["f1-threshold-euclidean"].value < 0 < scores.values["f1-threshold-cosine"].value


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_class_are_undefined(tmp_path, label):
    scores = score(binary_pairs, table(tmp_path / "a.tsv", [(label, 0, 1), (label, 0, 2)], HEAD))
    for value in scores.values.values():
        assert value.value is None
        assert "all labels are equal" in value.note


def test_a_label_other_than_0_and_1_is_refused_with_its_line(tmp_path):
    with pytest.raises(InputError, match=r"a\.tsv:3: label must be 0 or 1, got 2"):
        binary_pairs.load(table(tmp_path / "a.tsv", [(1, 0, 1), (2, 0, 2)], HEAD))


def test_triplets_by_hand(tmp_path):
    rows = [(0, 10, 20), (0, 30, 20), (0, 10, -40), (0, 15, 15)]  # the last is a tie
    scores = score(triplets, table(tmp_path / "a.tsv", rows, "anchor\tpositive\tnegative"))
    assert scores.values["accuracy"].value == 50
    assert (scores.items, scores.unit) == (4, "triplets")
    assert scores.protocol["ties"] == "a miss"


def test_a_positive_has_to_beat_every_negative(tmp_path):
    rows = [(0, 10, 20, 5), (0, 10, 20, 30)]
    head = "anchor\tpositive\tnegative1\tnegative2"
    scores = score(triplets, table(tmp_path / "a.tsv", rows, head))
    assert scores.values["accuracy"].value == 50
    assert scores.protocol["negatives"] == 2


def test_triplets_for_each_similarity(tmp_path):
    path = table(tmp_path / "a.tsv", [(0, 10, 20), (0, 30, 20)], "anchor\tpositive\tnegative")
    scores = score(triplets, path, metric="all")
    for metric in ("cosine", "dot", "euclidean", "manhattan"):
        assert scores.values[f"accuracy-{metric}"].value == 50


def test_triplets_without_negatives_are_refused(tmp_path):
    with pytest.raises(InputError, match="needs a column 'negative'"):
        triplets.load(table(tmp_path / "a.tsv", [(0, 1)], "anchor\tpositive"))


class Head(Constant):
    """Predicts entailment for equal texts and contradiction for others."""

    labels = ("Contradiction", "entailment", "neutral")

    def relation(self, left, right):
        equal = np.array([one == other for one, other in zip(left, right, strict=True)])
        return np.stack([~equal, equal, np.zeros(len(equal))], axis=1).astype(np.float32)


NLI = [("a", "a", "entailment"), ("a", "b", "contradiction"), ("a", "c", "neutral"), ("a", "d", "-")]
NLI_HEAD = "premise\thypothesis\tlabel"


def test_the_accuracy_of_a_head_by_hand(tmp_path):
    scores = score(nli, table(tmp_path / "a.tsv", NLI, NLI_HEAD), Head())
    assert scores.values["accuracy"].value == pytest.approx(200 / 3)
    assert scores.items == 3
    assert scores.protocol["unlabeled"] == 1


def test_a_model_without_a_head_is_refused_with_an_alternative(tmp_path):
    with pytest.raises(InputError, match=r"Constant has none .* task 'sts'"):
        score(nli, table(tmp_path / "a.tsv", NLI, NLI_HEAD), Constant())


def test_an_unknown_label_of_the_head_is_refused(tmp_path):
    path = table(tmp_path / "a.tsv", [("a", "b", "paradox")], NLI_HEAD)
    with pytest.raises(
        InputError, match=r"'paradox'; the labels of the model are contradiction, entailment, neutral"
    ):
        score(nli, path, Head())


def test_rows_without_any_label_are_refused(tmp_path):
    with pytest.raises(InputError, match="no row with a label"):
        nli.load(table(tmp_path / "a.tsv", [("a", "b", "-")], NLI_HEAD))


class WrongShape(Head):
    def relation(self, left, right):
        return super().relation(left, right)[:, :2]


def test_probabilities_of_another_shape_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"must return \(3, 3\) probabilities, got \(3, 2\)"):
        score(nli, table(tmp_path / "a.tsv", NLI, NLI_HEAD), WrongShape())


class Turned(Head):
    """The same head with its labels in another order."""

    labels = ("neutral", " Entailment", "contradiction")

    def relation(self, left, right):
        return super().relation(left, right)[:, [2, 1, 0]]


def test_labels_are_matched_by_name_in_any_order(tmp_path):
    path = table(tmp_path / "a.tsv", NLI, NLI_HEAD)
    one, other = score(nli, path, Head()), score(nli, path, Turned())
    assert one.values == other.values
    assert one.sample.values.tolist() == other.sample.values.tolist()
    assert other.protocol["labels"] == ["neutral", "entailment", "contradiction"]


class NoneKept(Head):
    labels = None  # type: ignore[assignment]


class Twice(Head):
    labels = ("neutral", "Neutral", "entailment")


class NotFinite(Head):
    def relation(self, left, right):
        return np.full((len(left), 3), np.nan)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (NoneKept(), "NoneKept has none"),
        (Twice(), "two labels of the head have the same name: neutral, Neutral, entailment"),
        (NotFinite(), "not finite"),
    ],
)
def test_a_head_that_cannot_be_scored_is_refused(tmp_path, encoder, message):
    rows = [row for row in NLI if row[2] in ("neutral", "entailment")]
    with pytest.raises(InputError, match=message):
        score(nli, table(tmp_path / "a.tsv", rows, NLI_HEAD), encoder)


def test_an_average_over_data_sets_has_no_threshold(tmp_path):
    for name in ("one", "two"):
        table(tmp_path / f"{name}.tsv", PAIRS, HEAD)
    mean = evaluate(Angles(), task="binary-pairs", data=tmp_path, rounds=0)[-1]
    assert mean.dataset == "average"
    assert "f1" in mean.values
    assert not [name for name in mean.values if "threshold" in name]
