"""Few labelled texts -> many labelled pairs: two of a class belong together, two of different classes do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError


@dataclass(frozen=True)
class LabelPairs:
    """Rows for training."""

    left: list[str]
    right: list[str]
    label: list[int]
    """1 within a class, 0 across."""

    def columns(self) -> dict[str, list[Any]]:
        """As `gemel.train` takes them."""
        return {"left": self.left, "right": self.right, "label": self.label}


def pairs_from_labels(
    texts: Sequence[str], labels: NDArray[np.int64], *, partners: int, seed: int
) -> LabelPairs:
    """Every two texts of a class, `partners` a text at most on average, and as many drawn across classes.

    No pair comes twice, and none has two equal texts.
    """
    random = np.random.default_rng(seed)
    alike = [pair for label in np.unique(labels) for pair in _within(labels == label, partners, random)]
    alike = [(i, j) for i, j in alike if texts[i] != texts[j]]
    if not alike:
        raise InputError(
            "no class has two different texts, so there are no pairs to learn from. "
            "Give at least two texts of each class, or take the head alone: tune=False"
        )
    unlike = _across(texts, labels, len(alike), random)
    chosen = [*alike, *unlike]
    return LabelPairs(
        left=[texts[i] for i, _ in chosen],
        right=[texts[j] for _, j in chosen],
        label=[1] * len(alike) + [0] * len(unlike),
    )


def _within(members: NDArray[np.bool_], partners: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of one class; a class with more than `partners` + 1 texts gives a sample."""
    places = np.flatnonzero(members).tolist()
    most = len(places) * partners // 2
    if len(places) <= partners + 1:
        return list(combinations(places, 2))
    found: dict[tuple[int, int], None] = {}
    while len(found) < most:  # there are more pairs than `most`, so this ends
        one, other = random.choice(len(places), size=2, replace=False).tolist()
        found[min(places[one], places[other]), max(places[one], places[other])] = None
    return list(found)


def _across(
    texts: Sequence[str], labels: NDArray[np.int64], wanted: int, random: np.random.Generator
) -> list[tuple[int, int]]:
    """`wanted` different pairs of two classes, or fewer where a hundred draws a pair find no more."""
    found: dict[tuple[int, int], None] = {}
    for _ in range(100 * wanted):
        if len(found) == wanted:
            break
        one, other = random.integers(len(texts), size=2).tolist()
        if labels[one] != labels[other] and texts[one] != texts[other]:
            found[min(one, other), max(one, other)] = None
    return list(found)
