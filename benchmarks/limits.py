"""The float32 limit of the machine in this run: matrix products by numpy and by torch, among the rounds."""

from __future__ import annotations

from typing import Any

from crew import Crew, without_paths
from environments import InstallError
from workers import Worker, WorkerError, say

LIBRARIES = {"numpy": None, "torch": "st"}  # name -> environment; None is the runner's own


class Limits:
    """`report` is the "sgemm" part of the results."""

    def __init__(self, crew: Crew, threads: int, calls: int) -> None:
        self.report: dict[str, dict[str, Any]] = {}
        self._crew = crew
        self._threads = threads
        self._calls = calls
        self._workers: dict[str, Worker] = {}

    def start(self, environments: set[str | None]) -> None:
        """One worker per library whose environment takes part anyway."""
        for library, environment in LIBRARIES.items():
            if environment and environment not in environments:
                continue
            self.report[library] = {"gflops": 0.0, "rounds": []}
            try:
                self._workers[library] = self._crew.worker(f"sgemm-{library}", environment, "matmul.py")
                self._workers[library].ask("load", library=library, threads=self._threads)
            except (InstallError, WorkerError) as error:
                self._fail(library, error)

    def measure(self) -> None:
        for library, worker in list(self._workers.items()):
            try:
                result = worker.ask("matmul", library=library, calls=self._calls)["gflops"]
            except WorkerError as error:
                self._fail(library, error)
                continue
            self.report[library]["rounds"].append(result)
            self.report[library]["gflops"] = max(self.report[library]["gflops"], *result.values())

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def _fail(self, library: str, error: Exception) -> None:
        say(f"sgemm by {library}: FAILED, {error}")
        self.report[library] = {"failed": without_paths(str(error))}
        if library in self._workers:
            self._workers.pop(library).close()
