"""The training loop: draw a batch, encode it, step the optimizer, evaluate now and then; and the snapshots of a run.

The loop knows no flags and no architecture: network, objective, examples and observers are passed in. A run can stop
after any step and resume: `Loop.state` and `Loop.position` are all that the next step depends on.

`BatchGradient` is the gradient of one batch, in two halves: the objective's on the vectors, then the network's. An
objective sees only vectors, so the halves are independent: a batch that does not fit in memory is encoded twice, part
by part (gradient cache, arXiv 2101.06983), and the gradient is still that of the whole batch.

step-00000120/           a snapshot
  network.safetensors  objective.safetensors  optimizer.safetensors
  state.json             the position of the run, and the sha256 of every other file
"""

from __future__ import annotations

import json
import math
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.errors import WorkError
from gemel.files.atomic import sha256_of, sync, sync_tree
from gemel.training.data.store import Batch, Examples, Rows
from gemel.training.devices import Processes
from gemel.training.network import Item, TrainableNetwork
from gemel.training.objectives.base import Needs, Objective
from gemel.training.options import TrainOptions
from gemel.training.sampler import Draw, EpochSampler

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor, nn


_EVALUATIONS = 10  # in a run, by default

_MIN_INTERVAL = 25  # steps: an evaluation and a checkpoint take as long as several steps


@dataclass(frozen=True)
class Position:
    """How far a run is: steps done, and the next draw of its data."""

    step: int = 0
    epoch: int = 0
    draw: int = 0
    """Draws of this epoch that were used."""
    best: float | None = None
    best_step: int = 0
    worse: int = 0
    """Evaluations in a row without a better score."""
    texts: int = 0
    """Texts that went through the network, in all processes."""


@dataclass(frozen=True)
class Step:
    """The numbers of one step."""

    number: int
    loss: float
    gradient_norm: float
    learning_rate: float
    texts: int


@dataclass(frozen=True, eq=False)
class Observers:
    """Callbacks of the loop; the defaults do nothing."""

    before: Callable[[int, float, float], None] = lambda step, loss, norm: None
    """Gets step, loss and gradient norm before the weights change; an exception ends the run with good weights."""
    step: Callable[[Step], None] = lambda step: None
    evaluate: Callable[[int], float | None] = lambda step: None
    """Returns the score that checkpoints are compared by, or None."""
    better: Callable[[int], None] = lambda step: None
    """Called when the score is the best so far: save the model."""
    snapshot: Callable[[Position], None] = lambda position: None


