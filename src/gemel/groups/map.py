"""A map of texts: coordinates in the plane from vectors, and one HTML page with hover, zoom, search and a legend.

The page loads nothing from the network. Coordinates are from PCA, or from t-SNE of some thousands of texts; each other
text is then put between its nearest neighbors among those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.probe import one_thread
from gemel.types import Vectors
from gemel.vectors.search import search
from gemel.vectors.similarity import checked, normalize

LayoutName: TypeAlias = Literal["tsne", "pca"]

Coordinates: TypeAlias = NDArray[np.float64]

LANDMARKS = 5000  # texts for t-SNE; more take minutes

_ROUNDS = 600  # steps of t-SNE; later ones hardly move anything

_FIRST = 50  # principal components that t-SNE works on

_AROUND = 3  # landmarks that another text is put between

MOST = 50_000  # texts on a map; of more, a random sample

_HUES = ((211, 70, 45), (24, 90, 48), (140, 55, 34), (345, 70, 48), (265, 50, 52), (46, 95, 40),
         (187, 75, 34), (310, 55, 48), (95, 55, 36), (8, 55, 36), (232, 55, 62), (165, 60, 42))  # fmt: skip
"""Hue, saturation and lightness, in an order in which consecutive hues differ much. Lightness differs too."""

_TEXT = 300  # characters of a text on the page


def layout(vectors: ArrayLike, method: LayoutName = "tsne", *, seed: int = 0) -> Coordinates:
    """(n, 2) between 0 and 1: similar texts have similar coordinates. Both axes have the same scale."""
    rows = checked(vectors, "vectors")
    if method not in get_args(LayoutName):
        raise InputError(f"unknown layout {method!r}. Known: {', '.join(get_args(LayoutName))}")
    unit = normalize(rows)
    if method == "pca" or len(unit) < 10:  # too few for t-SNE
        return _framed(_pca(unit, 2))
    return _framed(_tsne(unit, seed))


def _pca(rows: Vectors, directions: int) -> Coordinates:
    """(n, directions): the principal components. The sign of each is that of its largest element."""
    centered = rows.astype(np.float64) - (rows.mean(axis=0, dtype=np.float64) if len(rows) else 0)
    _, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, ::-1][:, :directions]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    out = np.zeros((len(rows), directions))
    out[:, : axes.shape[1]] = centered @ axes
    return out


def _tsne(unit: Vectors, seed: int) -> Coordinates:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtra("the map (but for the layout pca)", "scikit-learn", "evaluate") from error
    chosen = np.sort(np.random.default_rng(seed).permutation(len(unit))[:LANDMARKS])
    landmarks = unit[chosen]
    with one_thread("the map"):
        reduced = _pca(landmarks, min(_FIRST, landmarks.shape[1]))
        perplexity = min(30.0, (len(landmarks) - 1) / 3)
        start = reduced[:, :2] / max(float(reduced[:, 0].std()), 1e-12) * 1e-4
        if start.shape[1] < 2:
            start = np.column_stack([start, np.zeros(len(start))])
        first = start.astype(np.float32)
        tsne = TSNE(2, perplexity=perplexity, init=first, random_state=seed, max_iter=_ROUNDS)
        coordinates = np.asarray(tsne.fit_transform(reduced.astype(np.float32)), dtype=np.float64)
    if len(chosen) == len(unit):
        return coordinates
    hits = search(unit, landmarks, k=_AROUND)
    weights = np.maximum(hits.score.astype(np.float64), 1e-3) ** 8  # the nearest counts most
    out: Coordinates = (coordinates[hits.index] * weights[..., None]).sum(axis=1) / weights.sum(axis=1)[
        :, None
    ]
    out[chosen] = coordinates
    return out


def _framed(coordinates: Coordinates) -> Coordinates:
    if not len(coordinates):
        return coordinates
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    side = float((high - low).max())
    return np.asarray((coordinates - (low + high) / 2) / (side or 1.0) + 0.5)


@dataclass(frozen=True)
class Group:
    """A cluster on the map."""

    id: int
    name: str
    size: int
    text: str = ""

    @property
    def short(self) -> str:
        """Number and first words, for the map itself."""
        words = self.name.split(", ")[:2]
        line = ", ".join(words)
        return f"{self.id} {line if len(line) <= 26 else line[:25] + '…'}"


@dataclass(frozen=True, eq=False)
class MapContent:
    """A map of n texts."""

    title: str
    summary: str
    coordinates: Coordinates
    """(n, 2), from 0 to 1, y downwards."""
    labels: NDArray[np.int64]
    """(n,) the id of the group of each; -1: none."""
    groups: tuple[Group, ...]
    """In the order of the legend."""
    texts: Sequence[str]
    """Shown on hovering; empty strings where there are none."""

    def __post_init__(self) -> None:
        if not len(self.coordinates) == len(self.labels) == len(self.texts):
            raise InputError(
                f"a map needs coordinates, a label and a text for each point: got "
                f"{len(self.coordinates):,} coordinates, {len(self.labels):,} labels and {len(self.texts):,} texts"
            )

    def index(self) -> NDArray[np.int64]:
        """(n,) the position of each text's group in `groups`, -1 for none."""
        position = {group.id: i for i, group in enumerate(self.groups)}
        return np.array([position.get(label, -1) for label in self.labels.tolist()], dtype=np.int64)

    def label_position(self, group: int, index: NDArray[np.int64]) -> tuple[float, float]:
        """Coordinates of the label of a group: those of the member nearest to the median, so never in a gap."""
        members = self.coordinates[index == group]
        if not len(members):
            return -1.0, -1.0
        x, y = members[((members - np.median(members, axis=0)) ** 2).sum(axis=1).argmin()].tolist()
        return x, y


