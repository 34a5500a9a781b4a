"""Clusters of texts by their vectors: `cluster`, its result `Clusters`, and adding texts to earlier clusters.

The order of the rows changes no result. Ids follow from sizes and contents; texts that are added later move no earlier
text and change no id.
"""

from __future__ import annotations

import json
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tokenize import TokenError  # of a header, which numpy parses as Python
from typing import TYPE_CHECKING, Any, Never, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra, WorkError, refuse_keywords
from gemel.files.atomic import atomic_file, write_atomic
from gemel.groups.grouping import (
    METHODS,
    Closeness,
    ClusterRequest,
    Grouping,
    Labels,
    Points,
    closeness,
    cluster_sums,
    keywords,
    no_clusters,
    points_of,
    silhouette,
)
from gemel.groups.methods.communities import DEFAULT_MIN_SCORE
from gemel.types import Encoder, ShownResult, Vectors
from gemel.vectors.similarity import check_same_dim, checked, is_texts, normalize, vectors_or_encoded

if TYPE_CHECKING:
    import pandas

__all__ = ["METHODS", "Cluster", "Clusters", "cluster"]


def cluster(  # noqa: PLR0913 - one question, and how to work on it
    vectors: ArrayLike | Sequence[str],
    *,
    method: str | None = None,
    min_score: float | None = None,
    k: int | None = None,
    min_size: int = 2,
    seed: int = 0,
    texts: Sequence[str] | None = None,
    vocabulary: Sequence[str] = (),
    earlier: Clusters | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
    model: Encoder | None = None,
    **others: Never,
) -> Clusters:
    """Clusters of (n, dim) vectors by cosine. The order of the rows changes no cluster, no id and no figure.

    method: communities (default; around centers, the similarity of each member to its center is at least `min_score`,
    default 0.75), k-means (default with `k`), spherical-k-means, agglomerative (`k` or `min_score`), or hdbscan.
    min_size: a smaller group is no cluster, its texts get -1; not for clusters by `k`.
    texts: of the rows; then each cluster has a central text, keywords and a name made of them.
    vocabulary: words of the language, the most frequent first, that are poor names; of a model:
    `gemel.groups.grouping.frequent_words(model.tokenizer)`.
    earlier: clusters to add these rows to, with their method and settings. Their labels come first and do not change;
    rows that fit no cluster make new clusters with new ids.
    memory: an InputError is raised for work that would need more.
    model: with it, texts can be given instead of vectors; they are encoded, and are the `texts` too.

    A row of zeros has no direction and is in no cluster.
    """
    refuse_keywords("cluster", _ARGUMENTS, others)
    if model is not None and texts is None and is_texts(vectors):
        texts = cast("Sequence[str]", vectors)
    rows = checked(vectors_or_encoded(vectors, model), "vectors")
    checked_texts = _checked_texts(texts, len(rows))
    if earlier is not None:
        given = [name for name, value in (("method", method), ("min_score", min_score), ("k", k)) if value]
        if given:
            raise InputError(f"{given[0]} comes from the earlier clusters: leave it out")
        settings = {name: earlier.settings[name] for name in _SETTINGS if name in earlier.settings}
        request = _request(earlier.method, **settings, memory=memory, threads=threads, progress=progress)
        if earlier.items or len(earlier.anchors.unassigned):
            check_same_dim(rows, earlier.anchors.centroids, "vectors", "the earlier clusters")
        return _add(earlier, rows, checked_texts, vocabulary, request)
    request = _request(
        method, min_score, k, min_size, seed, memory=memory, threads=threads, progress=progress
    )
    points = points_of(rows)
    run = len(points) > 0 or request.k is not None
    grouping = _run(points, request) if run else no_clusters(points)
    settings = {name: getattr(request, name) for name in _SETTINGS if getattr(request, name) is not None}
    return _clusters(rows, points, grouping, checked_texts, vocabulary, request.method, settings)


_ARGUMENTS = (
    *("vectors", "method", "min_score", "k", "min_size", "seed", "texts", "vocabulary", "earlier"),
    *("memory", "threads", "progress", "model"),
)

_SETTINGS = ("min_score", "k", "min_size", "seed")
"""Arguments of `cluster` that the result depends on, besides the method."""


