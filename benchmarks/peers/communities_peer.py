"""One system of communities.py in its own process: communities of the rows of an npy file."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
from protocol import Answer, answer_requests, installed, memory_mb


class Ours:
    def __init__(self, threads: int) -> None:
        import gemel

        self._gemel, self._threads = gemel, threads

    def find(self, rows: np.ndarray, ask: Answer) -> list[list[int]]:
        result = self._gemel.cluster(
            rows, min_score=ask["min_score"], min_size=ask["min_size"], threads=self._threads
        )
        order = np.argsort(result.labels, kind="stable")
        ends = np.searchsorted(result.labels[order], np.arange(len(result) + 1))
        return (
            [part.tolist() for part in np.split(order[ends[0] :], ends[1:-1] - ends[0])]
            if len(result)
            else []
        )


class SentenceTransformers:
    def __init__(self, threads: int) -> None:
        import torch
        from sentence_transformers import util

        torch.set_num_threads(threads)
        self._util, self._torch = util, torch

    def find(self, rows: np.ndarray, ask: Answer) -> list[list[int]]:
        return self._util.community_detection(
            self._torch.from_numpy(rows), threshold=ask["min_score"], min_community_size=ask["min_size"]
        )


class Peer:
    def __init__(self) -> None:
        self._system: Any = None
        self._rows = np.empty((0, 0), dtype=np.float32)

    def load(self, request: Answer) -> Answer:
        made = {"ours": Ours, "sentence-transformers": SentenceTransformers}[request["system"]]
        self._system, self._rows = made(request["threads"]), np.load(request["array"])
        self._system.find(self._rows[:200], request["ask"])  # lazy imports, threads
        return {"packages": installed(), "before_mb": memory_mb("VmRSS")}

    def run(self, request: Answer) -> Answer:
        gc.collect()
        start = time.perf_counter()
        result = self._system.find(self._rows, request["ask"])
        seconds = time.perf_counter() - start
        groups = [[int(row) for row in group] for group in result]
        return {"seconds": seconds, "peak_mb": memory_mb("VmHWM"), "groups": groups}


if __name__ == "__main__":
    peer = Peer()
    verbs = {"load": peer.load, "run": peer.run}
    answer_requests(lambda verb, request: verbs[verb](request))
