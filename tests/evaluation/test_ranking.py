"""Metrics of ranked lists: by hand, and as trec_eval computes them."""

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.evaluation.metrics import (
    Ranked,
    average_precision,
    hit_rate,
    ndcg,
    precision,
    ranked,
    recall,
    reciprocal_rank,
)

# The gains at each of twelve ranks, and those of relevant documents that were not retrieved.
GAINS = {
    "q1": [0, 3, 0, 1, 2, 0, 0, 0, 0, 0, 1, 0],
    "q2": [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "q3": [0] * 11 + [1],
    "q4": [1] * 12,
    "q5": [0, 0, 2, 0, 0, 1, 0, 0, 0, 3, 0, 0],
}
MISSED = {"q1": [2], "q2": [], "q3": [1, 1], "q4": [1, 1, 1], "q5": []}
# By pytrec_eval-terrier 0.5.11: a run with falling scores and these gains as qrels; rounded to six digits.
TREC_EVAL = {
    "ndcg_cut_5": [0.509454, 1.0, 0.0, 1.0, 0.210002],
    "ndcg_cut_10": [0.509454, 1.0, 0.0, 1.0, 0.466919],
    "map_cut_10": [0.32, 1.0, 0.0, 0.666667, 0.322222],
    "map": [0.392727, 1.0, 0.027778, 0.8, 0.322222],
    "recip_rank": [0.5, 1.0, 0.083333, 1.0, 0.333333],
    "recall_5": [0.6, 1.0, 0.0, 0.333333, 0.333333],
    "recall_10": [0.6, 1.0, 0.0, 0.666667, 1.0],
    "P_5": [0.6, 0.2, 0.0, 1.0, 0.2],
    "P_10": [0.3, 0.1, 0.0, 1.0, 0.3],
}
OURS = {
    "ndcg_cut_5": lambda lists: ndcg(lists, 5),
    "ndcg_cut_10": lambda lists: ndcg(lists, 10),
    "map_cut_10": lambda lists: average_precision(lists, 10),
    "map": average_precision,
    "recip_rank": reciprocal_rank,
    "recall_5": lambda lists: recall(lists, 5),
    "recall_10": lambda lists: recall(lists, 10),
    "P_5": lambda lists: precision(lists, 5),
    "P_10": lambda lists: precision(lists, 10),
}


def lists_of(ranked_gains, missed):
    """Documents 0, 1, 2 ... are at the ranks of their numbers; the missed ones come after them in the corpus."""
    index = np.tile(np.arange(12), (len(ranked_gains), 1))
    gains = [dict(enumerate([*ranked_gains[name], *missed[name]])) for name in ranked_gains]
    return ranked(index, gains)


def one(gains, ideal):
    return Ranked(np.array([gains], dtype=float), np.array([ideal], dtype=float))


@pytest.mark.parametrize("name", TREC_EVAL)
def test_numbers_are_those_of_trec_eval(name):
    np.testing.assert_allclose(OURS[name](lists_of(GAINS, MISSED)), TREC_EVAL[name], atol=5e-7)


def test_random_lists_agree_with_trec_eval_where_it_is_installed():
    trec = pytest.importorskip(
        "pytrec_eval", reason="pytrec_eval is not installed; its golden table is tested"
    )
    random = np.random.default_rng(0)
    ranked_gains = {f"q{i}": random.choice([0, 0, 0, 1, 2, 3], 12).tolist() for i in range(50)}
    missed = {name: random.choice([1, 2], random.integers(1, 4)).tolist() for name in ranked_gains}
    run = {name: {f"d{i}": float(99 - i) for i in range(12)} for name in ranked_gains}
    judged = {n: {f"d{i}": g for i, g in enumerate([*ranked_gains[n], *missed[n]])} for n in ranked_gains}
    cuts = {"ndcg_cut.5,10", "map_cut.10", "map", "recip_rank", "recall.5,10", "P.5,10"}
    theirs = trec.RelevanceEvaluator(judged, cuts).evaluate(run)
    for name, ours in OURS.items():
        np.testing.assert_allclose(
            ours(lists_of(ranked_gains, missed)), [theirs[q][name] for q in ranked_gains], atol=1e-9
        )


def test_ndcg_by_hand():
    # Gains 1 at rank 2 and 2 at rank 3; the best order is 2, 1.
    best = 2 / np.log2(2) + 1 / np.log2(3)
    assert ndcg(one([0, 1, 2], [2, 1]), 3)[0] == pytest.approx((1 / np.log2(3) + 2 / np.log2(4)) / best)
    assert ndcg(one([0, 1, 2], [2, 1]), 1)[0] == 0


def test_average_precision_by_hand():
    # Retrieved at ranks 1 and 3 of three relevant documents: (1/1 + 2/3 + 0) / 3.
    lists = one([1, 0, 1], [1, 1, 1])
    assert average_precision(lists)[0] == pytest.approx(5 / 9)
    assert average_precision(lists, 1)[0] == pytest.approx(1 / 3)


def test_reciprocal_rank_recall_and_hits_by_hand():
    lists = one([0, 0, 1, 1], [1, 1, 1])
    assert reciprocal_rank(lists)[0] == pytest.approx(1 / 3)
    assert reciprocal_rank(lists, 2)[0] == 0
    assert recall(lists, 3)[0] == pytest.approx(1 / 3)
    assert precision(lists, 4)[0] == 0.5
    assert (hit_rate(lists, 2)[0], hit_rate(lists, 3)[0]) == (0, 1)


def test_precision_divides_by_k_also_where_the_list_is_shorter():
    assert precision(one([1, 1], [1, 1]), 10)[0] == 0.2


def test_empty_ranks_and_gains_of_zero_or_less_are_not_relevant():
    lists = ranked(np.array([[2, -1, 0]]), [{0: 1.0, 1: -1.0, 2: 0.0}])
    assert lists.gains.tolist() == [[0, 0, 1]]
    assert lists.relevant.tolist() == [1]


def test_a_query_without_a_relevant_document_is_refused():
    with pytest.raises(InputError, match="query 1 has no relevant document"):
        ranked(np.array([[0], [0]]), [{0: 1.0}, {0: -1.0}])


def test_lists_and_relevance_must_match():
    with pytest.raises(InputError, match="2 ranked lists but relevance for 1 queries"):
        ranked(np.zeros((2, 1), dtype=np.int64), [{0: 1.0}])
