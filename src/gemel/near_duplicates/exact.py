"""Texts that are the same but for how they are written: found by their folded form, before anything is encoded."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def folded(text: str, *, ignore_case: bool = True, ignore_space: bool = True) -> str:
    """Two texts are the same when these are equal. Unicode has several ways to write é: they never count."""
    plain = unicodedata.normalize("NFC", text)
    if ignore_case:
        plain = unicodedata.normalize("NFC", plain.casefold())
    return " ".join(plain.split()) if ignore_space else plain


def same_texts(texts: Sequence[str], *, ignore_case: bool, ignore_space: bool) -> NDArray[np.int64]:
    """(n,) for each text the position of the first one that is the same; its own where there is none before it."""
    first: dict[str, int] = {}
    found = (
        first.setdefault(folded(text, ignore_case=ignore_case, ignore_space=ignore_space), position)
        for position, text in enumerate(texts)
    )
    return np.fromiter(found, np.int64, len(texts))
