"""The gradient of one batch, in two halves: the objective's, on vectors alone, then the network's.

Since an objective sees vectors only, the halves can be far apart: a batch that does not fit in memory is encoded twice,
a part at a time (gradient cache, arXiv 2101.06983), and the gradient is still that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemel.objectives.table import Objective
from gemel.training.plan import Plan
from gemel.training.port import Network
from gemel.training.processes import Processes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class GradientOf:
    """Adds the gradient of a batch to the weights; `backward` scales it where precision is mixed."""

    network: Network
    objective: Objective
    weights: nn.Module | None
    """The objective's own."""
    processes: Processes
    cache_texts: int | None
    backward: Callable[[Tensor], None]

    def __call__(self, plan: Plan, tokens: Sequence[Any], label: Tensor | None, share: float) -> float:
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

    network: Network
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


def in_parts(network: Network, tokens: Sequence[Any], size: int) -> InParts:
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


def _nothing(network: Network) -> Tensor:
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
