"""Properties of batches, windows and lanes."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemel.encoder.batches import Lanes, same_length_batches
from gemel.encoder.tokenizer import SpecialTokens, cut

SPECIAL = SpecialTokens(np.array([1], np.int32), np.array([2], np.int32))


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 40))
def test_batches_contain_every_position_once_and_one_length_each(lengths, budget):
    batches = same_length_batches(lengths, lambda length: budget // length if length else 1)
    assert sorted(p for batch in batches for p in batch) == list(range(len(lengths)))
    for batch in batches:
        length = lengths[batch[0]]
        assert {lengths[p] for p in batch} == {length}
        assert len(batch) == 1 or len(batch) * max(length, 1) <= budget
    firsts = [lengths[batch[0]] for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


@given(st.integers(0, 200), st.integers(3, 40))
def test_windows_cover_every_token_and_fit(tokens, limit):
    content = np.arange(10, 10 + tokens, dtype=np.int32)
    windows = cut(content, SPECIAL, limit, "chunk")
    assert all(len(piece) <= limit and piece[0] == 1 and piece[-1] == 2 for piece in windows.pieces)
    assert set(content) <= {int(i) for piece in windows.pieces for i in piece[1:-1]}
    assert windows.tokens == windows.kept == tokens + 2
    short = cut(content, SPECIAL, limit, "truncate")
    assert len(short.pieces) == 1 and short.kept == min(tokens + 2, limit)


def test_an_error_in_a_lane_stops_the_rest_and_is_raised():
    done = []

    def work(batch):
        if batch == 3:
            raise ValueError("no")
        done.append(batch)

    lanes = Lanes()
    with pytest.raises(ValueError, match="no"):
        lanes.run(work, list(range(1, 200)), threads=2)
    assert len(done) < 199
    lanes.run(done.append, [500, 501], threads=2)
    assert {500, 501} <= set(done)


def test_lanes_use_the_requested_number_of_threads():
    seen, gate = set(), threading.Barrier(3, timeout=20)

    def work(batch):
        seen.add(threading.get_ident())
        gate.wait()

    Lanes().run(work, [1, 2, 3, 4, 5, 6], threads=3)
    assert len(seen) == 3
