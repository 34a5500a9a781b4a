"""MaxSim: the laws of late interaction on plain arrays."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gemel
from gemel.vectors.maxsim import (
    GroupedCentroids,
    MultiVectors,
    centroid_count,
    document_scores,
    join_texts,
    make_codebook,
)
from gemel.vectors.scan.native_scanner import VARIABLE, levels

Vectors = NDArray[np.float32]

FORMS = ("float32", "float16", "int8", "2bit")
COMPILED = levels()[:-1]


def texts(counts: Sequence[int], seed: int = 0, dim: int = 24) -> MultiVectors:
    random = np.random.default_rng(seed)
    parts = [gemel.normalize(random.normal(size=(count, dim)).astype(np.float32)) for count in counts]
    return join_texts(parts, (f"t{number}" for number in range(sum(counts))), dim)


def naive(query: Vectors, document: Vectors) -> float:
    return sum(max(float(np.dot(q, d)) for d in document) for q in query)


def test_maxsim_adds_the_best_product_of_each_token_of_the_query() -> None:
    queries, documents = texts([3, 1, 8], seed=1), texts([5, 1, 40, 7])
    expected = [[naive(queries.of(q), documents.of(d)) for d in range(4)] for q in range(3)]
    assert gemel.maxsim(queries, documents) == pytest.approx(np.array(expected), abs=1e-5)
    assert gemel.maxsim(np.eye(3), [np.eye(3), np.eye(3)[:1]]).tolist() == [3.0, 1.0]


def test_a_score_has_the_same_bits_whatever_the_other_documents_and_queries_are() -> None:
    queries, documents = texts([32, 5, 1], seed=2), texts([180, 3, 64, 64, 1, 17])
    table = gemel.maxsim(queries, documents)
    for q in range(len(queries)):
        assert np.array_equal(gemel.maxsim(queries.of(q), documents), table[q])
        for d in reversed(range(len(documents))):
            alone = gemel.maxsim(queries.of(q), [documents.of(d).copy()])
            assert np.array_equal(alone, table[q, d : d + 1])


def test_a_text_compared_with_itself_has_the_bits_of_its_copy() -> None:
    one = texts([20])
    assert np.array_equal(gemel.maxsim(one.of(0), one), gemel.maxsim(one.of(0).copy(), one))


def test_equal_documents_have_equal_scores_and_documents_keep_their_order() -> None:
    documents = texts([9, 4])
    several = [documents.of(1), documents.of(0), documents.of(1)]
    score = gemel.maxsim(texts([6], seed=3).of(0), several)
    assert score[0] == score[2] != score[1]


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    tokens=st.integers(1, 70),
    dim=st.sampled_from([1, 3, 16, 24, 37, 96]),
    form=st.sampled_from(FORMS),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_form_is_compared_as_its_vectors_in_any_order(
    counts: list[int], tokens: int, dim: int, form: str, threads: int, seed: int
) -> None:
    documents = texts(counts, seed, dim).as_form(form)
    query = texts([tokens], seed + 1, dim).of(0)
    score = gemel.maxsim(query, documents, threads=threads)
    plain = [documents.of(position) for position in range(len(documents))]
    expected = [(query @ each.T).max(axis=1).sum() if len(each) else -np.inf for each in plain]
    assert score == pytest.approx(np.array(expected), abs=2e-4)
    if form != "int8":  # which is compared as integers
        assert np.array_equal(gemel.maxsim(query, plain, threads=1), score)
    order = np.random.default_rng(seed).integers(0, len(counts), 5)
    assert np.array_equal(document_scores(query, documents, order), score[order])


@pytest.mark.skipif(not COMPILED, reason="nothing was compiled here")
@pytest.mark.parametrize("form", FORMS)
def test_all_levels_that_fuse_have_the_same_bits_and_the_others_are_near(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, query = texts([90, 3, 0, 33, 8], dim=100).as_form(form), texts([37], seed=5, dim=100).of(0)
    scores = {}
    for level in levels():
        monkeypatch.setenv(VARIABLE, level)
        scores[level] = gemel.maxsim(query, documents)
    assert all(score == pytest.approx(scores["numpy"], abs=1e-4) for score in scores.values())
    fused = [scores[level] for level in COMPILED if level != "baseline"]
    assert all(np.array_equal(one, fused[0]) for one in fused)
    if form == "int8":
        assert all(np.array_equal(one, scores["numpy"]) for one in scores.values())


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    tokens=st.integers(1, 70),
    dim=st.sampled_from([1, 2, 7, 96, 513, 1100]),
    size=st.sampled_from([1e-35, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_int8_scores_have_the_same_bits_on_all_levels_within_half_a_step_of_each_number(
    counts: list[int], tokens: int, dim: int, size: float, seed: int
) -> None:
    documents = texts(counts, seed, dim).as_form("int8")
    query = texts([tokens], seed + 1, dim).of(0) * np.float32(size)
    with pytest.MonkeyPatch.context() as patch:
        scores = []
        for level in levels():
            patch.setenv(VARIABLE, level)
            scores.append(gemel.maxsim(query, documents))
    assert all(np.array_equal(one, scores[0]) for one in scores)
    step = np.abs(query).max(axis=1).astype(np.float64) / min(32767, (1 << 24) // dim)
    for position, score in enumerate(scores[0].tolist()):
        document = documents.of(position).astype(np.float64)
        if len(document):
            exact = (query.astype(np.float64) @ document.T).max(axis=1).sum()
            lengths = np.abs(document).sum(axis=1).max()
            assert abs(score - exact) <= 0.51 * step.sum() * lengths + 1e-6 * size * tokens + 1e-28 * tokens


def test_the_largest_integers_of_int8_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for dim in (512, 513, 4096):
        query = np.ones((2, dim), np.float32) * np.array([[1], [-1]], np.float32)
        vectors = np.full((3, dim), -128, np.int8)
        documents = MultiVectors(vectors, np.array([0, 3]), (), np.ones(3, np.float32))
        for level in levels():
            monkeypatch.setenv(VARIABLE, level)
            assert gemel.maxsim(query, documents)[0] == 0  # 128 dim - 128 dim
            assert gemel.maxsim(query[:1], documents)[0] == pytest.approx(-128 * dim, rel=1e-6)


@pytest.mark.skipif(not COMPILED, reason="nothing was compiled here")
@pytest.mark.parametrize("form", FORMS)
def test_many_documents_have_the_same_bits_on_several_threads(form: str) -> None:
    documents, query = texts([60] * 200, dim=64).as_form(form), texts([32], seed=5, dim=64).of(0)
    one = gemel.maxsim(query, documents, threads=1)
    assert np.array_equal(gemel.maxsim(query, documents, threads=4), one)


def test_calls_from_several_threads_at_once_do_not_mix() -> None:
    documents = texts([60] * 100, dim=64)
    queries = [texts([32], seed=seed, dim=64).of(0) for seed in range(8)]
    alone = [gemel.maxsim(query, documents, threads=1) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            scores = pool.map(lambda query: gemel.maxsim(query, documents, threads=3), queries)
            assert all(np.array_equal(one, other) for one, other in zip(scores, alone, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_compares_with_threads_of_its_own() -> None:
    program = """
