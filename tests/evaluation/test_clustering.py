"""Clusters against classes: by hand, against scikit-learn, and as a task from file to scores."""

import builtins
import gzip
import math

import numpy as np
import pytest

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.metrics import agreement
from gemel.evaluation.statistics import choose
from gemel.evaluation.task import load_task
from gemel.evaluation.tasks.clustering import Clustering, k_means, load

TWO_BY_TWO = (["a", "a", "b", "b"], [0, 0, 1, 1])


class Islands:
    """Each first letter has a vector far from the others; the rest of a text changes it a little."""

    dim = 3

    def encode(self, texts):
        random = np.random.default_rng(0)
        rows = np.array([np.eye(3)["abc".index(text[0])] for text in texts])
        return (10 * rows + random.normal(0, 0.1, rows.shape)).astype(np.float32)


def table(path, rows, header="label\ttext"):
    content = "\n".join([header, *("\t".join(row) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def test_a_perfect_match_is_one_whatever_clusters_are_called():
    result = agreement(["x", "x", "y", "z"], [7, 7, 1, 0])
    assert result.v_measure == pytest.approx(1)
    assert result.nmi == pytest.approx(1)
    assert (result.ari, result.accuracy) == (1, 1)


def test_one_cluster_for_all_scores_zero_but_is_complete():
    result = agreement(["a", "a", "b", "b"], [0, 0, 0, 0])
    assert (result.homogeneity, result.completeness, result.v_measure) == (0, 1, 0)
    assert (result.nmi, result.ari, result.accuracy) == (0, 0, 0.5)


def test_a_class_in_two_halves_by_hand():
    # classes aabb, clusters 0 1 2 2: MI = ln 2, H(classes) = ln 2, H(clusters) = 1.5 ln 2
    result = agreement(["a", "a", "b", "b"], [0, 1, 2, 2])
    assert result.homogeneity == pytest.approx(1)
    assert result.completeness == pytest.approx(1 / 1.5)
    assert result.v_measure == pytest.approx(0.8)
    assert result.nmi == pytest.approx(1 / math.sqrt(1.5))
    # pairs together: 1; in classes 2, in clusters 1, of 6: chance 1/3, most 1.5
    assert result.ari == pytest.approx((1 - 1 / 3) / (1.5 - 1 / 3))
    assert result.accuracy == 0.75  # a third cluster has no class left


def test_singleton_clusters_and_classes_agree():
    assert agreement([1, 2, 3], ["x", "y", "z"]).ari == 1
    assert agreement(["a"], [0]).v_measure == 1


@pytest.mark.parametrize("seed", range(5))
def test_measures_equal_those_of_scikit_learn(seed):
    from sklearn import metrics

    random = np.random.default_rng(seed)
    classes, clusters = random.integers(0, 5, 60), random.integers(0, 7, 60)
    clusters[:30] = classes[:30]
    result = agreement(classes, clusters)
    assert result.v_measure == pytest.approx(metrics.v_measure_score(classes, clusters))
    assert result.homogeneity == pytest.approx(metrics.homogeneity_score(classes, clusters))
    assert result.completeness == pytest.approx(metrics.completeness_score(classes, clusters))
    nmi = metrics.normalized_mutual_info_score(classes, clusters, average_method="geometric")
    assert result.nmi == pytest.approx(nmi)
    assert result.ari == pytest.approx(metrics.adjusted_rand_score(classes, clusters))


def test_accuracy_is_the_best_of_all_assignments():
    from itertools import permutations

    random = np.random.default_rng(1)
    classes, clusters = random.integers(0, 4, 50), random.integers(0, 4, 50)
    best = max(np.mean(np.array(names)[clusters] == classes) for names in permutations(range(4)))
    assert agreement(classes, clusters).accuracy == pytest.approx(best)


def test_labels_of_other_items_are_refused():
    with pytest.raises(InputError, match="2 classes but 3 clusters"):
        agreement(["a", "b"], [0, 1, 2])
    with pytest.raises(InputError, match="no items"):
        agreement([], [])


def test_separated_groups_are_found():
    labels = ["a", "b", "c"] * 10
    scores = Clustering("islands", [f"{label} text" for label in labels], labels, seeds=3).score(Islands())
    assert scores.main == "v-measure"
    assert scores.values["v-measure"].value > 80
    assert scores.values["v-measure"].low <= scores.values["v-measure"].value
    assert scores.sample.items == 3
    assert scores.protocol["seeds"] == [0, 1, 2]
    assert scores.protocol["drawn"].startswith("seeds")
    assert "standard deviation" in scores.values["ari"].note
    assert (scores.items, scores.unit) == (30, "texts")


def test_the_same_seed_gives_the_same_clusters():
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    assert k_means(vectors, 5, seed=3).tolist() == k_means(vectors, 5, seed=3).tolist()


def test_vectors_that_are_all_equal_score_zero_without_a_warning():
    class Constant:
        dim = 2

        def encode(self, texts):
            return np.ones((len(texts), 2), np.float32)

    scores = Clustering("same", ["a", "b", "c", "d"], ["x", "x", "y", "y"], seeds=2).score(Constant())
    assert scores.values["v-measure"].value == 0


def test_one_seed_has_no_interval_and_a_note():
    scores = Clustering("one", ["a 1", "b 1"], ["a", "b"], seeds=1).score(Islands())
    assert scores.values["v-measure"].low is None
    assert scores.values["v-measure"].note == "one seed: no interval"


def test_a_folder_gives_a_task_for_each_table_with_the_columns(tmp_path):
    table(tmp_path / "one.tsv.gz", [("a", "a 1"), ("b", "b 1")])
    table(tmp_path / "two.tsv", [("a", "a 1"), ("c", "c 1")], "label\tsentence")
    table(tmp_path / "other.tsv", [("x", "y")], "left\tright")
    tasks = load_task("clustering", tmp_path, seeds=2)
    assert [task.dataset for task in tasks] == ["one", "two"]


def test_limit_takes_rows_of_all_classes(tmp_path):
    rows = [("a", f"a {n}") for n in range(50)] + [("b", f"b {n}") for n in range(50)]
    (task,) = load(table(tmp_path / "sorted.tsv", rows), limit=20)
    assert len(task.texts) == 20
    assert set(task.labels) == {"a", "b"}
    assert task.score(Islands()).protocol["rows"] == "20 of 100"


def test_chosen_rows_are_in_order_and_depend_on_the_seed_only():
    assert choose(5, None, 0).tolist() == [0, 1, 2, 3, 4]
    one = choose(100, 10, 1)
    assert one.tolist() == sorted(set(one.tolist())) == choose(100, 10, 1).tolist()
    assert one.tolist() != choose(100, 10, 2).tolist()
    with pytest.raises(InputError, match="limit must be at least 2"):
        choose(10, 1, 0)


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("a", "x"), ("a", "y")], "label\ttext", "one label only, 'a'"),
        ([("a", "x"), ("", "y")], "label\ttext", r"bad\.tsv:3: the label is empty"),
        ([("a", "x")], "label\twords", "needs a column 'text' or 'sentence'; it has label, words"),
        ([("a", "x")], "class\ttext", "needs a column 'label'; it has class, text"),
    ],
)
def test_bad_tables_are_refused_with_the_reason(tmp_path, rows, header, message):
    with pytest.raises(InputError, match=message):
        load(table(tmp_path / "bad.tsv", rows, header))


def test_other_columns_can_be_named(tmp_path):
    path = table(tmp_path / "named.tsv", [("a", "a 1"), ("b", "b 1")], "class\twords")
    (task,) = load(path, text="words", label="class")
    assert task.labels == ["a", "b"]


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(InputError, match="seeds must be at least 1, got 0"):
        load(tmp_path, seeds=0)
    with pytest.raises(InputError, match=r"no table in .* has the columns"):
        load(tmp_path)
    with pytest.raises(InputError, match="2 vectors cannot make 3 clusters"):
        k_means(np.eye(2, dtype=np.float32), 3, seed=0)


@pytest.mark.parametrize(
    ("package", "work"),
    [
        ("scipy.optimize", lambda: agreement(*TWO_BY_TWO)),
        ("sklearn.cluster", lambda: k_means(np.eye(3, dtype=np.float32), 2, seed=0)),
    ],
)
def test_a_missing_package_answers_with_its_pip_line(monkeypatch, package, work):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"gemel\[evaluate\]"):
        work()
