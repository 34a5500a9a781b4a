"""A map of texts: coordinates in the plane from vectors, and one HTML page with hover, zoom, search and a legend.

The page loads nothing from the network. Coordinates are from PCA, or from t-SNE of some thousands of texts; each other
text is then put between its nearest neighbors among those. `write_cluster_folder` puts the page beside the clusters,
the cluster of each text and the vectors, which a later run needs to add texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.evaluation.probe import one_thread
from gemel.files.records import RecordFile
from gemel.files.rows import write_rows
from gemel.groups.cluster import UNREADABLE, Clusters
from gemel.types import AnyVectors, Vectors
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

_TEXT, _LABEL = 300, 26  # characters of a text on the page, and of the label of a cluster


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


def color_of(position: int) -> tuple[int, int, int]:
    """Hue (degrees), saturation and lightness (percent) of the group at this position of the legend."""
    hue, saturation, lightness = _HUES[position % len(_HUES)]
    turn = position // len(_HUES)
    return (hue + 13 * turn) % 360, saturation, lightness + (8 if turn % 2 else 0)


def map_page(
    title: str, clusters: Clusters, coordinates: Coordinates, texts: Sequence[str], *, most: int = MOST
) -> str:
    """The whole page: the texts at their (n, 2) coordinates. Texts are data in it, never markup.

    Of more than `most` texts it shows that many, chosen at random.
    """
    summary, shown = clusters.summary(), np.arange(len(coordinates))
    if len(shown) > most:
        shown = np.sort(np.random.default_rng(0).permutation(len(shown))[:most])
        summary += f". The map shows {most:,} of them, chosen at random"
    coordinates = coordinates[shown]
    position = {item.id: i for i, item in enumerate(clusters.items)}
    index = np.array([position.get(label, -1) for label in clusters.labels[shown].tolist()], dtype=np.int64)
    data = {
        "x": [round(x, 5) for x in coordinates[:, 0].tolist()],
        "y": [round(y, 5) for y in coordinates[:, 1].tolist()],
        "c": index.tolist(),
        "text": [_short(texts[i]) for i in shown.tolist()],
        "unassigned": clusters.unassigned,
        "clusters": [
            {
                "id": item.id,
                "name": _short(item.name),
                "short": f"{item.id} {_short(', '.join(item.name.split(', ')[:2]), _LABEL)}",
                "size": item.size,
                "text": _short(item.text or ""),
                "color": color_of(i),
                "at": _label_position(coordinates[index == i]),
            }
            for i, item in enumerate(clusters.items)
        ],
    }
    # Inside a script element only "<" could end it or open a comment.
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = files("gemel.groups").joinpath("map.html").read_text(encoding="utf-8")
    head, between, rest = page.partition("{{data}}")
    assert between, "map.html has no {{data}}"
    head = head.replace("{{title}}", escape(title)).replace("{{summary}}", escape(summary))
    return head + written + rest


def _label_position(members: Coordinates) -> list[float]:
    """Coordinates of the label of a cluster: those of the member nearest to the median, so never in a gap."""
    if not len(members):
        return [-1.0, -1.0]
    nearest = members[((members - np.median(members, axis=0)) ** 2).sum(axis=1).argmin()]
    return [round(number, 5) for number in nearest.tolist()]


def _short(text: str, most: int = _TEXT) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


_ASSIGNMENTS, _VECTORS, _RUN = "assignments.tsv", "vectors.npy", "run.json"


@dataclass(frozen=True, eq=False)
class ClusteredTexts:
    """Texts, their vectors and their clusters, all in one order."""

    ids: Sequence[str]
    texts: Sequence[str]
    vectors: AnyVectors
    """(n, dim); float16 on disk, which is enough for a map."""
    clusters: Clusters
    model: Mapping[str, Any]
    """Name and fingerprint of the model of the vectors."""

    @property
    def names(self) -> list[str]:
        """(n) the name of each text's cluster, "" for none."""
        by_id = {item.id: item.name for item in self.clusters.items}
        return [by_id.get(label, "") for label in self.clusters.labels.tolist()]


def write_cluster_folder(
    folder: Path, clustered: ClusteredTexts, *, title: str, map: LayoutName | None = "tsne", seed: int = 0
) -> None:
    """Write all files; map.html only with a `map`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clustered.clusters.save(folder)
        labels = clustered.clusters.labels.tolist()
        rows = zip(clustered.ids, labels, clustered.names, clustered.texts, strict=True)
        fields = ("id", "cluster", "name", "text")
        write_rows(folder / _ASSIGNMENTS, (dict(zip(fields, row, strict=True)) for row in rows))
        np.save(folder / _VECTORS, np.asarray(clustered.vectors, dtype=np.float16))
        text = json.dumps({"model": dict(clustered.model), "texts": len(labels)}, indent=2)
        (folder / _RUN).write_text(text + "\n", encoding="utf-8")
        if map is not None:
            coordinates = layout(clustered.vectors, map, seed=seed)
            page = map_page(title, clustered.clusters, coordinates, clustered.texts)
            (folder / "map.html").write_text(page, encoding="utf-8")
    except OSError as error:
        raise WorkError(f"cannot write to {folder}: {error}") from error


def read_cluster_folder(folder: Path) -> ClusteredTexts:
    """The content of a folder that `write_cluster_folder` wrote."""
    clusters = Clusters.load(folder)
    try:
        vectors = np.load(folder / _VECTORS, allow_pickle=False)
        model = json.loads((folder / _RUN).read_text(encoding="utf-8"))["model"]
    except (*UNREADABLE, TypeError) as error:
        raise InputError(f"{folder} cannot be added to: {error}. Cluster all texts again") from error
    ids, texts = [], []
    if len(clusters.labels):
        table = RecordFile(folder / _ASSIGNMENTS, encoding="utf-8")
        if not {"id", "text"} <= set(table.columns()):
            raise InputError(
                f"{folder / _ASSIGNMENTS} has no columns 'id' and 'text'. Cluster all texts again"
            )
        for _, (id, text) in table.good_records(["id", "text"]):
            ids.append(str(id))
            texts.append(str(text))
    if not len(ids) == len(vectors) == len(clusters.labels):
        raise InputError(f"the files in {folder} are of two runs. Cluster all texts again")
    return ClusteredTexts(ids, texts, vectors, clusters, model)
