"""Cosines of random texts and of texts that belong together, before training and after, on the same axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemel.evaluation.report.markup import Markup, element
from gemel.evaluation.report.plots.axis import PLOT_HEIGHT, Frame, Range, frame, range_of
from gemel.evaluation.report.plots.svg import drawing
from gemel.training.geometry import BINS, Similarities
from gemel.training.report.series import Floats

_EDGES = np.linspace(-1, 1, BINS + 1)


@dataclass(frozen=True)
class Histogram:
    """One picture: the filled shape is of random texts, the line of those that belong together."""

    title: str
    counts: Similarities
    x: Range
    y: Range

    @property
    def hint(self) -> str:
        said = f"filled: random texts, mean {_mean(self.counts.random):.2f}"
        if self.counts.positive is not None:
            said += f"; line: texts that belong together, mean {_mean(self.counts.positive):.2f}"
        return said

    def drawn(self) -> Markup:
        axes = frame(self.x, self.y)
        marks = [
            axes.drawn("cosine", "% of pairs"),
            element("path", d=_outline(_shares(self.counts.random), axes), class_="filled c0"),
        ]
        if self.counts.positive is not None:
            marks.append(
                element("path", d=_outline(_shares(self.counts.positive), axes), class_="outline c1")
            )
        return drawing(f"Cosines, {self.title.lower()}", self.hint, PLOT_HEIGHT, *marks)


def histograms(named: list[tuple[str, Similarities]]) -> list[Histogram]:
    """The pictures, with axes that they share."""
    kinds = [each for _, counts in named for each in (counts.random, counts.positive) if each is not None]
    used = np.flatnonzero(np.sum([np.array(kind) for kind in kinds], axis=0))
    low, high = (float(_EDGES[used[0]]), float(_EDGES[used[-1] + 1])) if len(used) else (-1.0, 1.0)
    across = range_of([low, high])
    up = range_of([float(_shares(kind).max()) for kind in kinds], zero=True)
    return [Histogram(title, counts, across, up) for title, counts in named]


def _shares(counts: tuple[int, ...]) -> Floats:
    """In percent."""
    numbers = np.array(counts, dtype=np.float64)
    return np.asarray(100 * numbers / max(numbers.sum(), 1))


def _mean(counts: tuple[int, ...]) -> float:
    """To within half a bin, 0.0125."""
    middles = (_EDGES[:-1] + _EDGES[1:]) / 2
    return float(np.average(middles, weights=counts)) if sum(counts) else 0.0


def _outline(shares: Floats, axes: Frame) -> str:
    """Stairs from the floor and back to it."""
    inside = np.flatnonzero((_EDGES[:-1] >= axes.x.low - 1e-9) & (_EDGES[1:] <= axes.x.high + 1e-9))
    path = [f"M{axes.x(float(_EDGES[inside[0]])):.1f} {axes.y(0):.1f}"]
    for place in inside:
        path.append(f"V{axes.y(float(shares[place])):.1f}H{axes.x(float(_EDGES[place + 1])):.1f}")
    return "".join(path) + f"V{axes.y(0):.1f}"
