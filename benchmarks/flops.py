"""How many floating-point operations a text costs, counted from its tokens: the matrix products only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """What of a BERT-like encoder decides its cost."""

    layers: int
    width: int
    inner: int
    """Width of the feed-forward step."""

    @property
    def weights(self) -> int:
        """Numbers in the matrices each token is multiplied with: q, k, v, out (4 d²), up and down (2 d f)."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.inner)


def read_shape(folder: Path) -> Shape:
    """From the config.json of a checkpoint."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Shape(config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"])


def flop(shape: Shape, tokens: int) -> int:
    """Operations for one text of `tokens` tokens.

    A multiplication and an addition per weight and token, and per layer the two products of the attention,
    t × t scores and t × t weights times values: 2 t² d each, all heads together.
    """
    return 2 * shape.weights * tokens + shape.layers * 4 * tokens**2 * shape.width


def total_flop(shape: Shape, lengths: Iterable[int]) -> int:
    return sum(flop(shape, length) for length in lengths)
