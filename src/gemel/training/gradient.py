"""The gradient of one batch, in two halves: the objective's, on vectors alone, then the network's.

Since an objective sees vectors only, the halves can be far apart: a batch that does not fit in memory is encoded twice,
a part at a time (gradient cache, arXiv 2101.06983), and the gradient is still that of the whole batch.

A batch -> what goes through the network: each distinct item once, and where each row finds its vector.

Several processes, one batch: each encodes its share of the items, all see all vectors.

Every process computes the same loss on the gathered vectors and sends the gradient of its own share through its
network; the sum over processes is the gradient of the whole batch, for any objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.training.data.store import Rows
from gemel.training.network import Item, TrainableNetwork
from gemel.training.objectives.base import Needs, Objective

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.nn import Parameter


@dataclass(frozen=True, eq=False)
class GradientOf:
    """Adds the gradient of a batch to the weights; `backward` scales it where precision is mixed."""

    network: TrainableNetwork
    objective: Objective
    weights: nn.Module | None
    """The objective's own."""
    processes: Processes
    cache_texts: int | None
    backward: Callable[[Tensor], None]

    def __call__(self, plan: BatchPlan, tokens: Sequence[Any], label: Tensor | None, share: float) -> float:
        """The batch's loss. `tokens` are this process's share of the items; the gradient is weighed by `share`."""
        encoded = self._encoded(tokens)
        leaves = self.processes.gather(encoded.vectors, len(plan.items)).requires_grad_()
        columns = tuple(leaves[rows] for rows in plan.where)
        loss = self.objective(columns, label, self.weights)
        self.backward(loss * share)
        gradient = leaves.grad
        assert gradient is not None
        encoded.backward(gradient[self.processes.rank :: self.processes.world])
        return float(loss.detach())

    def _encoded(self, tokens: Sequence[Any]) -> Whole | InParts:
        if not tokens:
            return InParts(self.network, [], [], _nothing(self.network))
        if self.cache_texts is None or len(tokens) <= self.cache_texts:
            return Whole(self.network.forward(tokens))
        return in_parts(self.network, tokens, self.cache_texts)


@dataclass(frozen=True, eq=False)
class Whole:
    """Vectors that kept their graph."""

    vectors: Tensor

    def backward(self, gradient: Tensor) -> None:
        self.vectors.backward(gradient)


@dataclass(frozen=True, eq=False)
class InParts:
    """Vectors whose graph is made again when the gradient comes, with the same dropout."""

    network: TrainableNetwork
    parts: list[Sequence[Any]]
    states: list[list[torch.Tensor]]
    vectors: Tensor

    def backward(self, gradient: Tensor) -> None:
        after = _random_states()
        start = 0
        for tokens, state in zip(self.parts, self.states, strict=True):
            _set_random_states(state)
            self.network.forward(tokens).backward(gradient[start : start + len(tokens)])
            start += len(tokens)
        _set_random_states(after)


def in_parts(network: TrainableNetwork, tokens: Sequence[Any], size: int) -> InParts:
    """First pass: vectors only, and the state of the dice before each part."""
    import torch

    parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    states, vectors = [], []
    with torch.no_grad():
        for part in parts:
            states.append(_random_states())
            vectors.append(network.forward(part))
    # With mixed precision, casts of weights are kept; those made without a graph would be used with one.
    torch.clear_autocast_cache()
    return InParts(network, parts, states, torch.cat(vectors))


def _nothing(network: TrainableNetwork) -> Tensor:
    import torch

    device = next(network.module.parameters()).device
    return torch.zeros(0, network.dim, device=device)


def _random_states() -> list[torch.Tensor]:
    import torch

    states = [torch.get_rng_state()]
    return [*states, *torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else states


def _set_random_states(states: list[torch.Tensor]) -> None:
    import torch

    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """n rows of c columns out of m items."""

    items: list[Item]
    """The m items to encode."""
    where: tuple[Rows, ...]
    """For each column of vectors, (n,) positions in `items`."""

    def share(self, rank: int, world: int) -> list[Item]:
        """The items that process `rank` of `world` encodes: every `world`-th, so that lengths are dealt evenly."""
        return self.items[rank::world]


def plan(columns: Sequence[Sequence[Item]], needs: Needs, *, repeats: bool = False) -> BatchPlan:
    """An item that occurs several times is encoded once, unless `repeats` or each pass has a dropout of its own."""
    if needs.passes > 1 or needs.noise or repeats:
        rows = len(columns[0])
        items = [item for column in columns for item in column] * needs.passes
        where = tuple(
            np.arange(place * rows, (place + 1) * rows, dtype=np.int64)
            for place in range(len(columns) * needs.passes)
        )
        return BatchPlan(items, where)
    places: dict[Item, int] = {}
    where = tuple(
        np.fromiter((places.setdefault(item, len(places)) for item in column), np.int64, len(column))
        for column in columns
    )
    return BatchPlan(list(places), where)


@dataclass(frozen=True)
class Processes:
    """This process among all that train together."""

    rank: int = 0
    world: int = 1
    device: torch.device | None = None
    """Where tensors lie that processes send one another; a group of GPUs sends none that lie elsewhere."""

    @property
    def first(self) -> bool:
        """The one that writes files and speaks to the user."""
        return self.rank == 0

    def gather(self, own: Tensor, total: int) -> Tensor:
        """Rows dealt out by `Plan.share`, put together again: (total, d), without a graph."""
        if self.world == 1:
            return own.detach()
        import torch

        most = -(-total // self.world)
        padded = own.new_zeros(most, own.shape[1])
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        torch.distributed.all_gather(parts, padded)
        whole = own.new_empty(total, own.shape[1])
        for rank, part in enumerate(parts):
            rows = len(range(rank, total, self.world))
            whole[rank :: self.world] = part[:rows]
        return whole

    def sum_gradients(self, parameters: Iterable[Parameter]) -> None:
        """The gradients of all processes, added up."""
        if self.world == 1:
            return
        import torch

        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:  # a share may be empty, but all processes must take part
                    parameter.grad = torch.zeros_like(parameter)
                torch.distributed.all_reduce(parameter.grad)

    def tell(self, number: float | None) -> float | None:
        """The first process's number, in all of them; None stays None."""
        if self.world == 1:
            return number
        import torch

        given = float("nan") if number is None else number
        told = torch.tensor([given], dtype=torch.float64, device=self.device)
        torch.distributed.broadcast(told, src=0)
        return None if told.isnan().item() else float(told)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()
