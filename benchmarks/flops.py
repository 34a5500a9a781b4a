"""How many floating-point operations a text costs, counted from its tokens: the matrix products only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """What of a transformer decides its cost."""

    layers: int
    width: int
    inner: int
    """Width of the feed-forward step."""
    queries: int
    """Width of all heads of queries together."""
    keys: int
    """Width of all heads of keys together."""
    gated: bool

    @property
    def weights(self) -> int:
        """Numbers in the matrices each token is multiplied with: q, k, v, out, up and down; a gate is a second up."""
        attention = self.width * (2 * self.queries + 2 * self.keys)
        return self.layers * (attention + (3 if self.gated else 2) * self.width * self.inner)


def read_shape(folder: Path) -> Shape:
    """From the config.json of a checkpoint."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    keys = (config.get("num_key_value_heads") or heads) * head
    gated = config["model_type"] in ("qwen3", "modernbert")
    return Shape(config["num_hidden_layers"], width, config["intermediate_size"], heads * head, keys, gated)


def flop(shape: Shape, tokens: int) -> int:
    """Operations for one text of `tokens` tokens.

    A multiplication and an addition per weight and token, and per layer the two products of the attention,
    t × t scores and t × t weights times values: 2 t² d each, all heads together.
    """
    return 2 * shape.weights * tokens + shape.layers * 4 * tokens**2 * shape.queries


def total_flop(shape: Shape, lengths: Iterable[int]) -> int:
    return sum(flop(shape, length) for length in lengths)