def _request(
    method: str | None,
    min_score: float | None = None,
    k: int | None = None,
    min_size: int = 2,
    seed: int = 0,
    **work: Any,
) -> ClusterRequest:
    for name, value, least in (("k", k, 1), ("min_size", min_size, 1), ("seed", seed, 0)):
        wrong = isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least
        if wrong and not (name == "k" and value is None):
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if min_score is not None and not np.isfinite(min_score):
        raise InputError(f"min_score must be a finite number, got {min_score!r}")
    name = method or ("k-means" if k is not None else "communities")
    METHODS[name]  # an unknown name raises
    if name == "communities" and min_score is None:
        min_score = DEFAULT_MIN_SCORE
    score = None if min_score is None else float(min_score)
    return ClusterRequest(name, score, None if k is None else int(k), int(min_size), int(seed), **work)


def _checked_texts(texts: Sequence[str] | None, rows: int) -> list[str] | None:
    if texts is None:
        return None
    if isinstance(texts, str):
        raise InputError("texts must be a list of texts, got one string")
    if len(texts) != rows:
        raise InputError(f"{len(texts):,} texts but {rows:,} vectors: give one text per vector")
    return list(texts)


_BLOCK = 4096

_NAME = 70  # characters of a central text that serves as a name

_NAME_WORDS = 3  # keywords in a name


@dataclass(frozen=True)
class Cluster(ShownResult):
    """One cluster. Similarities are cosines."""

    id: int
    """Its label. Texts that are added later do not change it."""
    size: int
    center: int
    """The position of its most central text."""
    inside: float
    """The mean similarity of two of its texts; 1 for a cluster of one text."""
    nearest: int | None
    """The id of the most similar other cluster; None where there is no other."""
    outside: float | None
    """The mean similarity of its texts to those of `nearest`."""
    text: str | None = None
    """The most central text; None where no texts were given."""
    keywords: tuple[str, ...] = ()
    """Words, and phrases of two words, that distinguish it from the others, the best first."""

    @property
    def name(self) -> str:
        """Its best keywords, else the beginning of its central text, else its number."""
        if self.keywords:
            return ", ".join(self.keywords[:_NAME_WORDS])
        if self.text and self.text.strip():
            line = " ".join(self.text.split())
            return line if len(line) <= _NAME else line[: _NAME - 1] + "…"
        return f"cluster {self.id}"


@dataclass(frozen=True, eq=False)
class Anchors:
    """What is needed to add texts later. Rows of the first three are those of the clusters."""

    centroids: Vectors
    """(c, dim): a text belongs to the cluster whose centroid has the highest dot product with its unit vector,"""
    thresholds: NDArray[np.float64]
    """(c,) if that product is at least the threshold of the cluster."""
    sums: NDArray[np.float64]
    """(c, dim): the sum of the unit vectors of the members."""
    unassigned: Vectors
    """(m, dim): the vectors of the texts in no cluster, in the order of their positions."""
    unassigned_texts: tuple[str, ...] | None
    """Those texts; None where no texts were given."""


