"""One system of late_search.py in its own process: rerank given candidates, or build and search an index.

All systems get the same token vectors, in files of numpy: those of the documents in float16, those of the queries in
float32, one after the other, with the offsets of the texts.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from protocol import Answer, answer_requests, installed, memory_mb


class Texts:
    """Token vectors of several texts."""

    def __init__(self, folder: Path, name: str) -> None:
        self.vectors = np.load(folder / name / "vectors.npy", mmap_mode="r")
        self.offsets = np.load(folder / name / "offsets.npy")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, text: int) -> np.ndarray:
        return self.rows(self.offsets[text], self.offsets[text + 1])

    def rows(self, begin: int, end: int) -> np.ndarray:
        return np.ascontiguousarray(self.vectors[begin:end], dtype=np.float32)

    def candidates(self, count: int, lengths: tuple[int, int] | None, seed: int) -> list[np.ndarray]:
        """`count` passages; with `lengths`, passages and those after them, cut to lengths in this range."""
        random = np.random.default_rng(seed)
        if lengths is None:
            return [self.of(int(row)) for row in random.choice(len(self), count, replace=False)]
        least, most = lengths
        fitting = np.searchsorted(self.offsets, self.offsets[-1] - most, side="right")
        starts = self.offsets[random.choice(int(fitting), count, replace=False)]
        ends = starts + random.integers(least, most + 1, count)
        return [self.rows(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


class Gemel:
    """`gemel.maxsim` and `TokenIndex`, with documents in one of the forms."""

    settings = ("candidates",)

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        self._folder, self._form, self._threads = folder, form, threads

    def candidates(self, texts: list[np.ndarray]) -> Any:  # noqa: ANN401 - what `rerank` takes
        import gemel

        offsets = np.cumsum([0, *(len(text) for text in texts)])
        return gemel.MultiVectors(np.concatenate(texts), offsets, ()).as_form(self._form)

    def rerank(self, query: np.ndarray, candidates: Any) -> np.ndarray:  # noqa: ANN401
        import gemel

        return gemel.maxsim(query, candidates, threads=self._threads)

    def build(self, documents: Texts) -> None:
        import gemel

        plain = gemel.MultiVectors(documents.vectors, documents.offsets, ())
        made = gemel.TokenIndex.build(plain.as_form(self._form, threads=self._threads), threads=self._threads)
        made.save(self._folder)

    def open(self) -> None:
        import gemel

        self._index = gemel.TokenIndex.load(self._folder)

    def ask(self, query: np.ndarray, k: int, setting: Any) -> list[int]:  # noqa: ANN401
        return self._index.search(query, k, threads=self._threads)[0].tolist()

    def layout(self) -> Answer:
        import gemel

        index = gemel.TokenIndex.load(self._folder)
        return {"recall_it_says": index.recall, "candidates": index.candidates}


class TorchEinsum:
    """What a program with torch would write: products of padded float32 tensors, a mask, the largest, their sum."""

    settings = ()

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch

    def candidates(self, texts: list[np.ndarray]) -> Any:  # noqa: ANN401
        torch = self._torch
        longest = max(len(text) for text in texts)
        padded = torch.zeros(len(texts), longest, texts[0].shape[1])
        mask = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            padded[row, : len(text)] = torch.from_numpy(text)
            mask[row, : len(text)] = True
        return padded, ~mask[:, None]

    def rerank(self, query: np.ndarray, candidates: Any) -> np.ndarray:  # noqa: ANN401
        padded, outside = candidates
        with self._torch.inference_mode():
            products = self._torch.einsum("qd,ntd->nqt", self._torch.from_numpy(query), padded)
            return products.masked_fill_(outside, -np.inf).amax(-1).sum(-1).numpy()


class MaxsimCpu:
    """The package maxsim-cpu, for documents of different lengths in float32."""

    settings = ()

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        import maxsim_cpu

        self._compare = maxsim_cpu.maxsim_scores_variable

    def candidates(self, texts: list[np.ndarray]) -> Any:  # noqa: ANN401
        return texts

    def rerank(self, query: np.ndarray, candidates: Any) -> np.ndarray:  # noqa: ANN401
        return np.asarray(self._compare(query, candidates))


class FastPlaid:
    """fast-plaid; settings are the clusters that are probed and the documents that are scored in full."""

    settings = ((8, 4096), (16, 8192), (32, 16384))

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        import torch
        from fast_plaid import search

        torch.set_num_threads(threads)
        self._torch, self._make, self._folder = torch, search.FastPlaid, folder

    def build(self, documents: Texts) -> None:
        every = [self._torch.from_numpy(documents.of(text)) for text in range(len(documents))]
        self._make(index=str(self._folder), device="cpu").create(documents_embeddings=every)

    def open(self) -> None:
        self._index = self._make(index=str(self._folder), device="cpu")

    def ask(self, query: np.ndarray, k: int, setting: Any) -> list[int]:  # noqa: ANN401
        result = self._index.search(
            self._torch.from_numpy(query)[None],
            top_k=k,
            n_ivf_probe=setting[0],
            n_full_scores=setting[1],
            show_progress=False,
        )
        return [int(row) for row, _ in result[0]]

    def layout(self) -> Answer:
        return {}


class PyLate:
    """PyLate's PLAID in the implementation that does not need fast-plaid; settings as for fast-plaid."""

    settings = ((8, 8192), (16, 16384))

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        # It compiles extensions of torch when they are first used, with the ninja of its environment.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._extensions = folder.parents[1] / "torch-extensions"
        os.environ["TORCH_EXTENSIONS_DIR"] = str(self._extensions)
        import torch
        from pylate import indexes

        torch.set_num_threads(threads)
        self._make, self._folder, self._opened = indexes.PLAID, folder, None

    def prepare(self) -> None:
        """Compile all extensions, which takes minutes, before anything is timed."""
        from pylate.indexes.stanford_nlp.indexing.codecs.residual import ResidualCodec
        from pylate.indexes.stanford_nlp.modeling.colbert import try_load_torch_extensions
        from pylate.indexes.stanford_nlp.search.index_storage import IndexScorer
        from pylate.indexes.stanford_nlp.search.strided_tensor import StridedTensor

        for lock in self._extensions.rglob(
            "lock"
        ):  # of a run that was interrupted: torch would wait for ever
            lock.unlink()
        for part in (ResidualCodec, IndexScorer, StridedTensor):
            part.try_load_torch_extensions(False)
        try_load_torch_extensions(False)

    def _index(self, dim: int, setting: Any, *, override: bool) -> Any:  # noqa: ANN401
        return self._make(
            index_folder=str(self._folder),
            index_name="plaid",
            override=override,
            use_fast=False,
            embedding_size=dim,
            ncells=setting[0],
            ndocs=setting[1],
            device="cpu",
        )

    def build(self, documents: Texts) -> None:
        index = self._index(documents.vectors.shape[1], self.settings[0], override=True)
        numbers = [str(number) for number in range(len(documents))]
        index.add_documents(numbers, [documents.of(text) for text in range(len(documents))])

    def open(self) -> None:
        """An index has its settings: it is opened with the first query of each."""

    def ask(self, query: np.ndarray, k: int, setting: Any) -> list[int]:  # noqa: ANN401
        if self._opened is None or self._opened[0] != setting:
            self._opened = setting, self._index(query.shape[1], setting, override=False)
        return [int(hit["id"]) for hit in self._opened[1](query[None], k=k)[0]]

    def layout(self) -> Answer:
        return {}


