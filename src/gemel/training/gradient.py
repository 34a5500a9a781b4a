"""The gradient of one batch, in two halves: the objective's on the vectors, then the network's.

An objective sees only vectors, so the halves are independent: a batch that does not fit in memory is encoded twice,
part by part (gradient cache, arXiv 2101.06983), and the gradient is still that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.training.data.store import Rows
from gemel.training.devices import Processes
from gemel.training.network import Item, TrainableNetwork
from gemel.training.objectives.base import Needs, Objective

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


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
        encoded.backward(gradient[self.processes.rank :: self.processes.world])
        return float(loss.detach())

    def _encode(self, tokens: Sequence[Any]) -> EncodedItems:
        if not tokens:
            weight = next(self.network.module.parameters())
            return EncodedItems(weight.new_zeros(0, self.network.dim), lambda gradient: None)
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
            network.forward(part).backward(rows)
        _set_random_states(after)

    return EncodedItems(torch.cat(vectors), backward)


def _random_states() -> list[torch.Tensor]:
    import torch

    states = [torch.get_rng_state()]
    return [*states, *torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else states


def _set_random_states(states: list[torch.Tensor]) -> None:
    import torch

    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
