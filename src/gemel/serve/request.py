"""One request on its way through the batcher: the rows it has, and the jobs it waits for."""

from __future__ import annotations

import asyncio

import numpy as np

from gemel.errors import InputError
from gemel.serve.cache import Known
from gemel.serve.limits import EncodeFailed
from gemel.serve.port import Embedded
from gemel.serve.waiting import Job


class Request:
    """Used by the answering thread only."""

    __slots__ = ("_jobs", "future", "kept", "missing", "tokens", "vectors")

    def __init__(self, rows: int, dim: int, future: asyncio.Future[None]) -> None:
        self.vectors = np.empty((rows, dim), dtype=np.float32)
        self.tokens = np.zeros(rows, dtype=np.int64)
        self.kept = np.zeros(rows, dtype=np.int64)
        self.missing = rows
        self.future = future
        self._jobs: list[Job] = []

    def wait_for(self, job: Job, row: int) -> None:
        job.waiters.append((self, row))
        self._jobs.append(job)

    def put(self, row: int, known: Known) -> None:
        self.vectors[row], self.tokens[row], self.kept[row] = known.vector, known.tokens, known.kept
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(None)

    def fail_row(self, row: int, error: Exception) -> None:
        """An error of ours keeps its words; of any other nothing leaves the server."""
        if isinstance(error, InputError):
            self.fail(error)
        else:
            self.fail(
                EncodeFailed(
                    f"texts[{row}] could not be encoded; the other texts of the server are not affected"
                )
            )

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # seen, also when nobody waits yet

    def leave(self) -> list[Job]:
        """Wait for nothing any more; returns the jobs that now nobody waits for."""
        left = []
        for job in self._jobs:
            job.waiters = [(request, row) for request, row in job.waiters if request is not self]
            if not job.waiters:
                left.append(job)
        self._jobs = []
        return left

    def embedded(self) -> Embedded:
        return Embedded(self.vectors, self.tokens, self.kept)