SYSTEMS: dict[str, Any] = {
    "gemel": Gemel,
    "torch-einsum": TorchEinsum,
    "maxsim-cpu": MaxsimCpu,
    "fast-plaid": FastPlaid,
    "pylate-plaid": PyLate,
}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


class Peer:
    def load(self, request: Answer) -> Answer:
        self._data, self._folder = Path(request["data"]), Path(request["folder"])
        if request["fresh"]:
            shutil.rmtree(self._folder, ignore_errors=True)
        make = SYSTEMS[request["system"]]
        self._system = make(self._folder, request["form"], request["threads"])
        self._queries = Texts(self._data, "queries")
        return {"packages": installed(), "settings": list(make.settings)}

    def rerank(self, request: Answer) -> Answer:
        """The same candidates of the same queries for all systems; making tensors of them is not timed."""
        documents, times, order, tokens = Texts(self._data, "documents"), [], [], []
        for query in range(request["count"]):
            texts = documents.candidates(request["candidates"], request["lengths"], seed=query)
            ready = self._system.candidates(texts)
            vectors = self._queries.of(query)
            tokens.append([sum(map(len, texts)), len(vectors)])
            self._system.rerank(vectors, ready)
            rounds = [timed(lambda: self._system.rerank(vectors, ready)) for _ in range(5)]  # noqa: B023
            times.append(min(seconds for seconds, _ in rounds) * 1e3)
            order.append(np.argsort(-rounds[0][1], kind="stable")[:10].tolist())
        p50, p95 = np.percentile(times, [50, 95])
        of_documents, of_query = np.mean(tokens, axis=0)
        return {
            "p50_ms": p50,
            "p95_ms": p95,
            "tokens": {"document": of_documents / request["candidates"], "query": of_query},
            "best": order,
        }

    def build(self, request: Answer) -> Answer:
        documents = Texts(self._data, "documents")
        if hasattr(self._system, "prepare"):
            self._system.prepare()
        seconds, _ = timed(lambda: self._system.build(documents))
        files = [file for file in self._folder.rglob("*") if file.is_file() and not file.is_symlink()]
        size = sum(file.stat().st_size for file in files)
        return {
            "seconds": seconds,
            "mb": size / 1e6,
            "peak_mb": memory_mb("VmHWM"),
            **self._system.layout(),
        }

    def open(self, request: Answer) -> Answer:
        """In a process that has not built it."""
        return {"seconds": timed(self._system.open)[0]}

    def ask(self, request: Answer) -> Answer:
        """One query per call; the peak is that of this process, which never had the vectors of the documents."""
        setting = self._system.settings[request["setting"]]
        truth = np.load(self._data / "truth.npy")
        count = min(request["count"], len(truth))
        gc.collect()
        for query in range(min(10, count)):
            self._system.ask(self._queries.of(query), 10, setting)
        times, found = [], []
        for query in range(count):
            vectors = self._queries.of(query)
            seconds, rows = timed(lambda: self._system.ask(vectors, 10, setting))  # noqa: B023
            times.append(seconds * 1e3)
            found.append(np.isin(truth[query], rows).mean())
        p50, p95 = np.percentile(times, [50, 95])
        return {
            "p50_ms": p50,
            "p95_ms": p95,
            "recall": float(np.mean(found)),
            "setting": str(setting),
            "peak_mb": memory_mb("VmHWM"),
        }


if __name__ == "__main__":
    peer = Peer()
    answer_requests(lambda verb, request: getattr(peer, verb)(request))