@dataclass(frozen=True, eq=False)
class Clusters(ShownResult):
    """Clusters, and the cluster of each text."""

    method: str
    settings: Mapping[str, Any]
    """The arguments of `cluster`, without those that were None."""
    labels: Labels
    """(n,) the id of each text's cluster; -1: in none."""
    items: tuple[Cluster, ...]
    """By id. In one run the largest comes first; equally large ones are ordered by the vectors of their centers."""
    silhouette: float | None
    """-1 to 1, higher is better, by cosine; None for fewer than two clusters, and after texts were added."""
    anchors: Anchors

    def __len__(self) -> int:
        return len(self.items)

    def members(self, cluster: int) -> Labels:
        """Positions of the texts of a cluster."""
        return np.flatnonzero(self.labels == cluster)

    @property
    def unassigned(self) -> int:
        """Texts in no cluster."""
        return int((self.labels < 0).sum())

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for item in self.items:
            yield {"id": item.id, "size": item.size, "name": item.name, "inside": item.inside}

    def assign(self, vectors: ArrayLike) -> Labels:
        """(n,) the cluster that each new text belongs to, -1 for none. The clusters do not change.

        Communities: the center with the highest similarity, if that is at least the threshold. k-means: the nearest
        mean. Agglomerative: the highest mean similarity to all members, if at least the threshold. HDBSCAN: the
        nearest mean, if the text is as near to it as the farthest member.
        """
        rows = checked(vectors, "vectors")
        labels = np.full(len(rows), -1, dtype=np.int64)
        if not len(self.items) or not len(rows):
            return labels
        check_same_dim(rows, self.anchors.centroids, "vectors", "the clusters")
        unit, ids = normalize(rows), np.array([cluster.id for cluster in self.items])
        for begin in range(0, len(unit), _BLOCK):
            scores = unit[begin : begin + _BLOCK] @ self.anchors.centroids.T
            scores[scores < self.anchors.thresholds] = -np.inf
            best = scores.argmax(axis=1)
            fits = np.isfinite(scores[np.arange(len(best)), best])
            labels[begin : begin + _BLOCK] = np.where(fits, ids[best], -1)
        labels[~unit.any(axis=1)] = -1  # a vector of zeros is similar to none
        return labels

    def summary(self) -> str:
        """One line of text."""
        parts = [f"{len(self.items):,} clusters of {len(self.labels):,} texts"]
        parts.append(f"{self.unassigned:,} in none")
        if self.items:
            sizes = np.array([cluster.size for cluster in self.items])
            inside = float(np.average([cluster.inside for cluster in self.items], weights=sizes))
            parts.append(f"mean similarity inside {inside:.2f}")
        others = [cluster for cluster in self.items if cluster.outside is not None]
        if others:
            weights = [cluster.size for cluster in others]
            outside = float(np.average([cluster.outside or 0.0 for cluster in others], weights=weights))
            parts.append(f"to the nearest other {outside:.2f}")
        if self.silhouette is not None:
            parts.append(f"silhouette {self.silhouette:.2f}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All but the labels and the vectors. The key of `center` is "centre", as in files of earlier versions."""
        return {
            "method": self.method,
            "settings": dict(self.settings),
            "texts": len(self.labels),
            "unassigned": self.unassigned,
            "silhouette": self.silhouette,
            "clusters": [_cluster_json(cluster) for cluster in self.items],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row per cluster."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        return pandas.DataFrame(self.to_json()["clusters"])

    def save(self, folder: str | Path) -> Path:
        """Write clusters.json, for people and programs, and clusters.npz, the arrays beside it."""
        arrays = {name: getattr(self.anchors, field) for name, field in _ARRAYS.items()}
        return _write(
            Path(folder), self.to_json(), {"labels": self.labels, **arrays}, self.anchors.unassigned_texts
        )

    @classmethod
    def load(cls, folder: str | Path) -> Clusters:
        """The clusters that `save` wrote."""
        content, arrays, unassigned_texts = _read(Path(folder))
        try:
            items = tuple(_parse_cluster(fields) for fields in content["clusters"])
            fields = {field: arrays[name] for name, field in _ARRAYS.items()}
            anchors = Anchors(**fields, unassigned_texts=unassigned_texts)
            settings, labels = dict(content["settings"]), arrays["labels"]
            clusters = cls(content["method"], settings, labels, items, content["silhouette"], anchors)
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder}/clusters.json lacks {error}: it was not written by save") from error
        except ValueError as error:
            raise InputError(f"{folder}/clusters.json is damaged: {error}. Cluster again") from error
        rows = {len(items), len(anchors.centroids), len(anchors.thresholds), len(anchors.sums)}
        if len(rows) != 1 or len(anchors.unassigned) != clusters.unassigned:
            raise InputError(f"{folder}: clusters.json and clusters.npz do not fit together. Cluster again")
        return clusters


def _run(points: Points, request: ClusterRequest) -> Grouping:
    """The grouping by the method, largest cluster first; of equal ones, that with the earlier center point."""
    grouping = METHODS[request.method](points, request)
    count = len(grouping.centers)
    inside = grouping.labels >= 0
    sizes = np.bincount(grouping.labels[inside], points.counts[inside], count)
    order = np.lexsort((grouping.centers, -sizes))
    new_label = np.full(count + 1, -1, dtype=np.int64)
    new_label[order] = np.arange(count)
    return Grouping(
        new_label[grouping.labels],
        grouping.centers[order],
        grouping.centroids[order],
        grouping.thresholds[order],
    )


def _clusters(
    vectors: Vectors,
    points: Points,
    grouping: Grouping,
    texts: Sequence[str] | None,
    vocabulary: Sequence[str],
    method: str,
    settings: Mapping[str, Any],
) -> Clusters:
    """The result for a grouping in its final order: its labels are the ids."""
    labels = points.spread(grouping.labels)
    sums, sizes = cluster_sums(points, grouping.labels, len(grouping.centers))
    ids = np.arange(len(sizes))
    close = closeness(sums, sizes)
    centers = points.first[grouping.centers].tolist()
    words = [()] * len(ids) if texts is None else keywords(texts, labels, len(ids), vocabulary)
    items = tuple(
        Cluster(
            id=i,
            size=int(sizes[i]),
            center=centers[i],
            text=None if texts is None else texts[centers[i]],
            keywords=words[i],
            **_figures(close, i, ids),
        )
        for i in range(len(ids))
    )
    unassigned = np.flatnonzero(labels < 0)
    unassigned_texts = None if texts is None else tuple(texts[i] for i in unassigned.tolist())
    anchors = Anchors(grouping.centroids, grouping.thresholds, sums, vectors[unassigned], unassigned_texts)
    quality = silhouette(points, grouping.labels, sums, sizes)
    return Clusters(method, settings, labels, items, quality, anchors)


def _figures(close: Closeness, i: int, ids: Labels) -> dict[str, Any]:
    """The similarities of cluster `i`, as fields of `Cluster`."""
    other = int(close.nearest[i])
    return {
        "inside": float(close.inside[i]),
        "nearest": None if other < 0 else int(ids[other]),
        "outside": None if other < 0 else float(close.outside[i]),
    }


def _add(
    earlier: Clusters,
    vectors: Vectors,
    texts: Sequence[str] | None,
    vocabulary: Sequence[str],
    request: ClusterRequest,
) -> Clusters:
    """The earlier clusters with new texts: labels of the earlier texts, then of the new ones."""
    with_texts = earlier.anchors.unassigned_texts is not None
    if len(earlier.labels) and with_texts != (texts is not None):
        raise InputError(
            "the earlier clusters were made with texts: give texts for the new vectors too"
            if with_texts
            else "the earlier clusters were made without texts: leave texts out"
        )
    labels = np.concatenate([earlier.labels, earlier.assign(vectors)])
    sums = _added_sums(earlier, vectors, labels[len(earlier.labels) :])
    new, rest = _cluster_rest(earlier, vectors, texts, vocabulary, request, labels)
    sums = np.concatenate([sums, new.anchors.sums])
    first_id = 1 + max((cluster.id for cluster in earlier.items), default=-1)
    labels[rest] = np.where(new.labels >= 0, new.labels + first_id, -1)
    added = [replace(item, id=item.id + first_id, center=int(rest[item.center])) for item in new.items]
    anchors = Anchors(
        np.concatenate([earlier.anchors.centroids, new.anchors.centroids]),
        np.concatenate([earlier.anchors.thresholds, new.anchors.thresholds]),
        sums,
        new.anchors.unassigned,
        new.anchors.unassigned_texts,
    )
    items = _with_figures([*earlier.items, *added], labels, sums)
    return Clusters(earlier.method, earlier.settings, labels, items, None, anchors)


def _added_sums(earlier: Clusters, vectors: Vectors, labels: Labels) -> NDArray[np.float64]:
    sums = earlier.anchors.sums.copy()
    row = {cluster.id: i for i, cluster in enumerate(earlier.items)}
    unit = normalize(vectors)
    for label in np.unique(labels[labels >= 0]).tolist():
        sums[row[label]] += unit[labels == label].sum(axis=0, dtype=np.float64)
    return sums


def _cluster_rest(
    earlier: Clusters,
    vectors: Vectors,
    texts: Sequence[str] | None,
    vocabulary: Sequence[str],
    request: ClusterRequest,
    labels: Labels,
) -> tuple[Clusters, Labels]:
    """Clusters among all texts that are in none yet, earlier and new, and the positions of those texts."""
    count = len(earlier.labels)
    rest = np.flatnonzero(labels < 0)
    new = rest[rest >= count] - count
    rows = np.concatenate([earlier.anchors.unassigned, vectors[new]])
    rest_texts = None
    if texts is not None:
        rest_texts = [*(earlier.anchors.unassigned_texts or ()), *(texts[i] for i in new.tolist())]
    points = points_of(rows)
    # With k, the k clusters exist already, and every vector that is not zero is in one of them.
    run = request.k is None and len(points) > 0
    grouping = _run(points, request) if run else no_clusters(points)
    return _clusters(rows, points, grouping, rest_texts, vocabulary, request.method, {}), rest


def _with_figures(items: Sequence[Cluster], labels: Labels, sums: NDArray[np.float64]) -> tuple[Cluster, ...]:
    """The clusters with new sizes and similarities; names and centers stay."""
    ids = np.array([item.id for item in items], dtype=np.int64)
    counts = np.bincount(labels[labels >= 0], minlength=int(ids.max(initial=-1)) + 1)
    sizes = counts[ids]
    close = closeness(sums, sizes)
    return tuple(replace(item, size=int(sizes[i]), **_figures(close, i, ids)) for i, item in enumerate(items))


# The files that `save` writes. An id in both ensures that they are of one run.

_ARRAYS = {"heart": "centroids", "reach": "thresholds", "sums": "sums", "loose": "unassigned"}
"""Names in clusters.npz to fields of `Anchors`."""

_FIELD_TYPES: dict[str, Any] = {
    "id": int,
    "size": int,
    "centre": int,
    "inside": int | float,
    "nearest": int | None,
    "outside": int | float | None,
    "text": str | None,
    "keywords": list,
}


def _cluster_json(cluster: Cluster) -> dict[str, Any]:
    fields = {"centre" if name == "center" else name: value for name, value in asdict(cluster).items()}
    return {**fields, "name": cluster.name}


def _parse_cluster(fields: Mapping[str, Any]) -> Cluster:
    """One cluster of clusters.json, every field checked."""
    values = {name: fields[name] for name in _FIELD_TYPES}
    for name, types in _FIELD_TYPES.items():
        value = values[name]
        too_large = isinstance(value, int) and abs(value) >= 2**63
        if not isinstance(value, types) or isinstance(value, bool) or too_large:
            raise ValueError(f"{name!r} of a cluster cannot be {value!r:.60}")
    return Cluster(center=values.pop("centre"), keywords=tuple(map(str, values.pop("keywords"))), **values)


# What damaged JSON, zip and npy files raise.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    TokenError,
    SyntaxError,
)

