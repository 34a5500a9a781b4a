"""The order of training: every row once, the same for the same seed, like lengths together, no text twice."""

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.training.data import open_examples
from gemel.training.objectives.base import Needs
from gemel.training.options import TrainOptions
from gemel.training.sampler import WINDOW, EpochSampler


class Fake:
    """Rows of numbers written as texts; equal numbers are equal texts."""

    name = "fake"
    classes = ()

    def __init__(self, texts, lengths=None):
        self.texts = np.asarray(texts)
        self.roles = ("anchor", "positive", "negative")[: self.texts.shape[1]]
        self.lengths = np.ones(len(self.texts), np.int32) if lengths is None else lengths

    def __len__(self):
        return len(self.texts)

    @property
    def hashes(self):
        return self.texts.astype(np.uint64)


def unlike(rows, width=2):
    return Fake(np.arange(rows * width).reshape(rows, width))


def drawn(epoch, dataset=0):
    return [draw.rows.tolist() for draw in epoch if draw.dataset == dataset]


def flat(batches):
    return [row for batch in batches for row in batch]


def clashes(examples, rows):
    sets = [set(row) for row in examples.texts[rows].tolist()]
    return sum(map(len, sets)) != len(set().union(*sets))


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 160, 3333])
@pytest.mark.parametrize("group", [True, False])
def test_every_row_is_drawn_once_an_epoch(rows, group):
    sampler = EpochSampler([unlike(rows)], batch_size=16, seed=3, group_by_length=group)
    batches = drawn(sampler.epoch(0))
    assert sorted(flat(batches)) == list(range(rows))
    assert [len(batch) for batch in batches[:-1]] == [16] * (-(-rows // 16) - 1)


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return flat(drawn(EpochSampler([unlike(200)], batch_size=8, seed=seed).epoch(epoch)))

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}) == 6


def test_an_epoch_is_made_without_the_ones_before_it():
    used = EpochSampler([unlike(100)], batch_size=8, seed=0)
    for number in range(3):
        used.epoch(number)
    fresh = EpochSampler([unlike(100)], batch_size=8, seed=0)
    assert drawn(used.epoch(3)) == drawn(fresh.epoch(3))


def test_the_global_random_state_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    EpochSampler([unlike(100)], batch_size=8, seed=0).epoch(0)
    assert np.random.get_state()[1].tolist() == before


def test_a_slice_is_what_a_resumed_run_still_has_to_do():
    epoch = EpochSampler([unlike(100), unlike(50)], batch_size=8, seed=0).epoch(0)
    whole = [(draw.dataset, draw.rows.tolist()) for draw in epoch]
    assert [(draw.dataset, draw.rows.tolist()) for draw in epoch[5:]] == whole[5:]
    assert (len(epoch), len(epoch[5:]), epoch[-1].rows.tolist()) == (20, 15, whole[-1][1])


def test_rows_of_like_length_share_a_batch():
    lengths = np.random.default_rng(0).integers(1, 1000, 16 * WINDOW).astype(np.int32)
    examples = Fake(np.arange(32 * WINDOW).reshape(-1, 2), lengths)

    def spread(group):
        batches = drawn(EpochSampler([examples], batch_size=16, seed=0, group_by_length=group).epoch(0))
        return np.mean([np.ptp(lengths[batch]) for batch in batches]), batches

    grouped, batches = spread(True)
    assert grouped < 20
    assert spread(False)[0] > 600
    means = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3  # the order is not by length


def test_batches_are_a_random_choice_of_rows_unless_grouping_is_requested():
    lengths = np.arange(1600, dtype=np.int32)
    examples = Fake(np.arange(3200).reshape(-1, 2), lengths)
    assert TrainOptions().group_by_length is False
    means = [lengths[rows].mean() for rows in drawn(EpochSampler([examples], batch_size=16, seed=0).epoch(0))]
    assert np.std(means) < 1.3 * lengths.std() / 4  # the mean of 16 random rows


