"""What rows outside the graph cost on PostgreSQL: the numbers of decision record 13.

    python benchmarks/postgres_tail.py "postgresql://user@host/db#name" --corpus vectors.npy --queries queries.npy

The index must not exist; it is not deleted afterwards. Server time is the processor time of the session's process, read
from /proc, so the server has to be on this machine; other work on it then matters little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gemel.index.port import Header, PassageRows
from gemel.index.postgres.store import PostgresStore, PostgresTable

TAILS = (0, 1000, 5000, 20_000)
TICK_MS = 10.0


def main() -> None:
    """Load, build, query with growing tails, then insert 1,000 rows into the graph itself."""
    options = _parser().parse_args()
    corpus, queries = np.load(options.corpus).astype(np.float32), np.load(options.queries).astype(np.float32)
    store = PostgresStore(options.location)
    table = store.create(Header(corpus.shape[1], {}, {}))
    result: dict[str, Any] = {"rows": len(corpus)}
    result["load_s"] = _timed(lambda: _write(table, corpus, "row"))
    result["build_and_tune_s"] = _timed(table.compact)
    stats = table.stats()
    result |= {"layout": stats.layout, "recall": stats.recall, "bytes": stats.bytes}
    result["exact_ms"] = _server_ms(table, queries[:10], exact=True)
    size = 0
    for tail in TAILS:
        if tail > size:
            noise = np.random.default_rng(tail).normal(size=(tail - size, corpus.shape[1])).astype(np.float32)
            noise /= np.linalg.norm(noise, axis=1, keepdims=True)
            _write(table, noise, f"tail{tail}")
            size = tail
        result[f"graph_and_tail_{tail}_ms"] = _server_ms(table, queries)
    result["1000_rows_into_the_tail_s"] = _timed(lambda: _write(table, corpus[:1000], "again"))
    result["1000_rows_into_the_graph_s"] = _into_the_graph(table)
    json.dump(result, sys.stdout, indent=2)
    table.close()
    store.close()


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("location")
    made.add_argument("--corpus", type=Path, required=True)
    made.add_argument("--queries", type=Path, required=True)
    return made


def _write(table: PostgresTable, vectors: np.ndarray[Any, Any], name: str) -> None:
    for start in range(0, len(vectors), 2048):
        block = vectors[start : start + 2048]
        n = len(block)
        ids = [f"{name}-{start + number}" for number in range(n)]
        table.write(
            PassageRows(ids, np.zeros(n, np.int32), ["a short text"] * n, ["d"] * n, block), replace=False
        )


def _server_ms(table: PostgresTable, queries: np.ndarray[Any, Any], *, exact: bool = False) -> float:
    session = table._server.read(lambda connection: connection.info.backend_pid)
    table.nearest(queries[:1], 10, exact=exact)
    before = _used_ms(session)
    for query in queries[:500]:
        table.nearest(query[None], 10, exact=exact)
    return round((_used_ms(session) - before) / len(queries[:500]), 2)


def _used_ms(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def _into_the_graph(table: PostgresTable) -> float:
    """Delete the first 1,000 rows and insert them again with their old numbers, directly into the graph."""
    name = f'gemel."{table.relation}"'

    def work(connection: Any) -> float:  # noqa: ANN401
        connection.execute(f"CREATE TEMP TABLE first_rows AS SELECT * FROM {name} WHERE number <= 1000")
        connection.execute(f"DELETE FROM {name} WHERE number <= 1000")
        return _timed(
            lambda: connection.execute(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE SELECT * FROM first_rows")
        )

    return table._server.read(work)


def _timed(work: Any) -> float:  # noqa: ANN401
    start = time.perf_counter()
    work()
    return round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    main()
