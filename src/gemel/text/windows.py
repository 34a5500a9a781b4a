"""A text that is longer than the model reads: what is kept of it, and in how many pieces."""

from __future__ import annotations

from dataclasses import dataclass

from gemel.errors import InputError
from gemel.options import OnLong
from gemel.text.tokenizer import Marks, TokenIds

OVERLAP = 0.25
"""Part of a window that the next one reads again, so that no sentence is seen only from its edge."""


@dataclass(frozen=True)
class Windows:
    """One text, ready to run: each piece with its marks, and how much each piece weighs in the mean."""

    pieces: tuple[TokenIds, ...]
    weights: tuple[int, ...]
    tokens: int
    """Tokens of the whole text, marks included."""
    kept: int
    """Tokens that some piece holds, marks included."""
    starts: tuple[int, ...] = (0,)
    """Where each piece begins in the text's tokens, marks not counted."""


def cut(content: TokenIds, marks: Marks, limit: int | None, on_long: OnLong) -> Windows:
    """The pieces of one text under `limit` tokens a piece, marks included; None: no limit."""
    tokens = len(content) + len(marks)
    if limit is None or tokens <= limit:
        return Windows((marks.around(content),), (1,), tokens, tokens)
    room = limit - len(marks)
    if room < 1:
        raise InputError(
            f"max_length {limit} leaves no room for a token beside the {len(marks)} marks of this model. "
            f"Use at least {len(marks) + 1}"
        )
    if on_long != "chunk":
        start = 0 if marks.cut == "right" else len(content) - room
        return Windows((marks.around(content[start : start + room]),), (1,), tokens, limit, (start,))
    step = max(1, room - int(room * OVERLAP))
    starts = range(0, len(content) - room + step, step)
    parts = [content[start : start + room] for start in starts]
    pieces = tuple(marks.around(part) for part in parts)
    return Windows(pieces, tuple(map(len, parts)), tokens, tokens, tuple(starts))
