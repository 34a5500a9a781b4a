"""A run in its folder: the loop with everything that watches it, writes it down and takes it up again.

out/                     the model, once training is done
  training/
    options.json         what was asked for
    metrics.jsonl        what happened
    snapshots/           what a resume starts from
    best/                the best model so far
    report.html

The model of a run takes its place in the output folder, beside the run's own files.

Every file appears whole, and `modules.json`, which makes a folder a model, appears last.

A few texts and positive pairs of the training data, held to see how their vectors lie before, during and after.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.evaluation.evaluate import score_tasks
from gemel.evaluation.task import Task
from gemel.training.card import MeasuredScores, measured
from gemel.training.data.store import Batch, Examples
from gemel.training.journal import FILE, Bar, MetricsJournal, Trackers
from gemel.training.loop import Loop, Observers, Position, Step
from gemel.training.network import TrainableNetwork
from gemel.training.objectives.base import Needs, Objective
from gemel.training.options import TrainOptions
from gemel.training.sampler import EpochSampler
from gemel.training.snapshots import Snapshots, read_snapshot
from gemel.training.watch import Collapse, TrainingHealth, Watch, health, similarities

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

_LINES = 2000  # of steps in the journal, about


@dataclass(frozen=True)
class TrainResult:
    """What a run gave."""

    folder: Path
    steps: int
    best_step: int
    """The step whose model was kept; the last one where nothing was evaluated."""
    untrained: float | None
    """The score before the first step, in points."""
    score: float | None
    """The score of the model that was kept."""
    texts: int
    seconds: float
    """Of this process; a resumed run counts from its resume."""
    stopped: str = ""
    """Why it ended before its last step."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    def summary(self) -> str:
        """One line for a person."""
        said = f"{self.folder}: {self.steps:,} steps, {self.texts:,} texts, {self.seconds:.0f} s"
        if self.score is None:
            return said
        before = "" if self.untrained is None else f", {self.untrained:.2f} before training"
        return f"{said}; best score {self.score:.2f} at step {self.best_step:,}{before}"


