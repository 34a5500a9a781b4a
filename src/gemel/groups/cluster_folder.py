"""The folder that `gemel cluster` writes: clusters, the cluster of each text, vectors, and the map as an HTML page.

clusters.json and clusters.npz are those of `Clusters.save`; a later run needs the other files to add texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.files.records import RecordFile
from gemel.files.write_rows import write_rows
from gemel.groups.cluster import UNREADABLE, Clusters
from gemel.groups.map import LayoutName, layout, map_page
from gemel.types import AnyVectors

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