import os, numpy as np, gemel
random = np.random.default_rng(0)
documents = gemel.MultiVectors(random.normal(size=(6400, 64)).astype("float32"), np.arange(0, 6401, 64), ())
query = random.normal(size=(32, 64)).astype("float32")
before = gemel.maxsim(query, documents, threads=3)
child = os.fork()
same = np.array_equal(gemel.maxsim(query, documents, threads=3), before)
if child == 0:
    os._exit(0 if same else 1)
assert same and os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


def test_vectors_that_were_compared_can_be_pickled_and_copied() -> None:
    for form in FORMS:
        documents, query = texts([7, 3]).as_form(form), texts([5], seed=4).of(0)
        score = gemel.maxsim(query, documents)
        for again in (pickle.loads(pickle.dumps(documents)), copy.deepcopy(documents)):
            assert np.array_equal(gemel.maxsim(query, again), score)


def test_smaller_forms_are_stored_per_vector_and_stay_near() -> None:
    documents, query = texts([7, 3, 0, 11]), texts([5], seed=4).of(0)
    exact = gemel.maxsim(query, documents)
    for form, error in (("float16", 1e-2), ("int8", 5e-2)):
        small = documents.as_form(form)
        assert small.vectors.dtype == form and small.tokens == documents.tokens
        assert gemel.maxsim(query, small)[[0, 1, 3]] == pytest.approx(exact[[0, 1, 3]], abs=error)
        alone = join_texts([documents.of(1)], documents.tokens_of(1), documents.dim).as_form(form)
        assert np.array_equal(alone.of(0), small.of(1))
    back = documents.as_form("int8").as_form("float32")
    assert back.scales is None and back.of(0) == pytest.approx(documents.of(0), abs=5e-3)