Arrays = Mapping[str, NDArray[Any]]


def _write(folder: Path, content: Mapping[str, Any], arrays: Arrays, texts: tuple[str, ...] | None) -> Path:
    run = uuid.uuid4().hex
    stored: dict[str, Any] = {**arrays, "mark": _bytes(run), "loose_texts": _bytes(json.dumps(texts))}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "clusters.npz") as part, part.open("wb") as stream:
            np.savez(stream, **stored)
        text = json.dumps({**content, "mark": run}, ensure_ascii=False, indent=2)
        write_atomic(folder / "clusters.json", text + "\n")
    except OSError as error:
        raise WorkError(f"cannot save the clusters in {folder}: {error}") from error
    return folder


def _read(folder: Path) -> tuple[dict[str, Any], Arrays, tuple[str, ...] | None]:
    try:
        content = json.loads((folder / "clusters.json").read_text(encoding="utf-8"))
        # Opened here: numpy does not close a damaged archive.
        with (folder / "clusters.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        run, texts = _text(arrays.pop("mark")), json.loads(_text(arrays.pop("loose_texts")))
    except FileNotFoundError as error:
        raise InputError(
            f"no clusters in {folder}: expected clusters.json and clusters.npz, as `gemel cluster -o` writes them"
        ) from error
    except UNREADABLE as error:
        raise InputError(f"the clusters in {folder} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.pop("mark", None) != run:
        raise InputError(f"{folder}: clusters.json and clusters.npz are of two runs. Cluster again")
    return content, arrays, None if texts is None else tuple(texts)


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def _text(array: NDArray[Any]) -> str:
    return array.tobytes().decode("utf-8")
