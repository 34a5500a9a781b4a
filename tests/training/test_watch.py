"""The doctor during training: series that must stop a run, series that must not; the journal; the progress bar."""

import json
import math
import os
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from gemel.errors import GemelError, InputError, WorkError
from gemel.training.journal import Bar, MetricsJournal, Trackers, check_trackers, read_journal, untimed
from gemel.training.options import TrainOptions
from gemel.training.watch import (
    BINS,
    CONSTANT,
    OVERFLOWS,
    Collapse,
    SimilaritySample,
    TrainingHealth,
    Watch,
    alignment,
    geometry,
    health,
    similarities,
    uniformity,
)

RAW_BERT = TrainingHealth(
    step=0, mean_cosine=0.86, uniformity=-0.5, alignment=0.15, effective_rank=60.0, score=34.4
)


def at(step=100, **changes):
    return TrainingHealth(**{**RAW_BERT.to_json(), "step": step, **changes})


def watch(**changes):
    return Watch(**{"first": RAW_BERT, **changes})


def run(watched, losses, norms=None):
    """All warnings of a run with these losses."""
    norms = norms if norms is not None else [1.0] * len(losses)
    return [
        warning
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True))
        for warning in watched.step(step, loss, norm)
    ]


def falling(steps, start, end, noise=0.15, seed=0):
    random = np.random.default_rng(seed)
    curve = end + (start - end) * np.exp(-np.arange(steps) / (steps / 5))
    return (curve * np.exp(random.normal(0, noise, steps))).tolist()


# Geometry


def test_uniformity_and_alignment_are_the_paper_s_by_hand():
    square = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
    # Four pairs at right angles (distance² 2), two opposite ones (distance² 4).
    assert uniformity(square) == pytest.approx(math.log((4 * math.exp(-4) + 2 * math.exp(-8)) / 6))
    assert alignment(square, [[0, 1], [0, 2]]) == pytest.approx(3.0)
    assert alignment(square, None) is None
    assert alignment(square, np.empty((0, 2), int)) is None


def test_equal_vectors_have_uniformity_zero_cosine_one_and_no_direction():
    result = geometry(np.ones((5, 3), np.float32))
    assert (result.mean_cosine, result.uniformity, result.effective_rank) == pytest.approx(
        (1, 0, 0), abs=1e-6
    )


def test_length_does_not_matter():
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    longer = vectors * np.linspace(0.1, 9, 20)[:, None]
    one, other = geometry(vectors, [[0, 1]]).to_json(), geometry(longer, [[0, 1]]).to_json()
    assert one == pytest.approx(other, rel=1e-5)


def test_histograms_count_each_pair_once():
    vectors = np.random.default_rng(0).normal(size=(30, 8))
    pairs = [[0, 1], [1, 0], [2, 3], [4, 4]]
    result = similarities(vectors, pairs)
    assert sum(result.positive) == 4
    assert sum(result.random) == 30 * 29 // 2 - 2
    assert len(result.random) == BINS
    assert SimilaritySample.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert sum(similarities(vectors).random) == 30 * 29 // 2
    assert similarities(vectors).positive is None


@pytest.mark.parametrize("pairs", [[[0, 9]], [[-1, 0]], [0, 1], [[0, 1, 2]]])
def test_pairs_that_are_no_pairs_are_refused(pairs):
    with pytest.raises(InputError, match="two positions per row, each from 0 to 3"):
        alignment(np.eye(4), pairs)


# What stops a run


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_or_gradient_that_is_not_finite_stops_immediately(bad):
    with pytest.raises(Collapse, match="the loss is NaN or infinity at step 7: lower learning_rate"):
        watch().step(7, bad, 1.0)
    with pytest.raises(Collapse, match=r"gradient is NaN or infinity.*mixed_precision to no"):
        watch(force=True).step(7, 0.5, bad)


def test_vectors_that_are_not_finite_are_a_collapse():
    with pytest.raises(Collapse, match="vectors of the sampled texts are NaN or infinity at step 9"):
        health(9, np.array([[1.0, math.nan], [0, 1]]), None, 50.0)