def test_2_bit_residuals_keep_directions_and_lengths_in_a_few_bits() -> None:
    random = np.random.default_rng(0)
    centers = random.normal(size=(20, 32))
    plain = (centers[random.integers(0, 20, 3000)] + 0.5 * random.normal(size=(3000, 32))).astype(np.float32)
    documents = MultiVectors(plain, np.arange(0, 3001, 30), ())
    small = documents.as_form("2bit")
    assert small.form == "2bit" and small.vectors.shape == (3000, 8) and small.dim == 32
    again = small.as_form("float32").vectors
    assert np.linalg.norm(again, axis=1) == pytest.approx(np.linalg.norm(plain, axis=1), rel=2e-3)
    assert (gemel.normalize(again) * gemel.normalize(plain)).sum(axis=1).mean() > 0.97
    assert np.array_equal(documents.as_form("2bit").vectors, small.vectors)


def test_later_documents_are_stored_with_the_codebook_of_earlier_ones() -> None:
    documents = texts([40] * 50)
    book = make_codebook(documents)
    whole = documents.as_form("2bit", codebook=book)
    alone = join_texts([documents.of(7)], (), 24).as_form("2bit", codebook=book)
    assert np.array_equal(alone.of(0), whole.of(7)) and alone.codebook is book
    assert whole.as_form("2bit") is whole


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_vectors_and_zeros_stay_what_they_are_in_2_bits(value: float) -> None:
    same = MultiVectors(np.full((9, 5), value, np.float32), np.array([0, 9]), ())
    assert same.as_form("2bit").of(0) == pytest.approx(same.of(0), abs=1e-3)


def test_no_vectors_at_all_have_every_form() -> None:
    for form in FORMS:
        empty = join_texts([], (), 8).as_form(form)
        assert len(empty) == 0 and empty.dim == 8 and gemel.maxsim(np.ones((2, 8)), empty).shape == (0,)


