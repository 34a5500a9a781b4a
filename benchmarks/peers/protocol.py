"""The protocol between a worker and the runner: one JSON object per line, in and out.

    prepare  make files for a peer (an ONNX export, a quantized graph), then exit
    load     read the model and the texts
    tune     try batch sizes on a few texts of a set, keep the fastest
    encode   texts of a set -> vectors; the time, and the vectors in a file if requested
    latency  one text per call
    matmul   rate of a square float32 matrix product

It runs in every peer's environment, so it imports nothing but the standard library and numpy.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

Answer = dict[str, Any]  # JSON


class Peer(Protocol):
    """A loaded system. `settings` is what the report says about how it was run."""

    settings: Answer

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        """(n, dim) float32 with rows of length 1, in the order of `texts`."""


def memory_mb(field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (peak) of this process, in MB of 10^6 bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024 / 1e6


def installed() -> dict[str, str]:
    """Every distribution of this environment with its version."""
    return {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}


def die_with_parent() -> None:
    """End when the runner ends. Otherwise a stopped worker would stay forever if the runner is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Worker:
    """Answers requests with one peer, made by `make` from the options of the load request."""

    def __init__(self, make: Callable[[Answer], Peer], prepare: Callable[[Answer], None] | None) -> None:
        self._make = make
        self._prepare = prepare
        self._peer: Peer | None = None
        self._sets: dict[str, list[str]] = {}
        self._batch: dict[str, int | None] = {}

    def prepare(self, request: Answer) -> Answer:
        assert self._prepare is not None, "this peer has nothing to prepare"
        self._prepare(request)
        return {}

    def load(self, request: Answer) -> Answer:
        self._sets = json.loads(Path(request["texts"]).read_text(encoding="utf-8"))
        start = time.perf_counter()
        self._peer = self._make(request["options"])
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "settings": self._peer.settings, "packages": installed()}

    def tune(self, request: Answer) -> Answer:
        peer, texts = self._loaded(), self._sets[request["set"]][: request["texts"]]
        seconds: dict[int, float] = {}
        peer.encode(texts, request["batches"][0])  # warm: buffers of the largest shape, lazy parts
        for batch in request["batches"]:
            start = time.perf_counter()
            peer.encode(texts, batch)
            seconds[batch] = time.perf_counter() - start
        self._batch[request["set"]] = best = min(seconds, key=lambda batch: seconds[batch])
        return {"batch": best, "texts": len(texts), "seconds": seconds}

    def encode(self, request: Answer) -> Answer:
        import numpy as np

        peer, texts = self._loaded(), self._sets[request["set"]]
        gc.collect()
        start = time.perf_counter()
        vectors = peer.encode(texts, self._batch.get(request["set"]))
        seconds = time.perf_counter() - start
        assert vectors.shape[0] == len(texts), f"{len(texts)} texts gave {vectors.shape[0]} vectors"
        assert vectors.dtype == np.float32, f"vectors are {vectors.dtype}, not float32"
        if request.get("save"):
            np.save(request["save"], vectors)
        return {"seconds": seconds, "peak_mb": memory_mb("VmHWM")}

    def latency(self, request: Answer) -> Answer:
        peer, texts = self._loaded(), self._sets[request["set"]]
        for text in texts[:10]:
            peer.encode([text], 1)
        milliseconds = []
        for text in texts:
            start = time.perf_counter()
            peer.encode([text], 1)
            milliseconds.append((time.perf_counter() - start) * 1e3)
        return {"milliseconds": milliseconds}

    def _loaded(self) -> Peer:
        assert self._peer is not None, "load comes first"
        return self._peer


def answer_requests(handle: Callable[[str, Answer], Answer]) -> None:
    """Read requests until the runner closes the pipe. A failure is answered too."""
    die_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of libraries goes to the log and cannot break the protocol
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"ok": True, **handle(request["do"], request)}
        except Exception as error:  # the runner reports it as this peer's failure
            traceback.print_exc()
            reply = {"ok": False, "error": f"{type(error).__name__}: {str(error).strip()[:500]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def serve(make: Callable[[Answer], Peer], prepare: Callable[[Answer], None] | None = None) -> None:
    """Run as a worker for the peer that `make` returns."""
    worker = Worker(make, prepare)
    verbs = {"prepare", "load", "tune", "encode", "latency"}

    def handle(verb: str, request: Answer) -> Answer:
        assert verb in verbs, f"unknown request {verb!r}"
        reply: Answer = getattr(worker, verb)(request)
        return reply

    answer_requests(handle)
