"""What every engine refuses, in the same words."""

from __future__ import annotations

from gemel.errors import InputError
from gemel.types import Ids


def check_ids(ids: Ids, *, vocabulary: int, max_positions: int) -> None:
    """Token ids of b >= 1 texts of t >= 1 tokens each, all inside the vocabulary and the positions."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise InputError(f"an engine takes ids of shape (texts, tokens), at least 1 of each, got {ids.shape}")
    if ids.shape[1] > max_positions:
        raise InputError(f"a text has {ids.shape[1]} tokens but the model has {max_positions} positions")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        bad = low if low < 0 else high
        raise InputError(
            f"token id {bad} is outside the model's vocabulary of {vocabulary:,}. "
            "Is the tokenizer of another model in the folder?"
        )