def thinned(content: MapContent, most: int = MOST) -> MapContent:
    """At most `most` texts, chosen at random; the summary then mentions it."""
    count = len(content.coordinates)
    if count <= most:
        return content
    kept = np.sort(np.random.default_rng(0).permutation(count)[:most])
    return MapContent(
        content.title,
        f"{content.summary}. The map shows {most:,} of them, chosen at random",
        content.coordinates[kept],
        content.labels[kept],
        content.groups,
        [content.texts[i] for i in kept.tolist()],
    )


def color_of(position: int) -> tuple[int, int, int]:
    """Hue (degrees), saturation and lightness (percent) of the group at this position of the legend."""
    hue, saturation, lightness = _HUES[position % len(_HUES)]
    turn = position // len(_HUES)
    return (hue + 13 * turn) % 360, saturation, lightness + (8 if turn % 2 else 0)


def map_page(content: MapContent) -> str:
    """The whole page. Texts are data in it, never markup."""
    shown = thinned(content)
    index = shown.index()
    data = {
        "x": [round(x, 5) for x in shown.coordinates[:, 0].tolist()],
        "y": [round(y, 5) for y in shown.coordinates[:, 1].tolist()],
        "c": index.tolist(),
        "text": [_short(text) for text in shown.texts],
        "unassigned": int((content.labels < 0).sum()),
        "clusters": [
            {
                "id": group.id,
                "name": _short(group.name),
                "short": group.short,
                "size": group.size,
                "text": _short(group.text),
                "color": color_of(i),
                "at": [round(number, 5) for number in shown.label_position(i, index)],
            }
            for i, group in enumerate(shown.groups)
        ],
    }
    # Inside a script element only "<" could end it or open a comment.
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = files("gemel.groups").joinpath("map.html").read_text(encoding="utf-8")
    head, between, rest = page.partition("{{data}}")
    assert between, "map.html has no {{data}}"
    head = head.replace("{{title}}", escape(shown.title)).replace("{{summary}}", escape(shown.summary))
    return head + written + rest


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else line[: _TEXT - 1] + "…"
