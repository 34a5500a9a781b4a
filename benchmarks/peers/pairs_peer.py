"""One system of pairs.py in its own process: pairs and search over vectors from npy files.

It runs in every environment, so each library is imported by the system that uses it. Reading the file and building
what a library searches in (faiss: an index; torch: a tensor) are outside the timer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from protocol import Answer, answer_requests, installed, memory_mb

Work = Callable[[], Any]
_TILE = 4096


class Ours:
    """`prune` False is plain float32."""

    def __init__(self, options: Answer) -> None:
        import gemel

        self._gemel, self._threads = gemel, options["threads"]
        self._prune = options.get("prune", True)

    def pairs(self, rows: np.ndarray, ask: Answer) -> Work:
        limits = {"k": ask.get("k"), "min_score": ask.get("min_score")}
        return lambda: self._gemel.similar_pairs(rows, **limits, threads=self._threads, prune=self._prune)

    def search(self, queries: np.ndarray, corpus: np.ndarray, ask: Answer) -> Work:
        how = {"threads": self._threads, "prune": self._prune}
        return lambda: self._gemel.search(queries, corpus, ask["k"], **how)

    @staticmethod
    def answer(result: Any) -> Answer:  # noqa: ANN401 - Pairs or Hits
        best = {"index": result.index[:, :10].tolist()} if hasattr(result, "index") else {}
        return {"found": len(result), "scores": np.ravel(result.score)[:1000].tolist(), **best}


class NumpyTriangle:
    """A simple version: blocks of the upper triangle, a running threshold."""

    def __init__(self, options: Answer) -> None:
        pass

    def pairs(self, rows: np.ndarray, ask: Answer) -> Work:
        k, floor = ask.get("k"), ask.get("min_score")

        def work() -> list[tuple[float, int, int]]:
            least, kept = -np.inf if floor is None else floor, np.empty((0, 3))
            for i in range(0, len(rows), _TILE):
                for j in range(i, len(rows), _TILE):
                    table = rows[i : i + _TILE] @ rows[j : j + _TILE].T
                    if i == j:
                        table[np.tril_indices(len(table))] = -np.inf
                    left, right = np.nonzero(table >= least)
                    result = np.stack([table[left, right], left + i, right + j], axis=1)
                    kept = np.concatenate([kept, result])
                    if k is not None and len(kept) > k:
                        kept = kept[np.argpartition(-kept[:, 0], k)[:k]]
                        least = max(least, kept[:, 0].min())
            return kept[np.argsort(-kept[:, 0])]

        return work

    @staticmethod
    def answer(result: np.ndarray) -> Answer:
        return {"found": len(result), "scores": result[:1000, 0].tolist()}


class Products:
    """The limit: the matrix products of the upper triangle and nothing else."""

    def __init__(self, options: Answer) -> None:
        self._library = options["library"]
        if self._library == "torch":
            import torch

            torch.set_num_threads(options["threads"])
            self._torch = torch

    def pairs(self, rows: np.ndarray, ask: Answer) -> Work:
        table = self._torch.from_numpy(rows) if self._library == "torch" else rows

        def work() -> None:
            for i in range(0, len(rows), _TILE):
                for j in range(i, len(rows), _TILE):
                    table[i : i + _TILE] @ table[j : j + _TILE].T

        return work

    @staticmethod
    def answer(result: None) -> Answer:
        return {}


class SentenceTransformers:
    def __init__(self, options: Answer) -> None:
        import torch
        from sentence_transformers import util

        torch.set_num_threads(options["threads"])
        self._util, self._torch = util, torch

    def pairs(self, rows: np.ndarray, ask: Answer) -> Work:
        table = self._torch.from_numpy(rows)
        # max_pairs ends the search early when it is small, so it stays at its default and the best k are taken
        return lambda: self._util.paraphrase_mining_embeddings(table)[: ask["k"]]

    def search(self, queries: np.ndarray, corpus: np.ndarray, ask: Answer) -> Work:
        query_tensor, corpus_tensor = self._torch.from_numpy(queries), self._torch.from_numpy(corpus)
        return lambda: self._util.semantic_search(query_tensor, corpus_tensor, top_k=ask["k"])

    @staticmethod
    def answer(result: Any) -> Answer:  # noqa: ANN401 - lists of lists or of dicts
        if result and isinstance(result[0][0], dict):
            scores = [hit["score"] for hits in result for hit in hits][:1000]
            return {
                "found": len(result),
                "scores": scores,
                "index": [[hit["corpus_id"] for hit in h] for h in result],
            }
        return {"found": len(result), "scores": [float(score) for score, _, _ in result[:1000]]}


class Faiss:
    def __init__(self, options: Answer) -> None:
        import faiss

        faiss.omp_set_num_threads(options["threads"])
        self._faiss = faiss

    def search(self, queries: np.ndarray, corpus: np.ndarray, ask: Answer) -> Work:
        index = self._faiss.IndexFlatIP(corpus.shape[1])
        index.add(corpus)
        return lambda: index.search(queries, ask["k"])

    @staticmethod
    def answer(result: tuple[np.ndarray, np.ndarray]) -> Answer:
        scores, index = result
        return {"found": len(index), "scores": scores.ravel()[:1000].tolist(), "index": index.tolist()}


SYSTEMS = {
    "ours": Ours,
    "numpy": NumpyTriangle,
    "products": Products,
    "sentence-transformers": SentenceTransformers,
    "faiss": Faiss,
}


class Peer:
    def __init__(self) -> None:
        self._system: Any = None
        self._ready: dict[str, Work] = {}

    def load(self, request: Answer) -> Answer:
        self._system = SYSTEMS[request["system"]](request["options"])
        return {"packages": installed()}

    def prepare(self, request: Answer) -> Answer:
        """Vectors in memory, before the timer starts; those of the previous case are freed."""
        self._ready.clear()
        gc.collect()
        arrays = [np.load(path) for path in request["arrays"]]
        make = getattr(self._system, request["task"])
        make(*(array[:100] for array in arrays), request["ask"])()  # lazy imports, threads
        self._ready[request["case"]] = make(*arrays, request["ask"])
        return {"before_mb": memory_mb("VmRSS")}

    def run(self, request: Answer) -> Answer:
        gc.collect()
        work = self._ready[request["case"]]
        start = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "peak_mb": memory_mb("VmHWM"), **self._system.answer(result)}


if __name__ == "__main__":
    peer = Peer()
    verbs = {"load": peer.load, "prepare": peer.prepare, "run": peer.run}
    answer_requests(lambda verb, request: verbs[verb](request))
