"""A run in its folder: the loop with everything that watches it, writes it down and takes it up again.

out/                     the model, once training is done
  training/
    options.json         what was asked for
    metrics.jsonl        what happened
    snapshots/           what a resume starts from
    best/                the best model so far
    report.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gemel.errors import InputError, WorkError
from gemel.evaluation.run import score_tasks
from gemel.evaluation.task import Task
from gemel.objectives.table import Objective
from gemel.training.bar import Bar
from gemel.training.examples import Examples
from gemel.training.geometry import similarities
from gemel.training.held import Held, hold
from gemel.training.journal import FILE, Journal
from gemel.training.loop import Loop, Observers, Position, Step
from gemel.training.options import TrainOptions
from gemel.training.port import Network
from gemel.training.publish import publish
from gemel.training.sampler import EpochSampler
from gemel.training.snapshots import Snapshots, read_snapshot
from gemel.training.summary import Measured, measured
from gemel.training.trackers import Trackers
from gemel.training.watch import Collapse, Health, Watch, health

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

_LINES = 2000  # of steps in the journal, about


@dataclass(frozen=True)
class Trained:
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
class Run:
    """All parts of one run."""

    network: Network
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
        self.held: Held = hold(self.examples, self.objective.needs, self.options.seed)
        self.untrained: tuple[Measured, ...] = ()
        """The evaluation before the first step, data set by data set."""

    def start(self, *, resume: bool) -> Trained:
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
        self.journal = Journal.open(self.folder / FILE) if first else Journal.nowhere()
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
        self.untrained = tuple(Measured.from_json(each) for each in snapshot.state["untrained"])
        self.first = Health(**snapshot.state["first"]) if snapshot.state["first"] else None
        self.watch = Watch(
            first=self.first, force=self.options.force, fp16=self.options.mixed_precision == "fp16"
        )
        self.watch.restore(snapshot.state["watch"])
        step = self.loop.position.step
        first = self.loop.processes.first
        self.journal = Journal.open(self.folder / FILE, resume_at_step=step) if first else Journal.nowhere()
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

    def _health(self, step: int, score: float | None) -> Health:
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

    def _finish(self, position: Position, seconds: float) -> Trained:
        self._note_similarities(position.step)
        stopped = "no better evaluation for a while" if position.step < self.loop.steps else ""
        result = Trained(
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