def test_fp16_may_overflow_while_it_finds_its_scale_but_not_forever():
    result = watch(fp16=True)
    assert run(result, [1.0] * 16 + [0.9], [math.inf] * 16 + [1.0]) == []
    assert run(result, [1.0] * OVERFLOWS, [math.inf] * OVERFLOWS) == []
    with pytest.raises(Collapse, match="gradient is NaN"):
        result.step(99, 1.0, math.inf)


def test_equal_vectors_for_all_texts_are_a_collapse():
    with pytest.raises(Collapse, match=r"nearly the same vector at step 100.*is 0.990.*it was 0.860\. Lower"):
        watch().evaluated(at(mean_cosine=0.99, score=12.0))


def test_a_model_that_began_crowded_collapses_only_when_little_is_left():
    crowded = watch(first=at(0, mean_cosine=0.985))
    assert crowded.evaluated(at(mean_cosine=0.99)) == []
    with pytest.raises(Collapse, match="nearly the same vector"):
        crowded.evaluated(at(mean_cosine=0.9995, score=3.0))


def test_few_directions_are_a_collapse():
    with pytest.raises(Collapse, match=r"effective rank of 4\.0, at the start it was 60\.0"):
        watch().evaluated(at(effective_rank=4.0, score=20.0))
    with pytest.raises(Collapse, match="few directions"):
        watch(first=at(0, score=None, alignment=None)).evaluated(
            at(effective_rank=4.0, score=None, alignment=None)
        )


def test_fewer_directions_than_a_quarter_are_worth_a_warning():
    first, now = at(0, score=None, alignment=None), at(effective_rank=10.0, score=None, alignment=None)
    (warning,) = watch(first=first).evaluated(now)
    assert (
        "an effective rank of 10.0, at the start it was 60.0" in warning and "lower learning_rate" in warning
    )
    assert watch(first=first).evaluated(replace(now, effective_rank=16.0)) == []


def test_few_directions_warn_although_the_score_rises():
    """Classification at a high rate scores better than the untrained model, and worse than at a lower rate."""
    (warning,) = watch().evaluated(at(effective_rank=10.0, score=40.0))
    assert "lower learning_rate" in warning


def test_few_directions_of_groups_that_moved_together_are_no_reason_to_warn():
    first = at(0)
    assert watch(first=first).evaluated(at(effective_rank=10.0, alignment=first.alignment / 4)) == []


def test_groups_need_one_direction_fewer_than_there_are_groups():
    few = at(effective_rank=4.0, score=None)
    assert watch(groups=6).evaluated(few) == []
    with pytest.raises(Collapse, match="few directions"):
        watch(groups=200).evaluated(few)
    with pytest.raises(Collapse, match="nearly the same vector"):
        watch(groups=2).evaluated(at(effective_rank=1.0, mean_cosine=0.999, score=None))


def test_a_real_collapse_is_seen_in_the_vectors():
    random = np.random.default_rng(0)
    spread, pairs = random.normal(size=(200, 32)), [[row, row + 100] for row in range(100)]
    first = health(0, spread, pairs, 30.0)
    one_point = np.ones(32) + 1e-3 * random.normal(size=(200, 32))
    with pytest.raises(Collapse, match="nearly the same vector"):
        Watch(first=first).evaluated(health(10, one_point, pairs, 5.0))
    one_line = random.normal(size=(200, 1)) * np.ones(32) + 1e-3 * spread
    with pytest.raises(Collapse, match="few directions"):
        Watch(first=first).evaluated(health(10, one_line, pairs, 5.0))


def test_a_loss_that_never_changes_stops_the_run():
    with pytest.raises(Collapse, match=f"exactly 1 for {CONSTANT} steps"):
        run(watch(), [1.3, 1.2] + [1.0] * CONSTANT)
    assert run(watch(), [1.3, 1.2] + [1.0] * (CONSTANT - 1)) == []


def test_no_gradient_stops_the_run():
    losses = falling(CONSTANT, 1.0, 0.9)
    with pytest.raises(Collapse, match=f"the gradient has been 0 for {CONSTANT} steps.*Freeze fewer layers"):
        run(watch(), losses, [0.0] * CONSTANT)


def test_a_diverging_loss_stops_the_run():
    with pytest.raises(Collapse, match=r"the run diverges\. Lower learning_rate"):
        run(watch(), falling(200, 3.0, 0.4) + [2 + step for step in range(40)])


