"""What is said of texts that are longer than the model reads: an error, or one line with the numbers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.text.windows import Windows

_PACKAGE = str(Path(__file__).parent.parent)


class TruncationWarning(UserWarning):
    """Texts were longer than the model reads, and the rest of them did not count."""


def refuse_long(windows: Sequence[Windows], block: Sequence[str], texts: Sequence[str]) -> None:
    """An error that names the first text of `block` that was cut by its position in `texts`."""
    for window, text in zip(windows, block, strict=True):
        if window.kept < window.tokens:
            raise InputError(
                f"texts[{texts.index(text)}] has {window.tokens:,} tokens, the model reads {window.kept:,}. "
                "Shorten it, or use on_long='truncate' or 'chunk'"
            )


def warn_of_long(
    tokens: NDArray[np.int64],
    kept: NDArray[np.int64],
    limit: int | None,
    *,
    what: str = "texts",
    advice: str = "Use on_long='chunk' to read them whole, or 'truncate' to cut them without this line",
) -> None:
    """One line that says how many texts lost how many tokens; nothing where none did."""
    lost = tokens - kept
    count = int((lost > 0).sum())
    if count:
        warnings.warn(
            f"{count:,} of {len(tokens):,} {what} are longer than {limit:,} tokens "
            f"and lost {int(lost.sum()):,} tokens. {advice}",
            TruncationWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    """How many calls up the first line outside this package is: a warning points at the user's code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
