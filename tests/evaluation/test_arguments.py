"""Argument similarity: ridge by hand and against scikit-learn; folds, topics and grades from file to scores."""

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.evaluation.probe import PENALTIES, fit_ridge
from gemel.evaluation.task import load_task
from gemel.evaluation.tasks.arguments import GRADES, best_threshold, load

HEADER = "topic\tsentence1\tsentence2\tlabel"


class Letters:
    """Counts of a, b and c: two texts of the same letters have a cosine of 1, of other letters 0."""

    dim = 3

    def encode(self, texts):
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32).reshape(
            -1, 3
        )


class Constant:
    dim = 2

    def encode(self, texts):
        return np.ones((len(texts), 2), np.float32)


def write(path, rows, header=HEADER):
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def graded_rows(topics=3, each=12):
    kinds = [("a", "b", "NS"), ("a", "c", "DTORCD"), ("ab", "b", "SS"), ("aab", "aab", "HS")]
    return [
        (f"topic {topic}", *kinds[n % 4][:2], kinds[n % 4][2]) for topic in range(topics) for n in range(each)
    ]


# ridge


def test_a_line_without_penalty_is_found_exactly():
    fit = fit_ridge([[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0], penalties=(1e-9,))
    assert fit.weights == pytest.approx([2.0])
    assert fit.intercept == pytest.approx(1.0)
    assert fit.predict([[10.0]]) == pytest.approx([21.0])
    assert fit.left_out == pytest.approx([1.0, 3.0, 5.0, 7.0])


def test_ridge_equals_that_of_scikit_learn():
    from sklearn.linear_model import Ridge, RidgeCV

    random = np.random.default_rng(0)
    x = random.normal(size=(60, 8))
    y = x[:, 0] - 2 * x[:, 3] + random.normal(size=60) + 5
    fit = fit_ridge(x, y)
    reference = RidgeCV(alphas=PENALTIES).fit(x, y)
    assert fit.penalty == reference.alpha_
    assert fit.weights == pytest.approx(reference.coef_)
    assert fit.intercept == pytest.approx(reference.intercept_)
    alone = [
        Ridge(fit.penalty).fit(np.delete(x, i, 0), np.delete(y, i)).predict(x[i : i + 1])[0]
        for i in range(60)
    ]
    assert fit.left_out == pytest.approx(alone)


def test_more_features_than_rows_still_have_a_fit():
    random = np.random.default_rng(1)
    fit = fit_ridge(random.normal(size=(10, 30)), random.normal(size=10))
    assert np.isfinite(fit.left_out).all()


# thresholds


def test_the_threshold_lies_in_the_gap():
    threshold = best_threshold(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]))
    assert 0.2 < threshold < 0.8
    assert best_threshold(np.array([0.5, 0.5]), np.array([0, 1])) == 0.5


# the task


def test_one_file_gives_three_scores(tmp_path):
    (task,) = load_task("arguments", write(tmp_path / "args.tsv", graded_rows()), folds=3, rounds=50)
    scores = task.score(Letters())
    assert [part.dataset for part in scores.parts] == ["args/cosine", "args/3-fold", "args/cross-topic"]
    assert scores.values == scores.parts[0].values
    cosine = scores.values["spearman"]
    assert cosine.low <= cosine.value <= cosine.high
    for part in scores.parts:
        assert part.values["spearman"].value > 85
        assert part.values["f1-macro"].value == 100
        assert part.items == 36
        assert part.protocol["gold"] == "DTORCD = 0, NS = 0, SS = 1, HS = 2"
    assert "spearman-mean-of-folds" in scores.parts[1].values
    assert "pearson-mean-of-topics" in scores.parts[2].values
    assert scores.parts[2].protocol["held_out"] == "each topic in turn"


def test_a_topic_is_predicted_by_the_others_only(tmp_path):
    # In one topic the grades are reversed. Fits on the other topics are wrong there.
    rows = graded_rows(topics=3, each=12)
    turned = {"NS": "HS", "DTORCD": "HS", "SS": "SS", "HS": "NS"}
    rows += [("odd", left, right, turned[label]) for _, left, right, label in graded_rows(1, 12)]
    (task,) = load(write(tmp_path / "args.tsv", rows), folds=3, rounds=10)
    result = task._regression(
        np.abs(Letters().encode(task.left) - Letters().encode(task.right)),
        np.unique(task.topics, return_inverse=True)[1],
    )
    odd = np.array([topic == "odd" for topic in task.topics])
    assert np.corrcoef(result.predicted[odd], task.gold[odd])[0, 1] < -0.5
    assert np.corrcoef(result.predicted[~odd], task.gold[~odd])[0, 1] > 0.5


def test_constant_vectors_are_undefined_with_a_reason(tmp_path):
    (task,) = load(write(tmp_path / "args.tsv", graded_rows()), folds=3, rounds=10)
    scores = task.score(Constant())
    assert [part.values["spearman"].value for part in scores.parts] == [None, None, None]
    assert "equal" in scores.values["spearman"].note
    assert scores.values["spearman-mean-of-topics"].value is None
    assert "undefined in 3 of 3" in scores.values["spearman-mean-of-topics"].note


def test_grades_may_be_numbers(tmp_path):
    rows = [(topic, left, right, str(GRADES[label] * 2)) for topic, left, right, label in graded_rows()]
    path = write(tmp_path / "args.tsv", rows, "topic\tsentence1\tsentence2\tscore")
    (task,) = load(path, cut=3.0)
    assert task.gold.max() == 4
    assert task.grading == "column score"


def test_a_folder_gives_the_tables_that_fit(tmp_path):
    write(tmp_path / "args.tsv", graded_rows())
    write(tmp_path / "other.tsv", [("x", "y")], "left\tright")
    assert [task.dataset for task in load(tmp_path, limit=20)] == ["args"]
    assert len(load(tmp_path, limit=20)[0].gold) == 20


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("t", "a", "b", "XX")], HEADER, r"bad\.tsv:2: unknown label 'XX'. Known: DTORCD, NS, SS, HS"),
        ([("t", "a", "b", "NS"), ("t", "a", "b", "HS")], HEADER, "one topic only, 't'"),
        ([("a", "b", "NS")], "sentence1\tsentence2\tlabel", "needs a column 'topic'"),
        ([("t", "a", "b", "x")], HEADER.replace("label", "score"), r"bad\.tsv:2: 'x' is not a number"),
    ],
)
def test_bad_tables_are_refused_with_the_reason(tmp_path, rows, header, message):
    with pytest.raises(InputError, match=message):
        load(write(tmp_path / "bad.tsv", rows, header))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="has the columns 'topic', 'sentence1', 'sentence2'"):
        load(tmp_path)