def test_force_turns_a_stop_into_one_warning():
    forced = watch(force=True)
    warning = [forced.evaluated(at(step, mean_cosine=0.99, score=12.0)) for step in (10, 20)]
    assert [len(each) for each in warning] == [2, 0]  # the vectors, and the score
    assert warning[0][0].endswith("Training continues because of force")
    assert len(run(forced, [1.0] * 200)) == 1


def test_a_collapse_is_an_error_of_the_work():
    assert issubclass(Collapse, WorkError)
    assert issubclass(Collapse, GemelError)


# What warns


def test_a_score_far_below_the_untrained_model_s_warns_once():
    result = watch()
    assert result.evaluated(at(score=30.0)) == []
    (warning,) = result.evaluated(at(200, score=20.0))
    assert "20.00 at step 200, far below the 34.40 of the untrained model" in warning
    assert result.evaluated(at(300, score=19.0)) == []


def test_a_loss_of_zero_for_long_warns_because_all_is_learned():
    (warning,) = run(watch(), falling(50, 1.0, 0.1) + [0.0] * 200, [1.0] * 50 + [0.0] * 200)
    assert "nothing is left to learn" in warning


def test_vectors_of_few_groups_are_no_collapse():
    """A run on six labels correctly ends with six directions."""
    random = np.random.default_rng(0)
    groups = random.integers(0, 6, 300)
    pairs = [[row, row + 1] for row in range(299) if groups[row] == groups[row + 1]]
    first = health(0, random.normal(size=(300, 64)) + 2, pairs, None)
    ends = np.eye(64)[groups] + 0.01 * random.normal(size=(300, 64))
    now = health(500, ends, pairs, None)
    assert now.effective_rank < 0.15 * first.effective_rank
    (warning,) = Watch(first=replace(first, effective_rank=64.0)).evaluated(replace(now, effective_rank=5.0))
    assert warning.endswith("so training continues")


def test_crowded_vectors_that_score_better_are_no_collapse():
    (warning,) = watch().evaluated(at(mean_cosine=0.985, score=60.0))
    assert warning.endswith("the score is not lower (60.00), so training continues")


# What is normal


@pytest.mark.parametrize("start", [0.8, 0.86, 0.9, 0.97, 0.986])
def test_a_raw_bert_whose_vectors_spread_gives_no_warning(start):
    result = watch(first=at(0, mean_cosine=start))
    for step, cosine in enumerate(np.linspace(start, 0.3, 10)):
        assert result.evaluated(at(step, mean_cosine=float(cosine), score=40.0, effective_rank=50.0)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("start", "end", "noise"),
    [
        (1.1, 0.75, 0.1),  # classification of NLI, batches of 16
        (
            4.1,
            0.02,
            0.9,
        ),  # in-batch ranking that nearly solves its batches: a hard one is 20 times the median
        (0.15, 0.02, 0.4),  # regression
        (1.0, 1e-4, 1.5),  # triplets that are almost all satisfied
    ],
)
def test_falling_losses_give_no_warning(start, end, noise, seed):
    norms = np.random.default_rng(seed).lognormal(0, 1, 2000).tolist()
    assert run(watch(), falling(2000, start, end, noise, seed), norms) == []


@pytest.mark.parametrize("seed", range(5))
def test_an_occasional_loss_of_zero_gives_no_warning(seed):
    random = np.random.default_rng(seed)
    losses = np.where(random.random(2000) < 0.6, 0.0, random.exponential(0.3, 2000))
    assert run(watch(), losses.tolist(), losses.tolist()) == []


def test_one_bad_batch_gives_no_warning():
    losses = falling(300, 3.0, 0.4)
    losses[200] = 500.0
    assert run(watch(), losses) == []


def test_a_resumed_watch_sees_what_the_first_would_have_seen():
    whole = falling(200, 3.0, 0.4) + [2.0 + step for step in range(40)]
    for cut in (3, 20, 150, 205):
        before, after = watch(), watch()
        run(before, whole[:cut])
        after.restore(json.loads(json.dumps(before.state())))
        steps = []
        for result in (before, after):
            with pytest.raises(Collapse) as stopped:
                run(result, whole[cut:])
            steps.append(str(stopped.value))
        assert steps[0] == steps[1]


