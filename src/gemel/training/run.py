"""A training run in its folder: the loop, with evaluation, logging, snapshots and resume.

out/                     the model, once training is done
  training/
    options.json         the request and the options
    metrics.jsonl        everything that was measured
    snapshots/           what a resume starts from
    best/                the best model so far
    report.html
"""

from __future__ import annotations

import json
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
from gemel.files.atomic import atomic_file
from gemel.training.card import MeasuredScores, measured
from gemel.training.data.store import Batch, Examples
from gemel.training.journal import FILE, Bar, MetricsJournal, Trackers
from gemel.training.loop import Loop, Observers, Position, Snapshots, Step, read_snapshot
from gemel.training.network import TrainableNetwork
from gemel.training.objectives.base import Needs, Objective
from gemel.training.options import TrainOptions
from gemel.training.sampler import EpochSampler
from gemel.training.watch import Collapse, TrainingHealth, Watch, health, similarities
from gemel.types import ShownResult

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

_STEP_LINES = 2000  # at most, about, in the journal

_FACT_TEXTS = 128


@dataclass(frozen=True)
class TrainResult(ShownResult):
    """The result of a training run."""

    folder: Path
    steps: int
    best_step: int
    """The step whose model was saved; the last one if nothing was evaluated."""
    untrained: float | None
    """The score before the first step, in points."""
    score: float | None
    """The score of the saved model."""
    texts: int
    seconds: float
    """Of this process; a resumed run counts from where it resumed."""
    stopped: str = ""
    """Why it ended before its last step."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    def summary(self) -> str:
        """One line for the terminal."""
        line = f"{self.folder}: {self.steps:,} steps, {self.texts:,} texts, {self.seconds:.0f} s"
        if self.score is None:
            return line
        before = "" if self.untrained is None else f", {self.untrained:.2f} before training"
        return f"{line}; best score {self.score:.2f} at step {self.best_step:,}{before}"


@dataclass(eq=False)
class TrainingRun:
    """All parts of one run; `start` runs it."""

    network: TrainableNetwork
    objective: Objective
    weights: nn.Module | None
    examples: Sequence[Examples]
    options: TrainOptions
    out: Path
    tasks: Sequence[Task]
    accelerator: Accelerator
    about: Mapping[str, Any] = field(default_factory=dict)
    """What is saved beside the weights (labels), and what identifies the run when it is resumed."""

    def __post_init__(self) -> None:
        self.folder = self.out / "training"
        self.snapshots = Snapshots(self.folder / "snapshots", self.options.keep_checkpoints)
        self.sample: GeometrySample = sample_texts(self.examples, self.objective.needs, self.options.seed)
        self.untrained: tuple[MeasuredScores, ...] = ()
        """The evaluation before the first step, one per data set."""

    def start(self, *, resume: bool) -> TrainResult:
        """Run to the end and copy the model to `out`; a `Collapse` says which checkpoint is the last good one."""
        started = perf_counter()
        self._open(resume)
        try:
            return self._finish(self.loop.run(), perf_counter() - started)
        except Collapse as collapse:
            self.journal.write("end", self.loop.position.step, stopped=str(collapse))
            raise Collapse(f"{collapse}. {self._last_good()}") from None
        finally:
            self.journal.close()
            self.bar.close()
            self.trackers.end()

    # Opening: a new run, or one that is resumed.

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
            self._resume(newest)
        first, start = self.loop.processes.first, self.loop.position.step
        self.bar = Bar(self.loop.steps, shown=self.options.progress and first, start=start)
        self.loop.processes.barrier()

    def _begin(self) -> None:
        self.journal = self._open_journal()
        dropped = self.loop.sampler.epoch(0).dropped
        self.journal.write("start", 0, **self._identity(), steps=self.loop.steps, rows_dropped=dropped)
        score = self.loop.processes.broadcast(self._score(0) if self.loop.processes.first else None)
        self.score_before = score
        self.first = self._health(0, score) if self.network.gives_vectors else None
        self.watch = self._open_watch()
        self._log_similarities(0)
        self._log_facts(0)

    def _resume(self, newest: Path) -> None:
        snapshot = read_snapshot(newest)
        self._check_same_run(snapshot.state["run"], newest)
        self.loop.restore(snapshot)
        self.score_before = snapshot.state["score_before"]
        self.untrained = tuple(MeasuredScores.from_json(each) for each in snapshot.state["untrained"])
        self.first = TrainingHealth(**snapshot.state["first"]) if snapshot.state["first"] else None
        self.watch = self._open_watch()
        self.watch.restore(snapshot.state["watch"])
        step = self.loop.position.step
        self.journal = self._open_journal(resume_at_step=step)
        self.journal.write("resume", step)

    def _open_journal(self, resume_at_step: int | None = None) -> MetricsJournal:
        if not self.loop.processes.first:
            return MetricsJournal.nowhere()
        return MetricsJournal.open(self.folder / FILE, resume_at_step)

    def _open_watch(self) -> Watch:
        fp16 = self.options.mixed_precision == "fp16"
        return Watch(first=self.first, force=self.options.force, fp16=fp16, groups=self._groups())

    def _groups(self) -> int | None:
        """How many groups of texts the data has, if the objective separates groups."""
        if self.objective.needs.label != "group":
            return None
        return sum(len(np.unique(each.labels)) for each in self.examples if each.labels is not None)

    def _identity(self) -> dict[str, Any]:
        """What must be the same when a run is resumed: everything that its weights depend on."""
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

    def _check_same_run(self, before: Mapping[str, Any], newest: Path) -> None:
        now = self._identity()
        # A run of an older version: options that it did not have are at their defaults, and kinds had other names.
        old = {**json.loads(json.dumps(asdict(TrainOptions()))), **before.get("options", {})}
        options = now["options"]
        network = _FORMER_KINDS.get(before.get("network", ""), before.get("network"))
        before = {**before, "network": network, "options": {name: old[name] for name in options}}
        changed = [name for name in now if now[name] != before.get(name)]
        if "options" in changed:
            changed += [name for name, value in options.items() if value != old[name]]
            changed.remove("options")
        if changed:
            raise InputError(
                f"{newest} is of another run: {', '.join(changed)} changed. Resume with the same settings and data, "
                "or train into another folder",
                code="GEM-504",
            )

    # The observers of the loop.

    def _before(self, step: int, loss: float, norm: float) -> None:
        self._warn(step, self.watch.step(step, loss, norm))

    def _step(self, step: Step) -> None:
        self.bar.step(step.number, step.loss, step.texts)
        if step.number % max(1, self.loop.steps // _STEP_LINES) == 0 or step.number == self.loop.steps:
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
        score = self.loop.processes.broadcast(own)
        self.bar.evaluated("" if score is None else f"score {score:.2f}")
        if self.network.gives_vectors:
            self._warn(step, self.watch.evaluated(self._health(step, score)))
        self._log_facts(step)
        return score

    def _log_facts(self, step: int) -> None:
        """What the network has to tell beside its score; a text without any word cannot be found again."""
        facts = self.network.facts(self.sample.texts[:_FACT_TEXTS])
        if not facts:
            return
        self.journal.write("facts", step, **facts)
        self.trackers.log(dict(facts), step)
        if facts.get("active_words") == 0:
            message = (
                f"at step {step} no text has a word with a weight above zero. Lower query_flops and document_flops, or "
                "learning_rate"
            )
            if not self.options.force:
                raise Collapse(message)
            self._warn(step, [message])

    def _score(self, step: int) -> float | None:
        """The mean of the tasks' main metrics, times 100."""
        if not self.tasks:
            return None
        scores = list(score_tasks(self.tasks, self.network.encoder()))
        if step == 0:
            self.untrained = measured(scores)
        overall = scores[-1]
        score = overall.values[overall.main].value
        named = {f"{each.dataset}-{each.main}": each.values[each.main].value for each in scores}
        self.journal.write("evaluation", step, score=score, scores=named)
        self.trackers.log({"score": score, **named}, step)
        return score

    def _health(self, step: int, score: float | None) -> TrainingHealth:
        vectors = self.network.encoder().encode(self.sample.texts)
        now = health(step, vectors, self.sample.pairs, score)
        self.journal.write("health", step, **{k: v for k, v in now.to_json().items() if k != "step"})
        return now

    def _log_similarities(self, step: int) -> None:
        if not self.network.gives_vectors:
            return
        vectors = self.network.encoder().encode(self.sample.texts)
        self.journal.write("similarities", step, **similarities(vectors, self.sample.pairs).to_json())

    def _better(self, step: int) -> None:
        if self.loop.processes.first:
            self._write_model(self.folder / "best")

    def _snapshot(self, position: Position) -> None:
        if self.loop.processes.first:
            self.journal.write("checkpoint", position.step)
            state = {
                "run": self._identity(),
                "position": asdict(self.loop.position),
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

    # Finishing.

    def _finish(self, position: Position, seconds: float) -> TrainResult:
        self._log_similarities(position.step)
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
        self.loop.processes.barrier()
        return result

    def _write_model(self, folder: Path) -> None:
        try:
            self.network.write(folder, objective=self.objective.saved_weights(self.weights), about=self.about)
        except OSError as error:
            raise WorkError(f"cannot save the model in {folder}: {error}") from error

    def _last_good(self) -> str:
        newest = self.snapshots.newest()
        best = self.folder / "best"
        if best.is_dir():
            return f"The best model so far is in {best}"
        return f"The last good checkpoint is {newest}" if newest else "No checkpoint was written yet"


_FORMER_KINDS = {"twin": "bi-encoder", "cross": "cross-encoder"}

_LAST = ("config.json", "modules.json")


def publish(model: Path, out: Path) -> None:
    """Copy the files of `model` to `out`, each atomically; `modules.json`, which makes a folder a model, comes last.

    The classification head of an earlier model in `out` is removed.
    """
    files = sorted(path.relative_to(model) for path in model.rglob("*") if path.is_file())
    files.sort(key=lambda path: _LAST.index(str(path)) if str(path) in _LAST else -1)
    try:
        (out / "modules.json").unlink(missing_ok=True)
        shutil.rmtree(out / "relation", ignore_errors=True)
        for folder in sorted(path.relative_to(model) for path in model.rglob("*") if path.is_dir()):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            with atomic_file(out / file) as temporary:
                shutil.copyfile(model / file, temporary)
    except OSError as error:
        raise WorkError(f"cannot copy the model to {out}: {error}. It is complete in {model}") from error


_SAMPLE_ROWS = 512


@dataclass(frozen=True, eq=False)
class GeometrySample:
    """Distinct texts of the training data, and positive pairs among them, to follow the vectors during training."""

    texts: list[str]
    pairs: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    """(p, 2) positions in `texts`; empty if the data does not say what belongs together."""


def sample_texts(examples: Sequence[Examples], needs: Needs, seed: int) -> GeometrySample:
    """A few hundred rows of the largest data set, the same for the same seed."""
    largest = max(examples, key=len)
    rng = np.random.default_rng([seed, len(largest)])
    rows = np.sort(rng.permutation(len(largest))[:_SAMPLE_ROWS].astype(np.int64))
    batch = largest.batch(rows)
    positions: dict[str, int] = {}
    for column in batch.columns:
        for text in column:
            positions.setdefault(text, len(positions))
    pairs = [(positions[one], positions[other]) for one, other in _positives(batch, needs, largest.classes)]
    return GeometrySample(list(positions), np.asarray(pairs, dtype=np.int64).reshape(-1, 2))


def _positives(batch: Batch, needs: Needs, classes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Texts that belong together according to the labels."""
    if len(batch.columns) < 2:
        return _same_group(batch) if needs.label == "group" and batch.label is not None else []
    rows = list(zip(batch.columns[0], batch.columns[1], strict=True))
    if batch.label is None or not needs.labeled or needs.label in ("margin", "scores", "vector"):
        return rows
    if needs.label == "class":
        same = batch.label == (classes.index("entailment") if "entailment" in classes else -1)
    else:
        same = batch.label >= (0.8 if needs.label == "score" else 1)
    return [row for row, positive in zip(rows, same, strict=True) if positive]


def _same_group(batch: Batch) -> list[tuple[str, str]]:
    """Each text with the previous one of its group."""
    last: dict[int, str] = {}
    pairs = []
    assert batch.label is not None
    for text, group in zip(batch.columns[0], batch.label.tolist(), strict=True):
        if group in last:
            pairs.append((last[group], text))
        last[group] = text
    return pairs
