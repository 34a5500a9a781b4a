"""Pairs through an index: exact scores for what it proposes, and a recall that says what it missed."""

import sys

import numpy as np
import pytest

from gemel.errors import InputError, MissingExtra
from gemel.pairs import approximate, similar_pairs
from gemel.scan.compare import Side


def clustered(n=3000, dim=32, seed=1):
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(n // 10, dim))
    rows = centres[generator.integers(0, len(centres), n)] + 0.3 * generator.normal(size=(n, dim))
    return rows.astype(np.float32)


def as_set(pairs):
    return set(zip(pairs.score.tolist(), pairs.left.tolist(), pairs.right.tolist(), strict=True))


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("limit", [{"k": 400}, {"min_score": {"cosine": 0.9, "dot": 40, "euclidean": -1.9}}])
def test_an_index_finds_most_pairs_with_exact_scores(metric, limit):
    pytest.importorskip("faiss")
    limit = {name: value[metric] if isinstance(value, dict) else value for name, value in limit.items()}
    near = similar_pairs(clustered(), metric=metric, approximate=30, **limit)
    exact = similar_pairs(clustered(), metric=metric, **limit)
    assert len(exact) > 100
    truth = len(as_set(near) & as_set(exact)) / len(exact)
    assert truth > 0.9
    assert near.recall == pytest.approx(truth, abs=0.1)
    assert not near.complete
    assert near.compared < exact.compared / 20
    assert "not complete, recall about" in near.summary()
    assert (near.left < near.right).all()


def test_two_sets_go_through_an_index_too():
    pytest.importorskip("faiss")
    left, right = clustered(200, seed=1), clustered(2000, seed=1)
    near = similar_pairs(left, other=right, k=50, approximate=10)
    assert len(near) == 50
    assert near.recall > 0.5


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_few_rows_need_no_index_to_be_right(n):
    pytest.importorskip("faiss")
    near = similar_pairs(clustered(20)[:n], k=3, approximate=5)
    assert len(near) == min(3, n * (n - 1) // 2)


def test_what_found_nothing_has_an_unknown_recall():
    pytest.importorskip("faiss")
    near = similar_pairs(np.eye(50), min_score=0.9, approximate=5)
    assert (len(near), near.recall) == (0, None)
    assert near.summary().endswith("not complete, recall unknown")


def test_a_missing_index_is_answered_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[ann\]'"):
        similar_pairs(np.eye(3), k=1, approximate=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"approximate": 0}, "approximate is a number of neighbours, at least 1, got 0"),
        ({"approximate": True}, "approximate is a number of neighbours"),
        ({"approximate": 2, "metric": "manhattan"}, "no index knows the manhattan metric"),
        ({"approximate": 2, "out": "somewhere"}, "give either approximate or out"),
        ({"approximate": 90, "memory": 300}, "90 neighbours of 3 rows do not fit"),
    ],
)
def test_wrong_requests_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        similar_pairs(np.eye(3), k=1, **options)


def test_one_outlier_does_not_make_the_recall_collect_all_pairs(monkeypatch):
    pytest.importorskip("faiss")
    rows = np.abs(clustered(4000, dim=8))
    rows[0] = -1  # the only pairs it has are far worse than all others
    most, real = [0], approximate._Tally.add

    def add(self, found):
        most[0] = max(most[0], len(found))
        real(self, found)

    monkeypatch.setattr(approximate._Tally, "add", add)
    near = similar_pairs(rows, min_score=-1, approximate=2, memory=4000 * 2 * 64)
    assert most[0] <= 1 << 16
    exact = similar_pairs(rows, min_score=float(near.score.min()))
    assert len(exact) > 4000 * 1000
    assert near.recall == pytest.approx(len(near) / len(exact), rel=0.3)


@pytest.mark.parametrize("across", [False, True])
def test_the_recall_is_that_of_a_brute_force_where_all_rows_are_the_sample(across):
    pytest.importorskip("faiss")
    rows, other = clustered(400, dim=8), clustered(300, dim=8, seed=2) if across else None
    near = similar_pairs(rows, other=other, k=900, approximate=3)
    exact = similar_pairs(rows, other=other, min_score=float(near.score.min()))
    assert near.recall == pytest.approx(len(as_set(near) & as_set(exact)) / len(exact), abs=1e-12)
    assert 0 < near.recall < 1


def test_the_index_is_made_block_by_block(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "_BLOCK", 64)
    asked, real = [], Side.scaled

    def scaled(self, begin, end):
        asked.append(end - begin)
        return real(self, begin, end)

    whole = similar_pairs(clustered(1000), k=50, approximate=5)
    monkeypatch.setattr(Side, "scaled", scaled)
    assert as_set(similar_pairs(clustered(1000), k=50, approximate=5)) == as_set(whole)
    assert max(asked) == 64