# Journal


def write_run(path, stop_after=None, resume_at=None):
    """Ten steps, a checkpoint after every third; dies after the line number `stop_after`."""
    with MetricsJournal.open(path, resume_at_step=resume_at) as journal:
        lines = 0
        if resume_at is None:
            journal.write("start", 0, options={"seed": 0})
        else:
            journal.write("resume", resume_at)
        for step in range((resume_at or 0) + 1, 11):
            wanted = [("step", {"loss": 1 / step, "texts_per_second": os.getpid() + lines})]
            if step % 3 == 0:
                wanted += [("evaluation", {"score": step}), ("checkpoint", {})]
            for kind, values in wanted:
                journal.write(kind, step, **values)
                lines += 1
                if lines == stop_after:
                    return
        journal.write("end", 10)


@pytest.mark.parametrize("stop_after", [5, 6, 7, 9, 10])
def test_a_resumed_journal_equals_an_uninterrupted_one(tmp_path, stop_after):
    write_run(tmp_path / "whole.jsonl")
    write_run(tmp_path / "cut.jsonl", stop_after=stop_after)
    with (tmp_path / "cut.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "st')  # killed in the middle of a line
    checkpoints = [
        line["step"] for line in read_journal(tmp_path / "cut.jsonl") if line["kind"] == "checkpoint"
    ]
    write_run(tmp_path / "cut.jsonl", resume_at=checkpoints[-1])
    resumed = read_journal(tmp_path / "cut.jsonl")
    assert untimed(resumed) == untimed(read_journal(tmp_path / "whole.jsonl"))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["cut.jsonl", "whole.jsonl"]


def test_lines_are_flushed_immediately_and_contain_no_nan(tmp_path):
    journal = MetricsJournal.open(tmp_path / "new" / "metrics.jsonl")
    journal.write("step", 3, loss=math.nan, norm=np.float32(0.5), sizes=(1, 2), path=tmp_path, text="\ud800ü")
    (line,) = read_journal(tmp_path / "new" / "metrics.jsonl")
    assert (line["loss"], line["norm"], line["sizes"]) == (None, 0.5, [1, 2])
    assert line["time"].endswith("+00:00")
    journal.close()
    journal.close()


def test_a_journal_without_checkpoints_is_cut_by_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsJournal.open(path) as journal:
        for step in range(5):
            journal.write("step", step)
    MetricsJournal.open(path, resume_at_step=2).close()
    assert [line["step"] for line in read_journal(path)] == [0, 1, 2]
    MetricsJournal.open(path, resume_at_step=0).close()
    assert read_journal(path) == []


def test_a_new_run_begins_a_new_journal(tmp_path):
    write_run(tmp_path / "metrics.jsonl")
    MetricsJournal.open(tmp_path / "metrics.jsonl").close()
    assert read_journal(tmp_path / "metrics.jsonl") == []


def test_a_journal_without_a_file_discards_lines(tmp_path):
    with MetricsJournal.nowhere() as journal:
        journal.write("step", 1, loss=0.5)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_journal_is_refused_with_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "step", "step": 1}\nnonsense\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not JSON"):
        read_journal(path)
    path.write_text("[]\n")
    with pytest.raises(
        InputError, match=r"metrics\.jsonl:1: a line of the metrics must have a kind and a step"
    ):
        read_journal(path)
    with pytest.raises(InputError, match="cannot read the metrics"):
        read_journal(tmp_path / "none.jsonl")


def test_a_journal_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot write the metrics to"):
        MetricsJournal.open(tmp_path / "file" / "metrics.jsonl")


# Progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_bar_says_step_loss_speed_time_left_and_score(capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    clock = Clock()
    bar = Bar(100, shown=True, clock=clock)
    for step in range(1, 11):
        clock.now += 1.0
        bar.step(step, loss=0.5, texts=64)
    clock.now += 10.0  # an evaluation costs time, but no speed
    bar.evaluated("spearman 61.20")
    clock.now += 1.0
    bar.step(11, loss=0.5, texts=64)
    bar.close()
    err = capsys.readouterr().err
    last = err.rsplit("\r", 1)[-1]
    assert last.rstrip() == "step 11 of 100, loss 0.5000, 64 texts/s, 2:50 left, spearman 61.20"
    assert err.endswith("\n")