@dataclass(eq=False)
class Loop:
    """One run: its parts, and its position."""

    network: TrainableNetwork
    objective: Objective
    examples: Sequence[Examples]
    sampler: EpochSampler
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
        self._gradient = BatchGradient(
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
        """Steps of the whole run; an epoch is planned to count them."""
        if self.options.max_steps is not None:
            return self.options.max_steps
        return max(1, round(self.options.epochs * len(self.sampler.epoch(0)) / self.options.accumulate))

    def run(self) -> Position:
        """Take all remaining steps, with evaluations and snapshots when they are due."""
        steps = self.steps
        every = self.options.eval_steps or max(_MIN_INTERVAL, -(-steps // _EVALUATIONS))
        draws = self._draws()
        self.network.module.train()
        for number in range(self.position.step, steps):
            if self.options.patience is not None and self.position.worse >= self.options.patience:
                break
            self.observers.step(self._step(number, steps, draws))
            last = number + 1 == steps
            if last or (number + 1) % every == 0:
                self._evaluate(number + 1)
            if last or (number + 1) % (self.options.checkpoint_steps or every) == 0:
                self.observers.snapshot(self.position)
        return self.position

    def _step(self, number: int, steps: int, draws: Iterator[Draw]) -> Step:
        self._seed(number)
        rate = learning_rate(self.options, number, steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["rate_ratio"]
        loss, texts = 0.0, 0
        share = 1 / self.options.accumulate
        for _ in range(self.options.accumulate):
            draw = next(draws)
            part, count = self._backward(self.examples[draw.dataset].batch(draw.rows), share, number / steps)
            loss, texts = loss + part * share, texts + count
        self.processes.sum_gradients(self.network.module.parameters())
        norm = self._clip()
        self.observers.before(number + 1, loss, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.position = replace(self.position, step=number + 1, texts=self.position.texts + texts)
        return Step(number + 1, loss, norm, rate, texts)

    def _seed(self, number: int) -> None:
        """Dropout and noise depend on the number of the step, so that a snapshot needs no random state."""
        import torch

        seeds = np.random.SeedSequence([self.options.seed, number, self.processes.rank])
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
        self._noise = np.random.default_rng(seeds)

    def _backward(self, batch: Batch, share: float, done: float) -> tuple[float, int]:
        planned = plan(self.network.items(batch.columns), self.needs, repeats=self.options.encode_repeats)
        share_of_items = planned.share(self.processes.rank, self.processes.world)
        tokens = self.network.tokens(share_of_items, noise=self.needs.noise, rng=self._noise)
        with self.accelerator.autocast():
            gradient = replace(self._gradient, objective=self.objective.at(done))
            loss = gradient(planned, tokens, self._label(batch), share)
        return loss, len(planned.items)

    def _label(self, batch: Batch) -> Tensor | None:
        import torch

        device = next(self.network.module.parameters()).device
        if self.needs.label == "tokens":
            return _padded(self.network.tokens(batch.columns[0])).to(device)
        return None if batch.label is None else torch.from_numpy(np.array(batch.label)).to(device)

    def _clip(self) -> float:
        return float(self.accelerator.clip_grad_norm_(self._clipped, self.options.clip or float("inf")))

    def _evaluate(self, step: int) -> None:
        score = self.observers.evaluate(step)
        if score is None:
            return
        if self.position.best is None or score > self.position.best:
            self.position = replace(self.position, best=score, best_step=step, worse=0)
            self.observers.better(step)
        else:
            self.position = replace(self.position, worse=self.position.worse + 1)

    def _draws(self) -> Iterator[Draw]:
        """From the current position on, epoch after epoch."""
        while True:
            draws = self.sampler.epoch(self.position.epoch)
            for draw in draws[self.position.draw :]:
                self.position = replace(self.position, draw=self.position.draw + 1)
                yield draw
            self.position = replace(self.position, epoch=self.position.epoch + 1, draw=0)

    # What a snapshot stores, and how a run resumes from it.

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
        """Continue from a snapshot as if the run had never stopped."""
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


def _padded(tokens: Sequence[Any]) -> Tensor:
    """(n, t) int64, -100 after the end of a text."""
    import torch

    longest = max(map(len, tokens))
    padded = np.full((len(tokens), longest), -100, dtype=np.int64)
    for row, ids in zip(padded, tokens, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def open_optimizer(parts: list[nn.Module], options: TrainOptions) -> torch.optim.AdamW:
    """AdamW over all trainable weights; biases and norms (all one-dimensional ones) are never decayed.

    `parts` are the network and the objective's own weights, which may have a learning rate of their own: the step
    multiplies its rate by the `rate_ratio` of a group.
    """
    import torch

    head_ratio = (options.head_learning_rate or options.learning_rate) / options.learning_rate
    members = {1.0: parts} if head_ratio == 1 else {1.0: parts[:1], head_ratio: parts[1:]}
    groups: list[dict[str, Any]] = []
    for ratio, modules in members.items():
        trained = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
        for matrix, decay in ((True, options.weight_decay), (False, 0.0)):
            chosen = [weight for weight in trained if (weight.ndim > 1) == matrix]
            groups.append({"params": chosen, "weight_decay": decay, "rate_ratio": ratio})
    fused = all(weight.device.type in ("cpu", "cuda") for group in groups for weight in group["params"])
    return torch.optim.AdamW(groups, lr=options.learning_rate, fused=fused)


def learning_rate(options: TrainOptions, step: int, steps: int) -> float:
    """The learning rate at `step` (from 0) of `steps`: it rises over the warm-up, then follows `schedule`."""
    rising = math.ceil(options.warmup * steps)
    if step < rising:
        return options.learning_rate * (step if options.warmup_from_zero else step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    left = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}
    return options.learning_rate * left[options.schedule]


# Snapshots: everything that the next step depends on, written atomically and without pickle.

Tensors = Mapping[str, "Tensor"]
_NAME = re.compile(r"\w+\.safetensors")  # nothing outside of the folder is ever read


class Snapshots:
    """The snapshots of one run, in one folder; the newest `keep` stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self._keep = folder, keep

    def write(self, step: int, state: Mapping[str, Any], files: Mapping[str, Tensors]) -> Path:
        """Write a snapshot; older ones are removed once it is safely on disk."""
        target = self.folder / f"step-{step:08}"
        working = self.folder / f".{target.name}.{uuid.uuid4().hex}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            working.mkdir()
            self._fill(working, state, files)
            sync_tree(working)
            if target.exists():
                shutil.rmtree(target)
            working.rename(target)
            sync(self.folder)
        except OSError as error:
            shutil.rmtree(working, ignore_errors=True)
            older = self.newest()
            left = f"The last good snapshot is {older}" if older else "There is no earlier snapshot"
            raise WorkError(f"cannot write the snapshot {target}: {error}. {left}") from error
        for old in self.all()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def _fill(self, folder: Path, state: Mapping[str, Any], files: Mapping[str, Tensors]) -> None:
        from safetensors.torch import save_file

        hashes = {}
        for name, tensors in files.items():
            path = folder / f"{name}.safetensors"
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, path)
            hashes[path.name] = sha256_of(path)
        path = folder / "state.json"
        path.write_text(json.dumps({**state, "files": hashes}, indent=2) + "\n", encoding="utf-8")

    def all(self) -> list[Path]:
        """Complete snapshots, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if (path / "state.json").is_file())

    def newest(self) -> Path | None:
        return self.all()[-1] if self.all() else None

    def _clean(self) -> None:
        """Remove what a killed process left incomplete."""
        for path in self.folder.glob(".*.part"):
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of a snapshot."""

    state: dict[str, Any]
    files: dict[str, dict[str, torch.Tensor]]
    """File name without extension to the tensors in it."""


def read_snapshot(folder: Path) -> Snapshot:
    """The snapshot in `folder`; a damaged one is refused with advice."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    advice = f"Remove {folder} to resume from the snapshot before it, or start again without --resume"
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if not isinstance(state, dict) or not isinstance(state.get("files"), dict):
            raise WorkError(f"the snapshot {folder} is damaged: state.json does not list its files. {advice}")
        foreign = [name for name in state["files"] if not _NAME.fullmatch(name)]
        if foreign:
            raise WorkError(
                f"the snapshot {folder} is damaged: {foreign[0]!r:.60} is not a file of a snapshot. {advice}"
            )
        for name, expected in state["files"].items():
            if sha256_of(folder / name) != expected:
                raise WorkError(
                    f"the snapshot {folder} is damaged: the content of {name} has changed. {advice}"
                )
        files = {Path(name).stem: load_file(folder / name) for name in state["files"]}
        return Snapshot(state, files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise WorkError(f"the snapshot {folder} cannot be read: {error}. {advice}") from error


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What to encode for n rows of c columns: m items, and the item of each row and column."""

    items: list[Item]
    """The m items to encode."""
    where: tuple[Rows, ...]
    """For each column of vectors, (n,) positions in `items`."""

    def share(self, rank: int, world: int) -> list[Item]:
        """The items that process `rank` of `world` encodes: every `world`-th, so that lengths are spread evenly."""
        return self.items[rank::world]


def plan(columns: Sequence[Sequence[Item]], needs: Needs, *, repeats: bool = False) -> BatchPlan:
    """An item that occurs several times is encoded once, unless `repeats` or each pass has its own dropout."""
    if needs.passes > 1 or needs.noise or repeats:
        rows = len(columns[0])
        items = [item for column in columns for item in column] * needs.passes
        starts = range(0, len(items), rows) if rows else [0] * len(columns) * needs.passes
        return BatchPlan(items, tuple(np.arange(start, start + rows, dtype=np.int64) for start in starts))
    positions: dict[Item, int] = {}
    where = tuple(
        np.fromiter((positions.setdefault(item, len(positions)) for item in column), np.int64, len(column))
        for column in columns
    )
    return BatchPlan(list(positions), where)


@dataclass(frozen=True, eq=False)
class BatchGradient:
    """Adds the gradient of a batch to the weights."""

    network: TrainableNetwork
    objective: Objective
    weights: nn.Module | None
    """The objective's own."""
    processes: Processes
    cache_texts: int | None
    backward: Callable[[Tensor], None]
    """accelerate's: it scales the loss in mixed precision."""

    def __call__(self, plan: BatchPlan, tokens: Sequence[Any], label: Tensor | None, share: float) -> float:
        """The batch's loss. `tokens` are this process's share of the items; the gradient is multiplied by `share`."""
        encoded = self._encode(tokens)
        leaves = self.processes.gather(encoded.vectors, len(plan.items)).requires_grad_()
        columns = tuple(leaves[rows] for rows in plan.where)
        loss = self.objective(columns, label, self.weights)
        self.backward(loss * share)
        gradient = leaves.grad
        assert gradient is not None
        own = gradient[self.processes.rank :: self.processes.world]
        # Another process may have a longer text: vectors of tokens are as many as those of the longest.
        encoded.backward(own[:, : encoded.vectors.shape[1]])
        return float(loss.detach())

    def _encode(self, tokens: Sequence[Any]) -> EncodedItems:
        if not tokens:
            weight = next(self.network.module.parameters())
            shape = (0, self.network.dim) if self.network.token_vectors is False else (0, 1, self.network.dim)
            return EncodedItems(weight.new_zeros(shape), lambda gradient: None)
        if self.cache_texts is None or len(tokens) <= self.cache_texts:
            vectors = self.network.forward(tokens)
            return EncodedItems(vectors, vectors.backward)
        return encode_in_parts(self.network, tokens, self.cache_texts)


@dataclass(frozen=True, eq=False)
class EncodedItems:
    """The vectors of a share of the items."""

    vectors: Tensor
    backward: Callable[[Tensor], None]
    """Takes the gradient of the vectors and adds that of the weights."""


def encode_in_parts(network: TrainableNetwork, tokens: Sequence[Any], size: int) -> EncodedItems:
    """The first pass of the gradient cache: vectors only, `size` items at a time.

    The graph is computed again, with the same dropout, when the gradient arrives.
    """
    import torch

    parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    states, vectors = [], []
    with torch.no_grad():
        for part in parts:
            states.append(_random_states())
            vectors.append(network.forward(part))
    # Mixed precision caches casts of weights; those made without a graph must not be used with one.
    torch.clear_autocast_cache()

    def backward(gradient: Tensor) -> None:
        after = _random_states()
        for part, state, rows in zip(
            parts, states, gradient.split([len(part) for part in parts]), strict=True
        ):
            _set_random_states(state)
            again = network.forward(part)
            again.backward(rows[:, : again.shape[1]])
        _set_random_states(after)

    return EncodedItems(_joined(vectors), backward)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts; token vectors (n, tokens, dim) are filled up with zeros to the longest text."""
    import torch
    from torch.nn.functional import pad

    if parts[0].ndim == 3:
        most = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, 0, 0, most - part.shape[1])) for part in parts]
    return torch.cat(list(parts))


def _random_states() -> list[torch.Tensor]:
    import torch

    states = [torch.get_rng_state()]
    return [*states, *torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else states


def _set_random_states(states: list[torch.Tensor]) -> None:
    import torch

    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
