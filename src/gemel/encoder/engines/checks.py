"""What every engine refuses, in the same words."""

from __future__ import annotations

from gemel.errors import InputError
from gemel.types import Ids


def check_ids(ids: Ids, *, vocabulary: int, max_positions: int) -> None:
    """Token ids of b >= 1 texts of t >= 1 tokens each, all inside the vocabulary and the positions."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise InputError(f"token ids must be (texts, tokens) with at least one of each, got {ids.shape}")
    if ids.shape[1] > max_positions:
        raise InputError(
            f"the texts have {ids.shape[1]} tokens, the network has {max_positions} places. Cut them first"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        bad = low if low < 0 else high
        raise InputError(
            f"token id {bad} is outside the vocabulary (0 to {vocabulary - 1}). "
            "The tokenizer and the weights belong to different models"
        )