@pytest.mark.parametrize("count", [3, 700])
def test_grouped_centroids_find_nearly_always_the_nearest_one_on_every_level(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    centroids = random.normal(size=(count, 20)).astype(np.float32)
    vectors = (centroids[random.integers(0, count, 300)] + 0.3 * random.normal(size=(300, 20))).astype(
        np.float32
    )
    groups = GroupedCentroids.of(centroids)
    expected = np.square(vectors[:, None] - centroids).sum(axis=2).argmin(axis=1)
    for level in levels():
        monkeypatch.setenv(VARIABLE, level)
        nearest = groups.nearest(vectors)
        assert (nearest == expected).mean() > 0.97
        assert np.array_equal(groups.nearest(vectors[7:8]), nearest[7:8])
        assert np.array_equal(groups.nearest(vectors, threads=3), nearest)


def test_the_number_of_centroids_is_a_power_of_two_that_grows_with_the_root() -> None:
    assert [centroid_count(tokens) for tokens in (0, 1, 3, 100, 6_000_000, 10**12)] == [
        *(1, 1, 1, 16),
        *(32768, 65536),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_saved_vectors_are_compared_from_disk(form: str, tmp_path: Path) -> None:
    documents, query = texts([7, 3, 0, 11]).as_form(form), texts([5], seed=4).of(0)
    documents.save(tmp_path / "saved")
    back = gemel.MultiVectors.load(tmp_path / "saved")
    assert isinstance(back.vectors, np.memmap) and back.form == form and back.tokens == ()
    assert np.array_equal(gemel.maxsim(query, back), gemel.maxsim(query, documents))
    assert all(np.array_equal(back.of(text), documents.of(text)) for text in range(4))


def test_a_folder_that_is_damaged_or_holds_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gemel.InputError, match=r"no saved token vectors"):
        MultiVectors.load(tmp_path)
    texts([7, 3]).as_form("2bit").save(tmp_path / "saved")
    np.save(tmp_path / "saved" / "offsets.npy", np.array([0, 7, 99]))
    with pytest.raises(gemel.InputError, match="offsets must rise from 0 to 10"):
        MultiVectors.load(tmp_path / "saved")
    np.save(tmp_path / "saved" / "offsets.npy", np.array([0, 7, 10]))
    np.save(tmp_path / "saved" / "nearest.npy", np.full(10, 60_000, np.uint16))
    with pytest.raises(gemel.InputError, match="nearest centroids must be uint16 below"):
        MultiVectors.load(tmp_path / "saved")
    (tmp_path / "saved" / "vectors.npy").write_bytes(b"no array")
    with pytest.raises(gemel.InputError, match="cannot be read as an array"):
        MultiVectors.load(tmp_path / "saved")


def test_parts_that_do_not_belong_together_are_refused() -> None:
    small = texts([4]).as_form("int8")
    with pytest.raises(gemel.InputError, match="need scales"):
        MultiVectors(small.vectors, small.offsets, ())
    with pytest.raises(gemel.InputError, match="one per vector"):
        MultiVectors(small.vectors, small.offsets, (), np.ones(3, np.float32))
    wrong: list[NDArray[Any]] = [np.array([0, 9, 4], np.uint64), np.array([-1, 4]), np.array([0, 5])]
    for offsets in wrong:
        with pytest.raises(gemel.InputError, match="offsets must rise from 0 to 4"):
            MultiVectors(small.vectors, offsets, (), small.scales)
    book = texts([8]).as_form("2bit").codebook
    assert book is not None
    parts: list[NDArray[Any]] = [book.centroids, book.cutoffs, book.weights]
    wide = gemel.Codebook(*(part.astype("float64") for part in parts))
    packed = texts([8]).as_form("2bit", codebook=book)
    with pytest.raises(gemel.InputError, match="the codebook must be float32"):
        MultiVectors(packed.vectors, packed.offsets, (), packed.scales, packed.nearest, wide)
    with pytest.raises(gemel.InputError, match="need a codebook"):
        MultiVectors(small.vectors.view(np.uint8), small.offsets, (), np.ones(4, np.float16))


def test_a_document_without_tokens_is_last() -> None:
    score = gemel.maxsim(texts([2]).of(0), texts([3, 0]))
    assert np.isfinite(score[0]) and score[1] == -np.inf


def test_texts_are_found_by_position_and_no_further() -> None:
    two = texts([2, 3])
    assert len(two) == 2 and two.tokens_of(-1) == ("t2", "t3", "t4") and two.of(-1).shape == (3, 24)
    with pytest.raises(IndexError, match="there are 2 texts"):
        two.of(2)


def test_vectors_of_another_size_and_unknown_forms_are_refused() -> None:
    with pytest.raises(gemel.InputError, match="must come from the same model"):
        gemel.maxsim(np.eye(3), [np.eye(4)])
    with pytest.raises(gemel.InputError, match="output must be one of"):
        texts([1]).as_form("binary")
