"""What a map shows, whoever draws it: places, groups, names and colours.

The map as one HTML page to move in: hover, zoom, search, legend. It asks for nothing from the network.

Vectors to places in the plane: PCA, or t-SNE, where texts beyond some thousands are put between their neighbours.
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

MOST = 50_000  # texts that a map shows; of more, a random choice

_HUES = ((211, 70, 45), (24, 90, 48), (140, 55, 34), (345, 70, 48), (265, 50, 52), (46, 95, 40),
         (187, 75, 34), (310, 55, 48), (95, 55, 36), (8, 55, 36), (232, 55, 62), (165, 60, 42))  # fmt: skip
"""Hue, saturation and lightness, in an order in which neighbours are far apart. Lightness differs too."""


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
    places: Places
    """(n, 2), from 0 to 1, y downwards."""
    labels: NDArray[np.int64]
    """(n,) the id of the group of each; -1: none."""
    groups: tuple[Group, ...]
    """In the order of the legend."""
    texts: Sequence[str]
    """What hovering shows; empty strings where nothing is known."""

    def __post_init__(self) -> None:
        if not len(self.places) == len(self.labels) == len(self.texts):
            raise InputError(
                f"a map needs a place, a label and a text each: got {len(self.places):,} places, "
                f"{len(self.labels):,} labels and {len(self.texts):,} texts"
            )

    def index(self) -> NDArray[np.int64]:
        """(n,) the place of each text's group in `groups`, -1 for none."""
        place = {group.id: at for at, group in enumerate(self.groups)}
        return np.array([place.get(label, -1) for label in self.labels.tolist()], dtype=np.int64)

    def middle(self, at: int, index: NDArray[np.int64]) -> tuple[float, float]:
        """Where the label of a group stands: on the member nearest to the median, so never in a gap."""
        mine = self.places[index == at]
        if not len(mine):
            return -1.0, -1.0
        x, y = mine[((mine - np.median(mine, axis=0)) ** 2).sum(axis=1).argmin()].tolist()
        return x, y


def thinned(content: MapContent, most: int = MOST) -> MapContent:
    """At most so many texts, chosen at random; the summary says it."""
    count = len(content.places)
    if count <= most:
        return content
    kept = np.sort(np.random.default_rng(0).permutation(count)[:most])
    return MapContent(
        content.title,
        f"{content.summary}. The map shows {most:,} of them, chosen at random",
        content.places[kept],
        content.labels[kept],
        content.groups,
        [content.texts[at] for at in kept.tolist()],
    )


def colour_of(at: int) -> tuple[int, int, int]:
    """Hue (degrees), saturation and lightness (percent) of the group at this place of the legend."""
    hue, saturation, lightness = _HUES[at % len(_HUES)]
    turn = at // len(_HUES)
    return (hue + 13 * turn) % 360, saturation, lightness + (8 if turn % 2 else 0)


_TEXT = 300  # characters of a text that the page holds


def map_page(content: MapContent) -> str:
    """The whole page. Texts are data in it, never markup."""
    shown = thinned(content)
    index = shown.index()
    data = {
        "x": [round(x, 5) for x in shown.places[:, 0].tolist()],
        "y": [round(y, 5) for y in shown.places[:, 1].tolist()],
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
                "colour": colour_of(at),
                "at": [round(number, 5) for number in shown.middle(at, index)],
            }
            for at, group in enumerate(shown.groups)
        ],
    }
    # Inside a script element only "<" could end it or open a comment.
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = files("gemel.groups").joinpath("map.html").read_text(encoding="utf-8")
    head, between, rest = page.partition("{{data}}")
    assert between, "data/map.html has no place for the data"
    head = head.replace("{{title}}", escape(shown.title)).replace("{{summary}}", escape(shown.summary))
    return head + written + rest


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else line[: _TEXT - 1] + "…"


LayoutName: TypeAlias = Literal["tsne", "pca"]

Places: TypeAlias = NDArray[np.float64]

LANDMARKS = 5000  # texts that t-SNE lays out; more take minutes

_ROUNDS = 600  # steps of t-SNE; later ones hardly move anything

_FIRST = 50  # directions that t-SNE works on

_AROUND = 3  # landmarks that a further text is put between


def layout(vectors: ArrayLike, method: LayoutName = "tsne", *, seed: int = 0) -> Places:
    """(n, 2) between 0 and 1: texts that are alike lie together. Both sides have the same scale."""
    rows = checked(vectors, "vectors")
    if method not in get_args(LayoutName):
        raise InputError(f"unknown layout {method!r}. Known: {', '.join(get_args(LayoutName))}")
    unit = normalize(rows)
    if method == "pca" or len(unit) < 10:  # too few to have neighbourhoods
        return _framed(_pca(unit, 2))
    return _framed(_tsne(unit, seed))


def _pca(rows: Vectors, directions: int) -> Places:
    """(n, directions): the coordinates along which the rows differ most; each points where its largest part is."""
    centred = rows.astype(np.float64) - (rows.mean(axis=0, dtype=np.float64) if len(rows) else 0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :directions]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    out = np.zeros((len(rows), directions))
    out[:, : axes.shape[1]] = centred @ axes
    return out


def _tsne(unit: Vectors, seed: int) -> Places:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtra("the map (but for the layout pca)", "scikit-learn", "evaluate") from error
    chosen = np.sort(np.random.default_rng(seed).permutation(len(unit))[:LANDMARKS])
    marks = unit[chosen]
    with one_thread("the map"):
        reduced = _pca(marks, min(_FIRST, marks.shape[1]))
        perplexity = min(30.0, (len(marks) - 1) / 3)
        start = reduced[:, :2] / max(float(reduced[:, 0].std()), 1e-12) * 1e-4
        if start.shape[1] < 2:
            start = np.column_stack([start, np.zeros(len(start))])
        first = start.astype(np.float32)
        made = TSNE(2, perplexity=perplexity, init=first, random_state=seed, max_iter=_ROUNDS)
        places = np.asarray(made.fit_transform(reduced.astype(np.float32)), dtype=np.float64)
    if len(chosen) == len(unit):
        return places
    hits = search(unit, marks, k=_AROUND)
    weights = np.maximum(hits.score.astype(np.float64), 1e-3) ** 8  # the nearest counts most
    out: Places = (places[hits.index] * weights[..., None]).sum(axis=1) / weights.sum(axis=1)[:, None]
    out[chosen] = places
    return out


def _framed(places: Places) -> Places:
    if not len(places):
        return places
    low, high = places.min(axis=0), places.max(axis=0)
    side = float((high - low).max())
    return np.asarray((places - (low + high) / 2) / (side or 1.0) + 0.5)
