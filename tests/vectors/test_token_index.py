"""Search among token vectors: candidates from centroids, exact scores, masks, ties, folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gemel
from gemel.vectors import token_index
from gemel.vectors.maxsim import MultiVectors, join_texts
from gemel.vectors.scan.native_scanner import VARIABLE, levels
from gemel.vectors.token_index import TokenIndex

Vectors = NDArray[np.float32]

DIM = 24


def near(vectors: Vectors, noise: float, random: np.random.Generator) -> Vectors:
    return gemel.normalize((vectors + noise * random.normal(size=vectors.shape)).astype(np.float32))


@pytest.fixture(scope="module")
def documents() -> MultiVectors:
    """900 documents in 30 families, whose members are near one another."""
    random = np.random.default_rng(0)
    heads = [random.normal(size=(random.integers(5, 15), DIM)).astype(np.float32) for _ in range(30)]
    parts = [near(heads[number % 30], 0.2, random) for number in range(900)]
    return join_texts(parts, (), DIM)


@pytest.fixture(params=["float16", "2bit"])
def index(
    documents: MultiVectors, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> TokenIndex:
    monkeypatch.setattr(token_index, "_EXACT", 100)
    built = TokenIndex.build(documents.as_form(request.param))
    assert built.recall is not None and built.recall >= 0.98 and built.candidates < 225
    return built


def brute_force(
    query: Vectors, documents: MultiVectors, k: int, inside: NDArray[np.bool_] | None = None
) -> list[int]:
    scores = gemel.maxsim(query, documents)
    rows = [row for row in range(len(documents)) if inside is None or inside[row]]
    return sorted((row for row in rows if scores[row] > -np.inf), key=lambda row: (-scores[row], row))[:k]


def queries(documents: MultiVectors, count: int = 30) -> list[Vectors]:
    random = np.random.default_rng(1)
    return [
        near(documents.of(int(row))[:6], 0.3, random) for row in random.integers(0, len(documents), count)
    ]


def test_candidates_find_nearly_all_of_the_best_with_their_exact_scores(index: TokenIndex) -> None:
    found = 0
    for query in queries(index.documents):
        rows, scores = index.search(query, 10)
        assert np.array_equal(scores, gemel.maxsim(query, index.documents)[rows])
        assert (np.diff(scores) <= 0).all() and len(rows) == 10
        found += len(set(rows.tolist()) & set(brute_force(query, index.documents, 10)))
    assert found >= 0.98 * 10 * 30


def test_an_exact_search_is_brute_force(index: TokenIndex) -> None:
    for query in queries(index.documents, 5):
        assert index.search(query, 12, exact=True)[0].tolist() == brute_force(query, index.documents, 12)


def test_only_documents_inside_the_mask_are_found(index: TokenIndex) -> None:
    random = np.random.default_rng(2)
    for share in (0.01, 0.6):
        inside = random.random(len(index)) < share
        found = 0
        for query in queries(index.documents, 10):
            rows = index.search(query, 6, inside=inside)[0].tolist()
            expected = brute_force(query, index.documents, 6, inside)
            assert inside[rows].all() and len(rows) == len(expected)
            assert index.search(query, 6, inside=inside, exact=True)[0].tolist() == expected
            found += len(set(rows) & set(expected)) - len(expected)
        assert found >= -1
    assert len(index.search(queries(index.documents, 1)[0], 5, inside=np.zeros(len(index), bool))[0]) == 0


def test_numpy_and_every_compiled_level_find_the_same(
    index: TokenIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = queries(index.documents, 5)
    found = {}
    for level in levels():
        monkeypatch.setenv(VARIABLE, level)
        found[level] = [index.search(query, 10, threads=2)[0].tolist() for query in asked]
    assert all(rows == found["numpy"] for rows in found.values())


def test_a_saved_index_finds_the_same_from_disk(index: TokenIndex, tmp_path: Path) -> None:
    index.save(tmp_path / "saved")
    back = TokenIndex.load(tmp_path / "saved")
    assert (back.recall, back.candidates, len(back)) == (index.recall, index.candidates, len(index))
    assert isinstance(back.documents.vectors, np.memmap)
    for query in queries(index.documents, 5):
        rows, scores = back.search(query, 10)
        assert np.array_equal(rows, index.search(query, 10)[0])
        assert np.array_equal(scores, index.search(query, 10)[1])


def test_a_damaged_folder_is_refused(index: TokenIndex, tmp_path: Path) -> None:
    with pytest.raises(gemel.InputError, match="no saved index"):
        TokenIndex.load(tmp_path)
    index.save(tmp_path / "saved")
    codes = np.load(tmp_path / "saved" / "codes.npy")
    np.save(tmp_path / "saved" / "codes.npy", np.full_like(codes, 65_535))
    with pytest.raises(gemel.InputError, match="is damaged"):
        TokenIndex.load(tmp_path / "saved")
    np.save(tmp_path / "saved" / "codes.npy", codes[1:])
    with pytest.raises(gemel.InputError, match="is damaged"):
        TokenIndex.load(tmp_path / "saved")
    (tmp_path / "saved" / "index.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(gemel.InputError, match="another format"):
        TokenIndex.load(tmp_path / "saved")


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=20),
    k=st.integers(1, 25),
    share=st.sampled_from([0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_few_documents_are_always_compared_exactly(
    counts: list[int], k: int, share: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    # Few different vectors, so that many scores are equal: ties go to the lower row.
    parts = [np.eye(4, dtype=np.float32)[random.integers(0, 4, count)] for count in counts]
    index = TokenIndex.build(join_texts(parts, (), 4))
    query = np.eye(4, dtype=np.float32)[random.integers(0, 4, 3)]
    inside = random.random(len(counts)) < share
    assert index.recall is None and index.candidates == 0
    rows, scores = index.search(query, k, inside=inside)
    assert rows.tolist() == brute_force(query, index.documents, k, inside)
    assert rows.dtype == np.int64 and scores.dtype == np.float32


def test_documents_that_centroids_do_not_tell_apart_are_compared_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_index, "_EXACT", 100)
    random = np.random.default_rng(0)
    noise = join_texts([near(np.zeros((4, DIM), np.float32), 1, random) for _ in range(300)], (), DIM)
    index = TokenIndex.build(noise)
    assert index.recall is None
    query = noise.of(3)
    assert index.search(query, 10)[0].tolist() == brute_force(query, noise, 10)


def test_recall_is_measured_with_queries_where_they_are_given(
    documents: MultiVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_index, "_EXACT", 100)
    alike = join_texts(queries(documents), (), DIM)
    assert TokenIndex.build(documents, queries=alike).recall is not None
    random = np.random.default_rng(5)
    unlike = join_texts([near(np.zeros((20, DIM), np.float32), 1, random) for _ in range(20)], (), DIM)
    recall = TokenIndex.build(documents, queries=unlike).recall
    assert recall is None or recall >= 0.985


def test_a_query_that_repeats_one_token_is_compared_with_more_documents(
    documents: MultiVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a query that is filled up with mask tokens: the error of a centroid counts as often as the token."""
    monkeypatch.setattr(token_index, "_EXACT", 100)
    index = TokenIndex.build(documents)
    assert index.recall is not None
    random = np.random.default_rng(7)
    found = []
    for row in range(0, 200, 10):
        query = near(np.repeat(documents.of(row)[:1], 24, axis=0), 0.02, random)
        found += [each in index.search(query, 10)[0] for each in brute_force(query, documents, 10)]
    assert np.mean(found) >= 0.97


def test_wrong_questions_are_refused(documents: MultiVectors) -> None:
    index, query = TokenIndex.build(documents), documents.of(0)
    with pytest.raises(gemel.InputError, match="k must be"):
        index.search(query, 0)
    with pytest.raises(gemel.InputError, match="must come from the same model"):
        index.search(query[:, :5], 3)
    with pytest.raises(gemel.InputError, match="inside must be 900 booleans"):
        index.search(query, 3, inside=np.ones(7, bool))
