"""Groups of similar texts, out of their vectors: `cluster` and its answer, `Clusters`.

The answer: a label for each text, what is known of each cluster, and where a new text would go.

From a grouping of points to the answer: ids by size and content, figures, names.

Texts added to clusters that are there: no earlier text moves, no id changes, leftovers make new ones.

Clusters on disk: a JSON file and an archive of arrays that carry the same mark, so that two runs are not mixed.
"""

from __future__ import annotations

import json
import uuid
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tokenize import TokenError  # of a header, which numpy parses as Python
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.groups import agglomerative, communities, density, k_means  # noqa: F401 - each adds its methods
from gemel.groups.describe import Closeness, closeness, keywords, silhouette
from gemel.groups.methods import (
    METHODS,
    ClusterRequest,
    Grouping,
    Labels,
    Points,
    no_clusters,
    points_of,
    sums_of,
)
from gemel.types import Vectors
from gemel.vectors.similarity import check_same_dim, checked, normalize

if TYPE_CHECKING:
    import pandas

__all__ = ["METHODS", "Cluster", "Clusters", "cluster"]


def cluster(  # noqa: PLR0913 - one question, and how to work on it
    vectors: ArrayLike,
    *,
    method: str | None = None,
    min_score: float | None = None,
    k: int | None = None,
    min_size: int = 2,
    seed: int = 0,
    texts: Sequence[str] | None = None,
    earlier: Clusters | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
) -> Clusters:
    """Clusters of (n, dim) vectors by cosine. The order of the rows changes no cluster, no id and no figure.

    method: communities (default; around centres, all members at least `min_score` from theirs, 0.75 if not given),
    k-means (default with `k`), spherical-k-means, agglomerative (`k` or `min_score`), or hdbscan.
    min_size: a smaller group is no cluster, its texts get -1; not for clusters by `k`.
    texts: of the rows; then each cluster has a central text, keywords and so a name.
    earlier: clusters to add these rows to, by the method and settings of those. Their labels come first and stay;
    rows that fit nowhere make new clusters with new ids.
    memory: refuses what would need more.

    A row of zeros has no direction and is in no cluster.
    """
    rows = checked(vectors, "vectors")
    said = _checked_texts(texts, len(rows))
    if earlier is not None:
        given = [name for name, value in (("method", method), ("min_score", min_score), ("k", k)) if value]
        if given:
            raise InputError(f"{given[0]} comes from the earlier clusters: leave it away")
        request = _request(
            earlier.method, **_asked(earlier), memory=memory, threads=threads, progress=progress
        )
        if earlier.items or len(earlier.anchors.loose):
            check_same_dim(rows, earlier.anchors.heart, "vectors", "the earlier clusters")
        return grown(earlier, rows, said, request)
    request = _request(
        method, min_score, k, min_size, seed, memory=memory, threads=threads, progress=progress
    )
    points = points_of(rows)
    if not len(points) and request.k is None:
        grouping = no_clusters(points)
    else:
        grouping = ordered(METHODS[request.method](points, request), points)
    settings = {"min_score": request.min_score, "k": request.k, "min_size": min_size, "seed": seed}
    kept = {name: value for name, value in settings.items() if value is not None}
    return built(rows, points, grouping, said, request.method, kept)


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
    METHODS[name]
    if name == "communities" and k is not None:
        raise InputError("communities takes min_score, not k. For k clusters take the method k-means")
    if name.endswith("k-means") and min_score is not None:
        raise InputError(f"{name} takes k, not min_score. For a threshold take the method communities")
    if name == "communities" and min_score is None:
        min_score = communities.DEFAULT_MIN_SCORE
    score = None if min_score is None else float(min_score)
    return ClusterRequest(name, score, None if k is None else int(k), int(min_size), int(seed), **work)


def _asked(earlier: Clusters) -> dict[str, Any]:
    return {
        name: earlier.settings[name]
        for name in ("min_score", "k", "min_size", "seed")
        if name in earlier.settings
    }


def _checked_texts(texts: Sequence[str] | None, rows: int) -> list[str] | None:
    if texts is None:
        return None
    if isinstance(texts, str):
        raise InputError("texts must be a list of texts, got one string")
    if len(texts) != rows:
        raise InputError(f"{len(texts):,} texts but {rows:,} vectors: give one text a vector")
    return list(texts)


_BLOCK = 4096

_NAME = 70  # characters of a central text that serves as a name


