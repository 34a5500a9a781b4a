"""How widely an embedded index searches: queries like the stored vectors, and queries unlike them."""

import json

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")
pytest.importorskip("faiss", reason="the extra 'index' is not installed")

from gemel.index.lance import ann as lists
from gemel.index.lance import cache
from gemel.index.lance.store import LanceStore
from gemel.index.port import Header
from index_contract import clusters, rows_of, unit

DIM, ROWS, LARGE = 16, 1200, 500
VECTORS = clusters(ROWS, DIM)
QUERIES = unit(VECTORS[:400] + 0.5 * VECTORS[700:1100])


def opened(folder, *, create=False):
    store = LanceStore(folder, large=LARGE, many=LARGE)
    return store.create(Header(DIM, {}, {})) if create else store.open()


@pytest.fixture
def folder(tmp_path):
    """An index with its lists built."""
    table = opened(tmp_path / "notes", create=True)
    table.write(rows_of([f"doc-{i:04}" for i in range(ROWS)], vectors=VECTORS), replace=False)
    table.compact()
    table.close()
    return tmp_path / "notes"


def lists_in(table):
    table.nearest(QUERIES[:1], 1)  # which loads or builds them
    return table._now.snapshots.peek(table._versions.newest()).lists


def unlike_vectors(count):
    """Random directions: no list is much nearer to them than any other."""
    return unit(np.random.default_rng(3).normal(size=(count, DIM)).astype(np.float32))


def lists_of(vectors):
    return lists.build(np.ascontiguousarray(vectors, dtype=np.float32))


def test_queries_unlike_the_stored_vectors_are_recognized():
    # 40 tight clusters in 48 dimensions: a random direction is near none of them.
    random = np.random.default_rng(5)
    centers = unit(random.normal(size=(40, 48)))
    vectors = unit(centers[random.integers(40, size=4000)] + 0.05 * random.normal(size=(4000, 48)))
    made = lists_of(vectors)
    like = unit(vectors[:200] + 0.3 * vectors[200:400]).astype(np.float32)
    unlike = unit(random.normal(size=(200, 48))).astype(np.float32)
    assert made.unlike(like).mean() <= 0.25
    assert made.unlike(unlike).mean() >= 0.95
    assert made.edges[0] <= made.edges[1]
    assert (made.unlike(like, 0.99) >= made.unlike(like)).all()
    assert (made.unlike(like, 0.9) == made.unlike(like)).all()


def test_lists_without_edges_search_as_usual():
    made = lists.Lists(None, 0, 1, 0.0, 0)
    assert not made.unlike(unlike_vectors(3)).any()
    assert made.measured == {}


def test_a_query_unlike_the_stored_vectors_visits_more_lists():
    made = lists_of(VECTORS)
    wider = made.tuned_for(None, far=True)
    assert wider.visited >= made.visited
    assert wider.wide > made.wide
    claimed = made.measured["unlike them (as words and code are; wider search)"]
    assert claimed == max(point.far for point in made.curve if point.visited <= wider.visited)


def test_a_query_finds_the_same_alone_and_in_a_batch_of_both_kinds(folder):
    table = opened(folder)
    queries = np.concatenate([QUERIES[:12], unlike_vectors(12)])
    queries = queries[np.random.default_rng(0).permutation(len(queries))]
    wider = lists_in(table).unlike(queries)
    assert 0 < wider.sum() < len(queries)
    for options in ({}, {"recall": 0.99}):
        batch = table.nearest(queries, 60, **options)
        for query, result in zip(queries, batch, strict=True):
            alone = table.nearest(query[None], 60, **options)[0]
            assert list(alone.id) == list(result.id)
            assert np.array_equal(alone.score, result.score)
            for k in (1, 10, 25):
                assert list(table.nearest(query[None], k, **options)[0].id) == list(result.id)[:k]


def test_edges_are_kept_in_the_cache(folder, monkeypatch):
    def refuse(vectors):
        raise AssertionError("built again")

    monkeypatch.setattr(cache, "build", refuse)
    loaded = lists_in(opened(folder))
    built = lists_of(VECTORS)
    assert loaded.edges == built.edges
    assert loaded.curve == built.curve


def test_a_cache_without_edges_is_built_again(folder):
    (about,) = (folder / "cache").glob("*/about.json")
    content = json.loads(about.read_text())
    del content["edges"]
    for number in (content["format"] - 1, content["format"]):
        about.write_text(json.dumps({**content, "format": number}))
        assert cache.load(folder / "cache", "rows-1", DIM) is None
    assert lists_in(opened(folder)).edges is not None


def test_random_directions_reach_the_claimed_recall_of_unlike_queries(folder):
    table = opened(folder)
    claimed = table.stats().details["recall"]["unlike them (as words and code are; wider search)"]
    queries = unlike_vectors(300)
    exact, quick = table.nearest(queries, 10, exact=True), table.nearest(queries, 10, far=True)
    result = np.mean([len(set(a.id) & set(b.id)) / 10 for a, b in zip(exact, quick, strict=True)])
    assert result >= claimed - 0.03