def test_a_resumed_bar_counts_only_its_own_steps_for_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    clock = Clock()
    bar = Bar(100, shown=True, start=90, clock=clock)
    clock.now = 2.0
    bar.step(91, loss=1.0, texts=10)
    assert "step 91 of 100, loss 1.0000, 5 texts/s, 0:18 left" in capsys.readouterr().err


def test_a_message_gets_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    clock = Clock()
    bar = Bar(10, shown=True, clock=clock)
    clock.now = 1.0
    bar.step(1, loss=1.0, texts=1)
    bar.say("the score fell")
    assert "\nthe score fell\n" in re.sub(r" *[\r\n]", "\n", capsys.readouterr().err)


def test_nothing_is_written_unless_progress_is_shown(capsys):
    bar = Bar(10, shown=False)
    bar.step(1, loss=1.0, texts=1)
    bar.evaluated("spearman 1")
    bar.say("warning")
    bar.close()
    assert capsys.readouterr().err == ""


# Trackers


class FakeTracker:
    def __init__(self):
        self.finished = False

    def finish(self):
        self.finished = True


class FakeAccelerator:
    """The members of an accelerator that trackers use."""

    def __init__(self, fails=False):
        self.logging_dir, self.log_with, self.trackers = None, [], []
        self.project_configuration = SimpleNamespace(logging_dir=None)
        self.fails, self.logged = fails, []

    def init_trackers(self, name, config):
        self.name, self.config = name, config
        self.trackers = [FakeTracker()]

    def log(self, values, step):
        if self.fails:
            raise ConnectionError("no route to host")
        self.logged.append((step, values))


@pytest.fixture
def all_installed(monkeypatch):
    monkeypatch.setattr("gemel.training.journal.find_spec", lambda name: name)


def test_without_names_nothing_is_tracked():
    accelerator = FakeAccelerator()
    trackers = Trackers(accelerator, (), "run", {})
    trackers.log({"loss": 1.0}, 1)
    trackers.end()
    assert (accelerator.logged, accelerator.trackers) == ([], [])


def test_trackers_get_numbers_and_plain_settings(all_installed):
    pytest.importorskip("accelerate", reason="trackers are started by accelerate, in the train extra")
    accelerator = FakeAccelerator()
    options = asdict(TrainOptions(matryoshka=(64, 32), tracker=("wandb",)))
    trackers = Trackers(accelerator, ("wandb",), "my-model", options)
    assert accelerator.name == "my-model"
    assert accelerator.config["matryoshka"] == "64, 32"
    assert accelerator.config["learning_rate"] == 2e-5
    assert all(isinstance(value, str | int | float) for value in accelerator.config.values())
    trackers.log({"loss": 1.0, "score": None}, 7)
    (tracker,) = accelerator.trackers
    trackers.end()
    trackers.end()
    assert accelerator.logged == [(7, {"loss": 1.0})]
    assert tracker.finished


def test_a_tracker_that_fails_does_not_end_the_run(all_installed):
    pytest.importorskip("accelerate", reason="trackers are started by accelerate, in the train extra")
    trackers = Trackers(FakeAccelerator(fails=True), ("mlflow",), "run", {})
    with pytest.warns(UserWarning, match="a tracker failed at step 3 and is switched off: no route to host"):
        trackers.log({"loss": 1.0}, 3)
    trackers.log({"loss": 1.0}, 4)


def test_an_unknown_tracker_is_refused():
    with pytest.raises(InputError, match=r"unknown tracker 'tensorbord'\. Did you mean 'tensorboard'\?"):
        check_trackers(["tensorbord"])


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("gemel.training.journal.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"'wandb', which is not installed\. Install it with: pip install wandb"
    ):
        check_trackers(["wandb"])


def test_tensorboard_gets_files(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from accelerate import Accelerator

    trackers = Trackers(
        Accelerator(cpu=True), ("tensorboard",), "run", asdict(TrainOptions()), folder=tmp_path
    )
    trackers.log({"loss": 0.5}, 1)
    trackers.end()
    assert any(path.name.startswith("events.out") for path in (tmp_path / "run").iterdir())
