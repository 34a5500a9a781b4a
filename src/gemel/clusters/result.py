"""The answer: a label for each text, what is known of each cluster, and where a new text would go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.clusters.points import Labels
from gemel.clusters.stored import read_stored, write_stored
from gemel.errors import InputError, MissingExtra
from gemel.similarity import check_same_dim, checked, normalize
from gemel.types import Vectors

if TYPE_CHECKING:
    import pandas

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
