"""Small parts with a law each: pooling, windows, batches, lanes, progress, sizes."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemel.encoder.batches import Lanes, same_length_batches, usable_cores
from gemel.encoder.pooling import POOLINGS, pool
from gemel.encoder.tokenizer import SpecialTokens, cut
from gemel.errors import InputError
from gemel.options import parse_bytes
from gemel.terminal import Progress

MARKS = SpecialTokens(np.array([1], np.int32), np.array([2], np.int32))


def hidden(b, t, d=20, seed=0):
    return np.random.default_rng(seed).normal(size=(b, t, d)).astype(np.float32)


@pytest.mark.parametrize("name", list(POOLINGS))
@pytest.mark.parametrize("tokens", [1, 2, 9, 64])
def test_rows_of_a_pooling_do_not_see_each_other(name, tokens):
    states = hidden(7, tokens)
    together = POOLINGS[name](states)
    assert together.shape == (7, 20) and together.dtype == np.float32
    assert all(np.array_equal(POOLINGS[name](states[i : i + 1])[0], together[i]) for i in range(7))


def test_poolings_by_hand():
    states = np.array([[[1, 8], [3, 4], [5, 0]]], np.float32)
    wanted = {
        "mean": [3, 4],
        "cls": [1, 8],
        "max": [5, 8],
        "last": [5, 0],
        "mean-sqrt-len": [9 / 3**0.5, 12 / 3**0.5],
        "weighted-mean": [(1 + 6 + 15) / 6, (8 + 8) / 6],
    }
    assert sorted(wanted) == list(POOLINGS)
    for name, vector in wanted.items():
        np.testing.assert_allclose(POOLINGS[name](states)[0], vector, rtol=1e-6)


def test_joined_poolings_and_a_prompt_left_out():
    states = hidden(2, 5)
    joined = pool(states, ("cls", "mean"))
    assert np.array_equal(joined, np.concatenate([POOLINGS["cls"](states), POOLINGS["mean"](states)], axis=1))
    assert np.array_equal(pool(states, ("mean",), skip=2), POOLINGS["mean"](states[:, 2:]))
    assert not pool(states, ("mean",), skip=9).any()


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 40))
def test_batches_hold_every_position_once_and_one_length_each(lengths, budget):
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
    windows = cut(content, MARKS, limit, "chunk")
    assert all(len(piece) <= limit and piece[0] == 1 and piece[-1] == 2 for piece in windows.pieces)
    assert set(content) <= {int(i) for piece in windows.pieces for i in piece[1:-1]}
    assert windows.tokens == windows.kept == tokens + 2
    short = cut(content, MARKS, limit, "truncate")
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


def test_lanes_use_that_many_threads_and_no_more():
    seen, gate = set(), threading.Barrier(3, timeout=20)

    def work(batch):
        seen.add(threading.get_ident())
        gate.wait()

    Lanes().run(work, [1, 2, 3, 4, 5, 6], threads=3)
    assert len(seen) == 3 and usable_cores() >= 1


@pytest.mark.parametrize(
    ("size", "count"), [(7, 7), ("7", 7), ("2 kB", 2000), ("1.5MB", 1_500_000), ("1GiB", 2**30)]
)
def test_sizes_are_read(size, count):
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "MB", "-1", 0, -5, "1 parsec", True, None, "0.1"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match="memory must be bytes or a size like"):
        parse_bytes(size)


def test_progress_counts_to_the_end_and_is_silent_unless_shown(capsys):
    for shown in (True, False):
        progress = Progress(10, "texts", shown=shown)
        [progress.add(5) for _ in range(2)]
        progress.close()
        line = capsys.readouterr().err
        assert ("10 of 10 texts" in line) is shown