@dataclass(frozen=True)
class Cluster:
    """One cluster. Similarities are cosines."""

    id: int
    """Its label. Texts that are added later do not change it."""
    size: int
    centre: int
    """The position of its most central text."""
    inside: float
    """The mean similarity of two of its texts; 1 for a text alone."""
    nearest: int | None
    """The id of the most similar other cluster; None where there is no other."""
    outside: float | None
    """The mean similarity of its texts to those of `nearest`."""
    text: str | None = None
    """The most central text; None where no texts were given."""
    keywords: tuple[str, ...] = ()
    """Words that tell it from the others."""

    @property
    def name(self) -> str:
        """Its keywords, else the beginning of its central text, else its number."""
        if self.keywords:
            return ", ".join(self.keywords)
        if self.text and self.text.strip():
            line = " ".join(self.text.split())
            return line if len(line) <= _NAME else line[: _NAME - 1] + "…"
        return f"cluster {self.id}"


@dataclass(frozen=True, eq=False)
class Anchors:
    """What later texts are judged by. Rows of the first three are those of the clusters."""

    heart: Vectors
    """(c, dim): a text belongs where the product with its unit vector is highest ..."""
    reach: NDArray[np.float64]
    """(c,) ... and at least this."""
    sums: NDArray[np.float64]
    """(c, dim) of the unit vectors of the members."""
    loose: Vectors
    """(m, dim): the texts in no cluster, in the order of their positions."""
    loose_texts: tuple[str, ...] | None
    """What they say, where texts were given."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters by id, and the one of each text."""

    method: str
    settings: Mapping[str, Any]
    """What the method was asked for, without what was not given."""
    labels: Labels
    """(n,) the id of each text's cluster; -1: in none."""
    items: tuple[Cluster, ...]
    """By id. In one run the largest comes first; equally large ones in the order of the content of their centres."""
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

    def assign(self, vectors: ArrayLike) -> Labels:
        """(n,) the cluster that each new text belongs to, -1 for none. Nothing is changed.

        Communities: the centre with the highest similarity, if that is at least the threshold. k-means: the nearest
        mean. Agglomerative: the highest mean similarity to all members, if at least the threshold. HDBSCAN: the
        nearest mean, if it is as near as that of the farthest member.
        """
        rows = checked(vectors, "vectors")
        labels = np.full(len(rows), -1, dtype=np.int64)
        if not len(self.items) or not len(rows):
            return labels
        check_same_dim(rows, self.anchors.heart, "vectors", "the clusters")
        unit, ids = normalize(rows), np.array([cluster.id for cluster in self.items])
        for begin in range(0, len(unit), _BLOCK):
            scores = unit[begin : begin + _BLOCK] @ self.anchors.heart.T
            scores[scores < self.anchors.reach] = -np.inf
            best = scores.argmax(axis=1)
            found = np.isfinite(scores[np.arange(len(best)), best])
            labels[begin : begin + _BLOCK] = np.where(found, ids[best], -1)
        labels[~unit.any(axis=1)] = -1  # a vector of zeros is like none
        return labels

    def summary(self) -> str:
        """One line for a person."""
        parts = [f"{len(self.items):,} clusters of {len(self.labels):,} texts"]
        parts.append(f"{self.unassigned:,} in none")
        if self.items:
            sizes = np.array([cluster.size for cluster in self.items])
            inside = float(np.average([cluster.inside for cluster in self.items], weights=sizes))
            parts.append(f"mean similarity inside {inside:.2f}")
        apart = [cluster for cluster in self.items if cluster.outside is not None]
        if apart:
            weights = [cluster.size for cluster in apart]
            outside = float(np.average([cluster.outside or 0.0 for cluster in apart], weights=weights))
            parts.append(f"to the nearest other {outside:.2f}")
        if self.silhouette is not None:
            parts.append(f"silhouette {self.silhouette:.2f}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All but the labels and the vectors."""
        return {
            "method": self.method,
            "settings": dict(self.settings),
            "texts": len(self.labels),
            "unassigned": self.unassigned,
            "silhouette": self.silhouette,
            "clusters": [{**asdict(cluster), "name": cluster.name} for cluster in self.items],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each cluster."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        return pandas.DataFrame(self.to_json()["clusters"])

    def save(self, folder: str | Path) -> Path:
        """Write clusters.json, for people and programs, and clusters.npz, the arrays beside it."""
        arrays: dict[str, NDArray[Any]] = {
            "labels": self.labels,
            "heart": self.anchors.heart,
            "reach": self.anchors.reach,
            "sums": self.anchors.sums,
            "loose": self.anchors.loose,
        }
        return write_stored(Path(folder), self.to_json(), arrays, self.anchors.loose_texts)

    @classmethod
    def load(cls, folder: str | Path) -> Clusters:
        """What `save` wrote."""
        content, arrays, loose_texts = read_stored(Path(folder))
        try:
            items = tuple(_cluster(fields) for fields in content["clusters"])
            known = {name: arrays[name] for name in ("heart", "reach", "sums", "loose")}
            anchors = Anchors(**known, loose_texts=loose_texts)
            settings, labels = dict(content["settings"]), arrays["labels"]
            found = cls(content["method"], settings, labels, items, content["silhouette"], anchors)
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder}/clusters.json lacks {error}: it was not written by save") from error
        except ValueError as error:
            raise InputError(f"{folder}/clusters.json is damaged: {error}. Cluster again") from error
        rows = {len(items), len(anchors.heart), len(anchors.reach), len(anchors.sums)}
        if len(rows) != 1 or len(anchors.loose) != found.unassigned:
            raise InputError(f"{folder}: clusters.json and clusters.npz do not fit together. Cluster again")
        return found


def _cluster(fields: Mapping[str, Any]) -> Cluster:
    """One cluster of clusters.json, every field checked."""
    known = {name: fields[name] for name in Cluster.__dataclass_fields__}
    for name, kinds in _FIELDS.items():
        value = known[name]
        if (
            not isinstance(value, kinds)
            or isinstance(value, bool)
            or (isinstance(value, int) and abs(value) >= 2**63)
        ):
            raise ValueError(f"{name!r} of a cluster cannot be {value!r:.60}")
    return Cluster(**{**known, "keywords": tuple(map(str, known["keywords"]))})


_FIELDS: dict[str, Any] = {
    "id": int,
    "size": int,
    "centre": int,
    "inside": int | float,
    "nearest": int | None,
    "outside": int | float | None,
    "text": str | None,
    "keywords": list,
}


def ordered(grouping: Grouping, points: Points) -> Grouping:
    """The same clusters, largest first; of equal ones, that with the earlier centre in the order of the points."""
    count = len(grouping.centres)
    inside = grouping.labels >= 0
    sizes = np.bincount(grouping.labels[inside], points.counts[inside], count)
    order = np.lexsort((grouping.centres, -sizes))
    place = np.full(count + 1, -1, dtype=np.int64)
    place[order] = np.arange(count)
    return Grouping(
        place[grouping.labels], grouping.centres[order], grouping.heart[order], grouping.reach[order]
    )


def built(
    vectors: Vectors,
    points: Points,
    grouping: Grouping,
    texts: Sequence[str] | None,
    method: str,
    settings: Mapping[str, Any],
) -> Clusters:
    """`grouping` is in order: its labels are the ids."""
    labels = points.spread(grouping.labels)
    sums, sizes = sums_of(points, grouping.labels, len(grouping.centres))
    ids = np.arange(len(sizes))
    items = described(ids, points.first[grouping.centres], sizes, closeness(sums, sizes), texts, labels)
    loose = np.flatnonzero(labels < 0)
    said = None if texts is None else tuple(texts[at] for at in loose.tolist())
    anchors = Anchors(grouping.heart, grouping.reach, sums, vectors[loose], said)
    quality = silhouette(points, grouping.labels, sums, sizes)
    return Clusters(method, settings, labels, items, quality, anchors)


def described(
    ids: Labels,
    centres: Labels,
    sizes: Labels,
    close: Closeness,
    texts: Sequence[str] | None,
    labels: Labels,
) -> tuple[Cluster, ...]:
    """`labels` are those of `texts`; only for names."""
    words: list[tuple[str, ...]] = [()] * len(ids)
    if texts is not None:
        words = keywords(texts, labels, len(ids))
    return tuple(
        Cluster(
            id=int(ids[place]),
            size=int(sizes[place]),
            centre=int(centres[place]),
            text=None if texts is None else texts[int(centres[place])],
            keywords=words[place],
            **facts(close, place, ids),
        )
        for place in range(len(ids))
    )


def facts(close: Closeness, place: int, ids: NDArray[np.int64]) -> dict[str, Any]:
    """The figures of one cluster, as fields of `Cluster`."""
    other = int(close.nearest[place])
    return {
        "inside": float(close.inside[place]),
        "nearest": None if other < 0 else int(ids[other]),
        "outside": None if other < 0 else float(close.outside[place]),
    }


def grown(
    earlier: Clusters, vectors: Vectors, texts: Sequence[str] | None, request: ClusterRequest
) -> Clusters:
    """The labels of the earlier texts, then those of the new ones."""
    named = earlier.anchors.loose_texts is not None
    if len(earlier.labels) and named != (texts is not None):
        raise InputError(
            "the earlier clusters were made with texts: give texts for the new vectors too"
            if named
            else "the earlier clusters were made without texts: leave texts away"
        )
    labels = np.concatenate([earlier.labels, earlier.assign(vectors)])
    sums = _sums_with(earlier, vectors, labels[len(earlier.labels) :])
    new, left = _leftover(earlier, vectors, texts, request, labels)
    start = 1 + max((cluster.id for cluster in earlier.items), default=-1)
    labels[left] = np.where(new.labels >= 0, new.labels + start, -1)
    items = _items(earlier, new, start, left, labels, np.concatenate([sums, new.anchors.sums]))
    anchors = Anchors(
        np.concatenate([earlier.anchors.heart, new.anchors.heart]),
        np.concatenate([earlier.anchors.reach, new.anchors.reach]),
        np.concatenate([sums, new.anchors.sums]),
        new.anchors.loose,
        new.anchors.loose_texts,
    )
    return Clusters(earlier.method, earlier.settings, labels, items, None, anchors)


def _leftover(
    earlier: Clusters, vectors: Vectors, texts: Sequence[str] | None, request: ClusterRequest, labels: Labels
) -> tuple[Clusters, Labels]:
    """Clusters among all that are in none yet, earlier and new, and the positions of those."""
    count = len(earlier.labels)
    left = np.flatnonzero(labels < 0)
    fresh = left[left >= count] - count
    rows = np.concatenate([earlier.anchors.loose, vectors[fresh]])
    said = None
    if texts is not None:
        said = [*(earlier.anchors.loose_texts or ()), *(texts[at] for at in fresh.tolist())]
    points = points_of(rows)
    if request.k is None and len(points):
        grouping = ordered(METHODS[request.method](points, request), points)
    else:  # k clusters are there already, and take all that has a direction
        grouping = no_clusters(points)
    return built(rows, points, grouping, said, request.method, {}), left


def _sums_with(earlier: Clusters, vectors: Vectors, labels: Labels) -> NDArray[np.float64]:
    sums = earlier.anchors.sums.copy()
    place = {cluster.id: at for at, cluster in enumerate(earlier.items)}
    unit = normalize(vectors)
    for label in np.unique(labels[labels >= 0]).tolist():
        sums[place[label]] += unit[labels == label].sum(axis=0, dtype=np.float64)
    return sums


def _items(
    earlier: Clusters, new: Clusters, start: int, left: Labels, labels: Labels, sums: NDArray[np.float64]
) -> tuple[Cluster, ...]:
    """Sizes and figures anew; names and centres of earlier clusters stay."""
    moved = [replace(item, id=item.id + start, centre=int(left[item.centre])) for item in new.items]
    items = [*earlier.items, *moved]
    ids = np.array([item.id for item in items], dtype=np.int64)
    counts = np.bincount(labels[labels >= 0], minlength=int(ids.max(initial=-1)) + 1)
    sizes = counts[ids]
    close = closeness(sums, sizes)
    return tuple(replace(item, size=int(sizes[at]), **facts(close, at, ids)) for at, item in enumerate(items))


# What damaged JSON, zip and npy files raise.
_UNREADABLE = (
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


def write_stored(
    folder: Path, content: Mapping[str, Any], arrays: Arrays, texts: tuple[str, ...] | None
) -> Path:
    """Each file appears whole or not at all."""
    mark = uuid.uuid4().hex
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{mark}.part"
        with part.open("wb") as stream:
            stored: dict[str, Any] = {
                **arrays,
                "mark": _bytes(mark),
                "loose_texts": _bytes(json.dumps(texts)),
            }
            np.savez(stream, **stored)
        part.replace(folder / "clusters.npz")
        text = json.dumps({**content, "mark": mark}, ensure_ascii=False, indent=2)
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(folder / "clusters.json")
    except OSError as error:
        raise WorkError(f"cannot save the clusters in {folder}: {error}") from error
    return folder


def read_stored(folder: Path) -> tuple[dict[str, Any], Arrays, tuple[str, ...] | None]:
    """What `write_stored` was given."""
    try:
        content = json.loads((folder / "clusters.json").read_text(encoding="utf-8"))
        # Opened here: numpy leaves a damaged archive open.
        with (folder / "clusters.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        mark, texts = _text(arrays.pop("mark")), json.loads(_text(arrays.pop("loose_texts")))
    except FileNotFoundError as error:
        raise InputError(
            f"no clusters in {folder}: expected clusters.json and clusters.npz, as `gemel cluster -o` writes them"
        ) from error
    except _UNREADABLE as error:
        raise InputError(f"the clusters in {folder} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.pop("mark", None) != mark:
        raise InputError(f"{folder}: clusters.json and clusters.npz are of two runs. Cluster again")
    return content, arrays, None if texts is None else tuple(texts)


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def _text(array: NDArray[Any]) -> str:
    return array.tobytes().decode("utf-8")
