"""The loop: draw, encode, learn, look. Everything that it does between two steps can be taken up again.

It knows no file formats, no flags and no architecture: networks, objectives, examples and observers are handed in.

AdamW over the network and the objective's own weights, and the step size at each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.training.data.store import Batch, Draw, Examples, Sampler
from gemel.training.gradient import GradientOf, Processes, plan
from gemel.training.network import TrainableNetwork
from gemel.training.objectives.base import Needs, Objective
from gemel.training.options import TrainOptions
from gemel.training.snapshots import Snapshot

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor, nn

_EVALUATIONS = 10  # in a run, unless told

_APART = 25  # steps between two at the least: to look and to write takes as long as several steps


@dataclass(frozen=True)
class Position:
    """Where a run is: steps done, and the next draw of its data."""

    step: int = 0
    epoch: int = 0
    draw: int = 0
    """Draws of this epoch that are done."""
    best: float | None = None
    best_step: int = 0
    worse: int = 0
    """Evaluations since the best one."""
    texts: int = 0
    """Texts that went through the network, all processes together."""


@dataclass(frozen=True)
class Step:
    """What one step gave."""

    number: int
    loss: float
    gradient_norm: float
    learning_rate: float
    texts: int


@dataclass(frozen=True, eq=False)
class Observers:
    """Who is told what happens; each may be left out."""

    before: Callable[[int, float, float], None] = lambda step, loss, norm: None
    """Sees loss and gradient norm before the weights move; what it raises ends the run with good weights."""
    step: Callable[[Step], None] = lambda step: None
    evaluate: Callable[[int], float | None] = lambda step: None
    """Gives the score to compare checkpoints by, or None."""
    better: Callable[[int], None] = lambda step: None
    """Called when the score was the best so far: the model should be kept."""
    snapshot: Callable[[Position], None] = lambda position: None


@dataclass(eq=False)
class Loop:
    """One run: its parts, and where it is."""

    network: TrainableNetwork
    objective: Objective
    examples: Sequence[Examples]
    sampler: Sampler
    options: TrainOptions
    accelerator: Accelerator
    weights: nn.Module | None = None
    """The objective's own."""
    observers: Observers = field(default_factory=Observers)
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        group = self.accelerator
        self.processes = Processes(group.process_index, group.num_processes, group.device)
        parts = [self.network.module, *([self.weights] if self.weights is not None else [])]
        self._optimizer = self.accelerator.prepare(open_optimizer(parts, self.options))
        clipped = parts if self.options.clip_head else parts[:1]
        self._clipped = [weight for part in clipped for weight in part.parameters() if weight.requires_grad]
        self._gradient = GradientOf(
            self.network,
            self.objective,
            self.weights,
            self.processes,
            self.options.cache_texts,
            self.accelerator.backward,
        )

    @property
    def needs(self) -> Needs:
        return self.objective.needs

    @cached_property
    def steps(self) -> int:
        """Steps of the whole run; to count them, an epoch is planned."""
        if self.options.max_steps is not None:
            return self.options.max_steps
        return max(1, round(self.options.epochs * len(self.sampler.epoch(0)) / self.options.accumulate))

    def run(self) -> Position:
        """All steps that are left, with evaluations and snapshots when they are due."""
        steps = self.steps
        every = self.options.eval_steps or max(_APART, -(-steps // _EVALUATIONS))
        draws = self._draws()
        self.network.module.train()
        for number in range(self.position.step, steps):
            if self.options.patience is not None and self.position.worse >= self.options.patience:
                break
            self.observers.step(self._step(number, steps, draws))
            last = number + 1 == steps
            if last or (number + 1) % every == 0:
                self._look(number + 1)
            if last or (number + 1) % (self.options.checkpoint_steps or every) == 0:
                self.observers.snapshot(self.position)
        return self.position

    def _step(self, number: int, steps: int, draws: Iterator[Draw]) -> Step:
        self._throw_dice(number)
        rate = learning_rate(self.options, number, steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss, texts = 0.0, 0
        share = 1 / self.options.accumulate
        for _ in range(self.options.accumulate):
            draw = next(draws)
            part, count = self._learn(self.examples[draw.dataset].batch(draw.rows), share)
            loss, texts = loss + part * share, texts + count
        self.processes.sum_gradients(self.network.module.parameters())
        norm = self._clip()
        self.observers.before(number + 1, loss, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.position = replace(self.position, step=number + 1, texts=self.position.texts + texts)
        return Step(number + 1, loss, norm, rate, texts)

    def _throw_dice(self, number: int) -> None:
        """Dropout and noise of a step follow from its number, so that no state of dice has to be kept."""
        import torch

        seeds = np.random.SeedSequence([self.options.seed, number, self.processes.rank])
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
        self._noise = np.random.default_rng(seeds)

    def _learn(self, batch: Batch, share: float) -> tuple[float, int]:
        planned = plan(self.network.items(batch.columns), self.needs, repeats=self.options.encode_repeats)
        mine = planned.share(self.processes.rank, self.processes.world)
        tokens = self.network.tokens(mine, noise=self.needs.noise, rng=self._noise)
        with self.accelerator.autocast():
            loss = self._gradient(planned, tokens, self._label(batch), share)
        return loss, len(planned.items)

    def _label(self, batch: Batch) -> Tensor | None:
        import torch

        device = next(self.network.module.parameters()).device
        if self.needs.label == "tokens":
            return _padded(self.network.tokens(batch.columns[0])).to(device)
        return None if batch.label is None else torch.from_numpy(np.array(batch.label)).to(device)

    def _clip(self) -> float:
        most = self.options.clip if self.options.clip else float("inf")
        norm = self.accelerator.clip_grad_norm_(self._clipped, most)
        return float(norm)

    def _look(self, step: int) -> None:
        score = self.observers.evaluate(step)
        if score is None:
            return
        if self.position.best is None or score > self.position.best:
            self.position = replace(self.position, best=score, best_step=step, worse=0)
            self.observers.better(step)
        else:
            self.position = replace(self.position, worse=self.position.worse + 1)

    def _draws(self) -> Iterator[Draw]:
        """From where the run is, epoch after epoch."""
        while True:
            draws = self.sampler.epoch(self.position.epoch)
            for draw in draws[self.position.draw :]:
                self.position = replace(self.position, draw=self.position.draw + 1)
                yield draw
            self.position = replace(self.position, epoch=self.position.epoch + 1, draw=0)

    # What a snapshot holds, and how a run takes it up.

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Every tensor that the next step depends on."""
        import torch

        moments = {
            f"{number}.{name}": value if isinstance(value, torch.Tensor) else torch.tensor(value)
            for number, values in self._optimizer.state_dict()["state"].items()
            for name, value in values.items()
        }
        objective = dict(self.weights.state_dict()) if self.weights is not None else {}
        files = {"network": dict(self.network.module.state_dict()), "optimizer": moments}
        return {**files, "objective": objective} if objective else files

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot as if nothing had happened."""
        files = snapshot.files
        self.network.module.load_state_dict(files["network"])
        if self.weights is not None:
            self.weights.load_state_dict(files["objective"])
        state = self._optimizer.state_dict()
        state["state"] = {}
        for key, value in files["optimizer"].items():
            number, name = key.split(".", 1)
            state["state"].setdefault(int(number), {})[name] = value
        self._optimizer.load_state_dict(state)
        self.position = Position(**snapshot.state["position"])

    def place(self) -> dict[str, Any]:
        """The position as JSON, for the snapshot's state."""
        return asdict(self.position)


def _padded(tokens: Sequence[Any]) -> Tensor:
    """(n, t) int64, -100 where a text has ended."""
    import torch

    longest = max(map(len, tokens))
    padded = np.full((len(tokens), longest), -100, dtype=np.int64)
    for row, ids in zip(padded, tokens, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def open_optimizer(parts: list[nn.Module], options: TrainOptions) -> torch.optim.AdamW:
    """Biases and norms (all vectors, that is) are never decayed."""
    import torch

    trained = [weight for part in parts for weight in part.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = all(weight.device.type in ("cpu", "cuda") for weight in trained)
    return torch.optim.AdamW(groups, lr=options.learning_rate, fused=fused)


def learning_rate(options: TrainOptions, step: int, steps: int) -> float:
    """The step size at `step` (from 0) of `steps`: it rises over the warm-up, then falls as `schedule` says."""
    rising = math.ceil(options.warmup * steps)
    if step < rising:
        return options.learning_rate * (step if options.warmup_from_zero else step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    left = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}
    return options.learning_rate * left[options.schedule]
