"""Many items through a network that is being trained: no dropout, no graph, like lengths together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.training.port import Network
from gemel.types import Vectors

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS = 4096  # to a call, when nothing has to be kept for a gradient


def run_in_calls(
    network: Network, tokens: Sequence[Any], forward: Callable[[Sequence[Any]], Tensor] | None = None
) -> Vectors:
    """(n, dim) float32, a row for each of `tokens`; the network is left in the mode that it was in.

    `forward` is called instead of the network's own, where that has to be told more.
    """
    import torch

    rows_out = np.zeros((len(tokens), network.dim), dtype=np.float32)
    was_training = network.module.training
    network.module.eval()
    try:
        with torch.no_grad():
            for rows in _calls([len(ids) for ids in tokens]):
                found = (forward or network.forward)([tokens[row] for row in rows])
                rows_out[rows] = found.float().cpu().numpy()
    finally:
        network.module.train(was_training)
    return rows_out


def _calls(lengths: Sequence[int]) -> list[list[int]]:
    """Rows for each call, longest first, about `_TOKENS` tokens to a call."""
    calls: list[list[int]] = []
    room = 0
    for row in np.argsort([-length for length in lengths], kind="stable").tolist():
        if room < lengths[row] or not calls:
            calls.append([])
            room = _TOKENS
        calls[-1].append(row)
        room -= lengths[row]
    return calls
