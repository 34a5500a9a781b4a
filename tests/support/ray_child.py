"""A process that starts Ray on this machine, runs every verb there and locally, and prints whether results agree."""

from __future__ import annotations

import json
import sys

import numpy as np

import gemel
from gemel.files.rows import read_rows
from gemel.integrations.ray.cluster import open_cluster
from gemel.integrations.ray.encode import RowPrefetcher, load_on_ray
from gemel.integrations.ray.pairs import pairs_on_ray, search_on_ray
from gemel.options import EncodeOptions


def main(folder: str, path: str, out: str) -> dict[str, object]:
    here = gemel.load(folder)
    texts = [row.text for row in read_rows(path)]
    vectors = here.encode(texts)
    with open_cluster("ray") as cluster:
        model = load_on_ray(folder, cluster)
        model._block_tokens = 1024
        ahead = RowPrefetcher(model, read_rows(path), EncodeOptions())
        gemel.encode_to_folder(ahead, ahead, out, fingerprint=model.fingerprint.to_json())  # type: ignore[arg-type]
        pairs = pairs_on_ray(cluster, vectors, k=100)
        hits = search_on_ray(cluster, vectors, vectors[:300], 5)
        summary = cluster.summary("all", len(texts)).to_json()
    expected, result = gemel.similar_pairs(vectors, k=100), gemel.search(vectors, vectors[:300], 5)
    return {
        "vectors": np.array_equal(gemel.read_folder(out).vectors, vectors),
        "pairs": all(
            np.array_equal(getattr(pairs, name), getattr(expected, name))
            for name in ("score", "left", "right")
        ),
        "hits": np.array_equal(hits.index, result.index) and np.array_equal(hits.score, result.score),
        **summary,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
