"""Queries of a new model over the vectors of the old one, and what that loses."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
from tests.index.test_index import TEXTS, texts_of

import gemel
from gemel.errors import InputError
from gemel.index import bridge
from gemel.index import verify as verifying
from gemel.index.bridge import procrustes
from gemel.index.open import open_index
from tiny import tiny_bert

MANY = list(dict.fromkeys(texts_of(400, seed=4)))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "old"))


@pytest.fixture(scope="module")
def index(model):
    index = open_index(":memory:", model)
    index.add(MANY)
    return index


@pytest.fixture(scope="module")
def wider(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "wider", seed=2, width=48))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "narrow", seed=3, width=16))


def turned(model, turn):
    """The same model in another basis: its vectors are turned after it has made them."""

    class Turned(type(model)):
        def encode_report(self, *given, **options):
            report = super().encode_report(*given, **options)
            return replace(report, vectors=(report.vectors @ turn).astype(np.float32))

    return Turned(model.checkpoint)


@pytest.mark.parametrize("source,target", [(8, 8), (12, 8), (8, 12)])
def test_the_map_finds_a_turn(source, target):
    rng = np.random.default_rng(0)
    few = min(source, target)
    known = np.linalg.qr(rng.normal(size=(max(source, target), few)))[0]
    known = known if source > target else known.T if source < target else known
    points = rng.normal(size=(200, few)) @ (known.T if source > target else np.eye(few))
    found = procrustes(points.astype(np.float32), (points @ known).astype(np.float32))
    assert found.shape == (source, target)
    np.testing.assert_allclose(points @ found, points @ known, atol=1e-4)
    square = found.T @ found if source >= target else found @ found.T
    np.testing.assert_allclose(square, np.eye(few), atol=1e-5)


def test_a_turned_model_loses_nothing(index, model):
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(32, 32)))[0].astype(np.float32)
    bridged = index.bridge_to(turned(model, turn), sample=300)
    assert bridged.bridge.overlap > 0.97
    assert (bridged.bridge.fitted_on, bridged.bridge.held_out) == (240, 60)
    for query in ("a man", TEXTS[3]):
        right, found = index.search(query, 5), bridged.search(query, 5)
        assert found.bridged and not right.bridged
        assert [hit.id for hit in found][:3] == [hit.id for hit in right][:3]
        assert found[0].cosine == pytest.approx(right[0].cosine, abs=1e-3)


@pytest.mark.parametrize("name", ["wider", "narrow"])
def test_other_dimensions_are_carried_over_and_the_loss_is_said(index, name, request):
    other = request.getfixturevalue(name)
    bridged = index.bridge_to(other)
    assert 0 <= bridged.bridge.overlap < 1
    assert f"queries of {name} over vectors of old: {bridged.bridge.overlap:.0%}" in bridged.bridge.summary()
    assert (bridged.model, bridged.dim, len(bridged)) == (other, 32, len(MANY))
    by_text = bridged.search("a man", 5)
    by_vector = bridged.search(other.encode(["a man"])[0], 5)
    assert [hit.id for hit in by_text] == [hit.id for hit in by_vector]


def test_a_bridge_beats_chance(index, wider):
    bridged = index.bridge_to(wider)
    assert bridged.bridge.overlap > 3 * 10 / len(MANY)


def test_a_bridge_only_answers(index, wider):
    bridged = index.bridge_to(wider)
    with pytest.raises(InputError, match="read only"):
        bridged.add(["x"])
    with pytest.raises(InputError, match="read only"):
        bridged.migrate(wider)
    with pytest.raises(InputError, match="is a bridge already"):
        bridged.bridge_to(wider)
    assert not index.bridge
    bridged.close()
    assert index.search("a man", 1)


def test_a_bridge_needs_texts(wider):
    with pytest.raises(InputError, match="at least 2 texts in the index, it has 0"):
        open_index(":memory:", wider).bridge_to(wider)
    with pytest.raises(InputError, match="vectors only"):
        open_index(":memory:", dim=4).bridge_to(wider)


def test_a_bridge_that_found_the_prompt_of_the_old_queries(tmp_path, wider):
    old = gemel.load(tiny_bert(tmp_path / "asks", prompts={"query": "how do i "}))
    index = open_index(":memory:", old)
    index.add(MANY)
    assert index.bridge_to(wider).search("a man", 3).bridged


def test_a_sample_does_not_keep_the_blocks_of_a_scan_in_memory(index):
    """Held as views, 2,000 vectors of as many blocks would be the whole table."""
    alive = []

    class Watched:
        header = index._state.table.header

        def scan(self):
            blocks = []
            for rows in index._state.table.scan(block=20):
                own = np.array(rows.vector)
                blocks.append(weakref.ref(own))
                given = replace(rows, vector=own)
                del own
                yield given
                del given
                alive.append(sum(block() is not None for block in blocks))

    state = replace(index._state, table=Watched())
    for sample in (lambda: bridge._sample(state.table, 50).texts, lambda: verifying._walk(state, 50).sample):
        alive.clear()
        assert len(sample()) == 50
        assert len(alive) > 10
        assert max(alive) <= 1  # the one that the walk has at hand