@dataclass(eq=False)
class TrainingRun:
    """All parts of one run."""

    network: TrainableNetwork
    objective: Objective
    weights: nn.Module | None
    examples: Sequence[Examples]
    options: TrainOptions
    out: Path
    tasks: Sequence[Task]
    accelerator: Accelerator
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the model keeps beside its weights, and what the report says of data and model."""

    def __post_init__(self) -> None:
        self.folder = self.out / "training"
        self.snapshots = Snapshots(self.folder / "snapshots", self.options.keep_checkpoints)
        self.held: GeometrySample = hold(self.examples, self.objective.needs, self.options.seed)
        self.untrained: tuple[MeasuredScores, ...] = ()
        """The evaluation before the first step, data set by data set."""

    def start(self, *, resume: bool) -> TrainResult:
        """Run to the end and publish the model; a collapse ends with a `Collapse` that says what is kept."""
        started = perf_counter()
        self._open(resume)
        try:
            return self._finish(self.loop.run(), perf_counter() - started)
        except Collapse as collapse:
            self.journal.write("end", self.loop.position.step, stopped=str(collapse))
            raise Collapse(f"{collapse}. {self._kept()}") from None
        finally:
            self.journal.close()
            self.bar.close()
            self.trackers.end()

    # Opening: a new run, or an old one taken up.

    def _open(self, resume: bool) -> None:
        sampler = EpochSampler(
            self.examples,
            batch_size=self.options.batch_size,
            seed=self.options.seed,
            group_by_length=self.options.group_by_length,
            distinct=self.objective.needs.distinct,
            together=self.objective.needs.label == "group",
            mixing=self.options.mixing,
        )
        observers = Observers(self._before, self._step, self._evaluate, self._better, self._snapshot)
        self.loop = Loop(
            self.network,
            self.objective,
            self.examples,
            sampler,
            self.options,
            self.accelerator,
            self.weights,
            observers,
        )
        self.trackers = Trackers(
            self.accelerator, self.options.tracker, self.out.name, asdict(self.options), folder=self.folder
        )
        newest = self.snapshots.newest() if resume else None
        if newest is None:
            self._begin()
        else:
            self._take_up(newest)
        first, start = self.loop.processes.first, self.loop.position.step
        self.bar = Bar(self.loop.steps, shown=self.options.progress and first, start=start)
        self.loop.processes.wait()

    def _begin(self) -> None:
        first = self.loop.processes.first
        self.journal = MetricsJournal.open(self.folder / FILE) if first else MetricsJournal.nowhere()
        dropped = getattr(self.loop.sampler.epoch(0), "dropped", 0)
        self.journal.write("start", 0, **self._identity(), steps=self.loop.steps, rows_dropped=dropped)
        score = self.loop.processes.tell(self._score(0) if first else None)
        self.score_before = score
        self.first = self._health(0, score) if self.network.gives_vectors else None
        self.watch = Watch(
            first=self.first, force=self.options.force, fp16=self.options.mixed_precision == "fp16"
        )
        self._note_similarities(0)

    def _take_up(self, newest: Path) -> None:
        snapshot = read_snapshot(newest)
        self._same_run(snapshot.state["run"], newest)
        self.loop.restore(snapshot)
        self.score_before = snapshot.state["score_before"]
        self.untrained = tuple(MeasuredScores.from_json(each) for each in snapshot.state["untrained"])
        self.first = TrainingHealth(**snapshot.state["first"]) if snapshot.state["first"] else None
        self.watch = Watch(
            first=self.first, force=self.options.force, fp16=self.options.mixed_precision == "fp16"
        )
        self.watch.restore(snapshot.state["watch"])
        step = self.loop.position.step
        first = self.loop.processes.first
        self.journal = (
            MetricsJournal.open(self.folder / FILE, resume_at_step=step)
            if first
            else MetricsJournal.nowhere()
        )
        self.journal.write("resume", step)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to be taken up: everything that its weights depend on."""
        free = ("progress", "tracker", "keep_checkpoints", "skip_bad", "force", "threads", "device")
        options = {name: value for name, value in asdict(self.options).items() if name not in free}
        return {
            **{name: self.about.get(name) for name in ("model", "network", "pooling", "evaluation")},
            "objective": self.objective.name,
            "settings": self.about.get("settings", {}),
            "options": json.loads(json.dumps(options)),
            "data": [each.fingerprint() for each in self.examples],
            "processes": self.loop.processes.world,
        }

    def _same_run(self, before: Mapping[str, Any], newest: Path) -> None:
        now = self._identity()
        # An option that the older gemel did not have yet: its default is what that gemel did.
        old = {**json.loads(json.dumps(asdict(TrainOptions()))), **before.get("options", {})}
        options = now["options"]
        before = {**before, "options": {name: old[name] for name in options}}
        changed = [name for name in now if now[name] != before.get(name)]
        if "options" in changed:
            changed += [name for name, value in options.items() if value != old[name]]
            changed.remove("options")
        if changed:
            raise InputError(
                f"{newest} is of another run: {', '.join(changed)} changed. Resume with the same settings and data, "
                "or train into another folder"
            )

    # What the loop tells.

    def _before(self, step: int, loss: float, norm: float) -> None:
        self._warn(step, self.watch.step(step, loss, norm))

    def _step(self, step: Step) -> None:
        self.bar.step(step.number, step.loss, step.texts)
        if step.number % max(1, self.loop.steps // _LINES) == 0 or step.number == self.loop.steps:
            values = {
                "loss": step.loss,
                "gradient_norm": step.gradient_norm,
                "learning_rate": step.learning_rate,
                "texts": self.loop.position.texts,
            }
            self.journal.write("step", step.number, **values)
            self.trackers.log(values, step.number)

    def _evaluate(self, step: int) -> float | None:
        own = self._score(step) if self.loop.processes.first else None
        score = self.loop.processes.tell(own)
        self.bar.evaluated("" if score is None else f"score {score:.2f}")
        if self.network.gives_vectors:
            self._warn(step, self.watch.evaluated(self._health(step, score)))
        return score

    def _score(self, step: int) -> float | None:
        """The mean of the tasks' main numbers, in points."""
        if not self.tasks:
            return None
        found = list(score_tasks(self.tasks, self.network.encoder()))
        if step == 0:
            self.untrained = measured(found)
        whole = found[-1]
        score = whole.values[whole.main].value
        named = {f"{each.dataset}-{each.main}": each.values[each.main].value for each in found}
        self.journal.write("evaluation", step, score=score, scores=named)
        self.trackers.log({"score": score, **named}, step)
        return score

    def _health(self, step: int, score: float | None) -> TrainingHealth:
        vectors = self.network.encoder().encode(self.held.texts)
        found = health(step, vectors, self.held.pairs if len(self.held.pairs) else None, score)
        self.journal.write("health", step, **{k: v for k, v in found.to_json().items() if k != "step"})
        return found

    def _note_similarities(self, step: int) -> None:
        if not self.network.gives_vectors:
            return
        vectors = self.network.encoder().encode(self.held.texts)
        pairs = self.held.pairs if len(self.held.pairs) else None
        self.journal.write("similarities", step, **similarities(vectors, pairs).to_json())

    def _better(self, step: int) -> None:
        if self.loop.processes.first:
            self._write_model(self.folder / "best")

    def _snapshot(self, position: Position) -> None:
        if self.loop.processes.first:
            self.journal.write("checkpoint", position.step)
            state = {
                "run": self._identity(),
                "position": self.loop.place(),
                "score_before": self.score_before,
                "untrained": [asdict(each) for each in self.untrained],
                "first": self.first.to_json() if self.first else None,
                "watch": self.watch.state(),
            }
            self.snapshots.write(position.step, state, self.loop.state())

    def _warn(self, step: int, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self.journal.write("warning", step, text=sentence)
            if self.loop.processes.first:
                self.bar.say(f"warning: {sentence}")

    # The end.

    def _finish(self, position: Position, seconds: float) -> TrainResult:
        self._note_similarities(position.step)
        stopped = "no better evaluation for a while" if position.step < self.loop.steps else ""
        result = TrainResult(
            folder=self.out,
            steps=position.step,
            best_step=position.best_step or position.step,
            untrained=self.score_before,
            score=position.best,
            texts=position.texts,
            seconds=seconds,
            stopped=stopped,
        )
        self.journal.write("end", position.step, **{**result.to_json(), "folder": None})
        if self.loop.processes.first:
            if position.best is None:
                self._write_model(self.folder / "best")
            publish(self.folder / "best", self.out)
        self.loop.processes.wait()
        return result

    def _write_model(self, folder: Path) -> None:
        try:
            self.network.write(folder, objective=self.objective.kept(self.weights), about=self.about)
        except OSError as error:
            raise WorkError(f"cannot save the model in {folder}: {error}") from error

    def _kept(self) -> str:
        newest = self.snapshots.newest()
        best = self.folder / "best"
        if best.is_dir():
            return f"The best model so far is kept in {best}"
        return f"The last good checkpoint is {newest}" if newest else "Nothing was worth keeping yet"


_LAST = ("config.json", "modules.json")


def publish(model: Path, out: Path) -> None:
    """All files of `model` in `out`; what an earlier model left there and this one does not have goes."""
    files = sorted(path.relative_to(model) for path in model.rglob("*") if path.is_file())
    files.sort(key=lambda path: _LAST.index(str(path)) if str(path) in _LAST else -1)
    try:
        (out / "modules.json").unlink(missing_ok=True)
        for relation in [out / "relation"]:
            shutil.rmtree(relation, ignore_errors=True)
        for folder in sorted(path.relative_to(model) for path in model.rglob("*") if path.is_dir()):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            part = out / f"{file}.part"
            shutil.copyfile(model / file, part)
            with part.open("rb+") as stream:
                os.fsync(stream.fileno())
            part.replace(out / file)
    except OSError as error:
        raise WorkError(f"cannot put the model into {out}: {error}. It is whole in {model}") from error


_ROWS = 512


@dataclass(frozen=True, eq=False)
class GeometrySample:
    """Distinct texts, and pairs of positions in them that belong together (none where the data does not say)."""

    texts: list[str]
    pairs: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    """(p, 2)"""


def hold(examples: Sequence[Examples], needs: Needs, seed: int) -> GeometrySample:
    """Some rows of the largest data set, the same for the same seed."""
    largest = max(examples, key=len)
    rng = np.random.default_rng([seed, len(largest)])
    rows = np.sort(rng.permutation(len(largest))[:_ROWS].astype(np.int64))
    batch = largest.batch(rows)
    places: dict[str, int] = {}
    for column in batch.columns:
        for text in column:
            places.setdefault(text, len(places))
    pairs = [(places[one], places[other]) for one, other in _positives(batch, needs, largest.classes)]
    return GeometrySample(list(places), np.asarray(pairs, dtype=np.int64).reshape(-1, 2))


def _positives(batch: Batch, needs: Needs, classes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Texts that mean the same, as far as the labels say."""
    if len(batch.columns) < 2:
        return _neighbours(batch) if needs.label == "group" and batch.label is not None else []
    rows = list(zip(batch.columns[0], batch.columns[1], strict=True))
    if batch.label is None or needs.label in ("margin", "vector"):
        return rows
    if needs.label == "class":
        same = batch.label == (classes.index("entailment") if "entailment" in classes else -1)
    else:
        same = batch.label >= (0.8 if needs.label == "score" else 1)
    return [row for row, kept in zip(rows, same, strict=True) if kept]


def _neighbours(batch: Batch) -> list[tuple[str, str]]:
    """Each text with the one before it of the same group."""
    last: dict[int, str] = {}
    pairs = []
    assert batch.label is not None
    for text, group in zip(batch.columns[0], batch.label.tolist(), strict=True):
        if group in last:
            pairs.append((last[group], text))
        last[group] = text
    return pairs
