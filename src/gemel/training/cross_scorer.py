"""A cross-encoder at one moment of its training, for evaluation: scores and probabilities, no dropout, no graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.evaluation_calls import run_in_calls
from gemel.types import Vectors

if TYPE_CHECKING:
    from torch import Tensor

    from gemel.training.cross_network import CrossNetwork


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
        logits = torch.from_numpy(run_in_calls(self._network, self._network.tokens(list(where))))
        return logits[[where[pair] for pair in pairs]]


def _array(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.numpy()
    return array