@pytest.mark.parametrize("group", [True, False])
def test_no_text_is_in_two_rows_of_a_batch(group):
    random = np.random.default_rng(0)
    texts = np.column_stack(
        [random.integers(0, 400, 2000), random.integers(200, 900, 2000), np.arange(2000) + 10**6]
    )
    examples = Fake(texts, random.integers(1, 99, 2000).astype(np.int32))
    sampler = EpochSampler([examples], batch_size=16, seed=0, distinct=True, group_by_length=group)
    for number in range(3):
        epoch = sampler.epoch(number)
        batches = drawn(epoch)
        assert not any(clashes(examples, batch) for batch in batches)
        assert all(2 <= len(batch) <= 16 for batch in batches)
        assert len(flat(batches)) == len(set(flat(batches))) == 2000 - epoch.dropped
        assert epoch.dropped < 20
        assert len(batches) < 2000 / 16 * 1.1


def test_rows_of_different_lengths_fill_their_batches_when_they_must_be_distinct():
    epoch = EpochSampler([unlike(321)], batch_size=16, seed=0, distinct=True).epoch(0)
    sizes = [len(batch) for batch in drawn(epoch)]
    assert sorted(sizes) == [2, 15, *[16] * 19]  # 320 + 1: no row is alone in a batch
    assert (sizes[-1], epoch.dropped) == (2, 0)


def test_a_text_twice_in_one_row_is_no_clash():
    examples = Fake([[row, row] for row in range(32)])
    epoch = EpochSampler([examples], batch_size=16, seed=0, distinct=True).epoch(0)
    assert [len(batch) for batch in drawn(epoch)] == [16, 16]


def test_rows_that_fit_into_no_batch_are_dropped_and_counted():
    examples = Fake([[0, row + 1] for row in range(90)] + [[row, row] for row in range(1000, 1010)])
    epoch = EpochSampler([examples], batch_size=10, seed=0, distinct=True).epoch(0)
    batches = drawn(epoch)
    assert not any(clashes(examples, batch) for batch in batches)
    assert len(flat(batches)) == 100 - epoch.dropped
    assert epoch.dropped >= 80


def test_data_in_which_all_rows_share_a_text_is_refused():
    with pytest.raises(InputError, match="Is one column the same text in every row"):
        EpochSampler([Fake([[0, row + 1] for row in range(50)])], batch_size=8, seed=0, distinct=True).epoch(
            0
        )
    with pytest.raises(InputError, match="batch_size must be at least 2, got 1"):
        EpochSampler([unlike(4)], batch_size=1, seed=0, distinct=True)


def test_proportional_mixing_draws_all_of_all_data_sets_in_a_random_order():
    sampler = EpochSampler([unlike(400), unlike(100)], batch_size=10, seed=0)
    epoch = sampler.epoch(0)
    assert [sorted(flat(drawn(epoch, part))) for part in (0, 1)] == [list(range(400)), list(range(100))]
    second = [index for index, draw in enumerate(epoch) if draw.dataset == 1]
    assert 15 < np.mean(second) < 35
    assert second != list(range(40, 50))


def test_round_robin_takes_turns_until_the_smallest_ends():
    sampler = EpochSampler([unlike(400), unlike(95)], batch_size=10, seed=0, mixing="round-robin")
    epoch = sampler.epoch(0)
    assert [draw.dataset for draw in epoch] == [0, 1] * 10
    assert sorted(flat(drawn(epoch, 1))) == list(range(95))
    assert set(flat(drawn(epoch, 0))) != set(flat(drawn(sampler.epoch(1), 0)))


def test_rows_of_a_label_come_in_fours_where_triplets_are_mined():
    labels = np.arange(77 * 10) % 77
    rows = [{"text": f"text {number}", "label": int(label)} for number, label in enumerate(labels)]
    examples = open_examples(rows, Needs(texts=("text",), label="group"))
    draws = EpochSampler([examples], batch_size=16, seed=0, together=True).epoch(0)
    seen = np.concatenate([draw.rows for draw in draws])
    assert sorted(seen.tolist()) == list(range(len(rows)))
    alone = 0
    for draw in draws:
        group = examples.batch(draw.rows).label
        alone += sum((group == one).sum() == 1 for one in group)
    assert alone < 0.1 * len(rows)
