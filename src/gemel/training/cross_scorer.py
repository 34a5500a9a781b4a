"""A cross-encoder at one moment of its training, for evaluation: scores and probabilities, no dropout, no graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gemel.errors import InputError
from gemel.types import Vectors

if TYPE_CHECKING:
    from torch import Tensor

    from gemel.training.cross_network import CrossNetwork

_TOKENS = 4096  # to a call


class CrossScorer:
    """Answers as `CrossModel` does."""

    def __init__(self, network: CrossNetwork) -> None:
        self._network = network
        self.name = network.checkpoint.name
        self.labels = network.labels

    @property
    def dim(self) -> int:
        return self._network.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        raise InputError(
            f"{self.name} is trained as a cross-encoder, which scores pairs and makes no vectors"
        )

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n,) from 0 to 1, for a network of one output."""
        if self.dim > 1:
            raise InputError(
                f"a cross-encoder of the labels {', '.join(self.labels)} gives no one score to a pair"
            )
        return _array(self._logits(left, right)[:, 0].sigmoid())

    def relation(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n, labels) probabilities."""
        return _array(self._logits(left, right).softmax(1))

    def _logits(self, left: Sequence[str], right: Sequence[str]) -> Tensor:
        """(n, labels); each distinct pair runs once."""
        import torch

        pairs = list(zip(left, right, strict=True))
        where = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        tokens = self._network.tokens(list(where))
        logits = torch.zeros(len(where), self.dim)
        was_training = self._network.module.training
        self._network.module.eval()
        try:
            with torch.no_grad():
                for rows in _calls([len(ids) for ids in tokens]):
                    logits[rows] = self._network.forward([tokens[row] for row in rows]).float().cpu()
        finally:
            self._network.module.train(was_training)
        return logits[[where[pair] for pair in pairs]]


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


def _array(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.numpy()
    return array
