"""One system of sparse_search.py in its own process: searches rows of sparse weights, or encodes texts."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from protocol import Answer, answer_requests, installed, memory_mb

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # indptr, indices, values


class Ours:
    """gemel.InvertedFile, loaded from disk."""

    def __init__(self, documents: Rows, dim: int, folder: Path, options: Answer) -> None:
        from gemel.vectors.inverted import InvertedFile

        InvertedFile.build(*documents, dim).save(folder)
        self._file, self._exact = InvertedFile.load(folder), options["exact"]
        self.facts = {"recall_measured_by_build": self._file.recall}

    def query(self, columns: np.ndarray, values: np.ndarray, words: list[str]) -> Any:  # noqa: ANN401
        return columns, values

    def search(self, query: Any, k: int) -> np.ndarray:  # noqa: ANN401 - what `query` made
        return self._file.search(query, k, exact=self._exact)[0]


class Scipy:
    """The product with the transposed matrix; `dense`: of the matrix with a dense query."""

    def __init__(self, documents: Rows, dim: int, folder: Path, options: Answer) -> None:
        from scipy import sparse

        indptr, indices, values = documents
        self._sparse, self._dim, self._dense = sparse, dim, options["dense"]
        matrix = sparse.csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, dim))
        self._matrix = matrix if self._dense else matrix.T.tocsr()
        folder.mkdir(exist_ok=True)
        sparse.save_npz(folder / "matrix.npz", self._matrix, compressed=False)
        self.facts: Answer = {}

    def query(self, columns: np.ndarray, values: np.ndarray, words: list[str]) -> Any:  # noqa: ANN401
        row = self._sparse.csr_matrix((values, columns, [0, len(columns)]), shape=(1, self._dim))
        return row.toarray()[0] if self._dense else row

    def search(self, query: Any, k: int) -> np.ndarray:  # noqa: ANN401 - what `query` made
        if self._dense:
            rows, scores = None, self._matrix @ query
        else:
            found = query @ self._matrix
            rows, scores = found.indices, found.data
        best = np.argpartition(-scores, k)[:k] if len(scores) > k else np.arange(len(scores))
        best = best[np.argsort(-scores[best], kind="stable")]
        return best if rows is None else rows[best]


class Bm25s:
    """bm25s on its numba back end: BM25 of the words, or with the weights of the model.

    It has no weights of query words: with the model's weights it reads the same lists and adds them up unweighted.
    """

    def __init__(self, documents: Rows, dim: int, folder: Path, options: Answer) -> None:
        import bm25s

        self._model, self._retriever = options["weights"] == "model", bm25s.BM25(backend="numba")
        if self._model:
            from scipy import sparse

            indptr, indices, values = documents
            lists = sparse.csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, dim)).tocsc()
            self._retriever.scores = {
                "data": lists.data,
                "indices": lists.indices.astype(np.int32),
                "indptr": lists.indptr,
                "num_docs": len(indptr) - 1,
            }
            self._retriever.vocab_dict = {str(column): column for column in range(dim)}
            self._retriever.unique_token_ids_set = set(range(dim))
            self._retriever.nonoccurrence_array = None  # of variants of BM25 that score absent words
        else:
            texts = json.loads(Path(options["texts"]).read_text(encoding="utf-8"))
            tokens = bm25s.tokenize(texts, stopwords="en", show_progress=False)
            self._retriever.index(tokens, show_progress=False)
        self._retriever.save(str(folder), show_progress=False)
        self.facts: Answer = {}

    def query(self, columns: np.ndarray, values: np.ndarray, words: list[str]) -> Any:  # noqa: ANN401
        if self._model:
            return [[int(column) for column in columns]]
        known = [word for word in words if word in self._retriever.vocab_dict]
        return [known] if known else None

    def search(self, query: Any, k: int) -> np.ndarray:  # noqa: ANN401 - what `query` made
        if query is None:
            return np.empty(0, np.int64)
        found = self._retriever.retrieve(query, k=k, n_threads=1, show_progress=False)
        return np.asarray(found.documents[0])


SEARCHERS = {"ours": Ours, "scipy": Scipy, "bm25s": Bm25s}


class Peer:
    def __init__(self) -> None:
        self._system: Any = None
        self._queries: list[Any] = []
        self._model: Any = None

    def load(self, request: Answer) -> Answer:
        """Build a system from the rows, and save it."""
        stored = np.load(request["rows"])
        documents = tuple(stored[f"document_{name}"] for name in ("indptr", "indices", "values"))
        queries = tuple(stored[f"query_{name}"] for name in ("indptr", "indices", "values"))
        folder, made = Path(request["folder"]), SEARCHERS[request["system"]]
        gc.collect()
        start = time.perf_counter()
        self._system = made(documents, int(stored["dim"]), folder, request["options"])
        seconds = time.perf_counter() - start
        for query, words in enumerate(request["words"]):
            part = slice(queries[0][query], queries[0][query + 1])
            self._queries.append(self._system.query(queries[1][part], queries[2][part], words))
        for query in self._queries[:20]:  # lazy imports, compilation, pages of a mapped file
            self._system.search(query, request["k"])
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        return {
            "build_seconds": seconds,
            "disk_mb": size / 1e6,
            "packages": installed(),
            **self._system.facts,
        }

    def run(self, request: Answer) -> Answer:
        """All queries once, one per call."""
        milliseconds, rows = [], []
        for query in self._queries:
            start = time.perf_counter()
            found = self._system.search(query, request["k"])
            milliseconds.append((time.perf_counter() - start) * 1e3)
            rows.append(np.asarray(found).tolist())
        return {"milliseconds": milliseconds, "rows": rows, "memory_mb": memory_mb("VmRSS")}

    def load_encoder(self, request: Answer) -> Answer:
        """A sparse encoder: of gemel, or of sentence-transformers."""
        self._threads = request["threads"]
        if request["system"] == "gemel":
            import gemel

            self._model = gemel.load_sparse(request["model"])
        else:
            import torch
            from sentence_transformers import SparseEncoder

            torch.set_num_threads(self._threads)
            self._model = SparseEncoder(request["model"], device="cpu")
        self._ours = request["system"] == "gemel"
        return {"packages": installed()}

    def encode(self, request: Answer) -> Answer:
        """The seconds for these texts; some weights, to compare."""
        texts = json.loads(Path(request["texts"]).read_text(encoding="utf-8"))
        start = time.perf_counter()
        if self._ours:
            found = self._model.encode_document(texts, threads=self._threads, on_long="truncate")
        else:
            found = self._model.encode_document(texts, batch_size=request["batch"], show_progress_bar=False)
        seconds = time.perf_counter() - start
        dense = found[:8].to_dense() if self._ours else found.to_dense().numpy()[:8]
        return {"seconds": seconds, "sums": [float(row.sum()) for row in dense]}


if __name__ == "__main__":
    peer = Peer()
    verbs = {"load": peer.load, "run": peer.run, "load_encoder": peer.load_encoder, "encode": peer.encode}
    answer_requests(lambda verb, request: verbs[verb](request))
