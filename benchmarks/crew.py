"""All systems of a run as loaded workers, with the exports they need. A failed one stays in the report."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from environments import Environments, InstallError
from machine import processor_flags
from systems import PREPARATIONS, System
from workers import Worker, WorkerError, say, surroundings

MAX_LENGTH = 256


def without_paths(text: str) -> str:
    """An error's text with the folders of this machine left out: the results are for everyone."""
    return re.sub(r"(?<![\w./:])/(?:[\w.@+-]+/)+", "…/", text)


class Crew:
    """Starts workers, sends requests and ends them. `report` is the "systems" part of the results and grows here."""

    def __init__(
        self, model: Path, texts: Path, environments: Environments, work: Path, threads: int
    ) -> None:
        self.report: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, dict[str, str]] = {}
        self.exports: dict[str, Path | Exception] = {}
        self._model = model
        self._texts = texts
        self._environments = environments
        self._work = work
        self._threads = threads
        self._systems: list[System] = []
        self._workers: dict[str, Worker] = {}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def running(self) -> list[System]:
        """Systems that loaded and have not failed since, in the order of their turns."""
        return [system for system in self._systems if system.name in self._workers]

    def ask(self, name: str, verb: str, **fields: Any) -> dict[str, Any] | None:
        """The worker's answer; None if it failed, which removes it from the run."""
        try:
            return self._workers[name].ask(verb, **fields)
        except WorkerError as error:
            self._fail(name, error)
            return None

    def python(self, environment: str | None) -> Path:
        return self._environments.python(environment) if environment else Path(sys.executable)

    def worker(self, name: str, environment: str | None, script: str) -> Worker:
        """A fresh process that the caller closes."""
        variables = surroundings(self._threads, ours=environment is None)
        return Worker(name, self.python(environment), script, variables, self._work / f"{name}.log")

    def load(self, system: System, dim: int) -> None:
        """Start the system's worker, after its environment and its export."""
        entry: dict[str, Any] = {"title": system.title, "role": system.role, "precision": system.precision}
        entry["failed"] = None
        self.report[system.name] = entry
        self._systems.append(system)
        start = time.monotonic()
        try:
            export = self._export(system.prepared) if system.prepared else None
            self._workers[system.name] = self.worker(system.name, system.environment, system.script)
            options = {
                "model": str(self._model),
                "prepared": str(export) if export else None,
                "precision": system.precision,
                "threads": self._threads,
                "max_length": MAX_LENGTH,
                "dim": dim,
                **system.options,
            }
            loaded = self._workers[system.name].ask("load", texts=str(self._texts), options=options)
        except (InstallError, WorkerError) as error:
            self._fail(system.name, error)
            return
        entry |= {"environment": system.environment, "load_seconds": loaded["seconds"], "batch": {}}
        entry["settings"] = loaded["settings"]
        self.packages[system.environment or "gemel"] = loaded["packages"]
        say(f"{system.name}: loaded in {time.monotonic() - start:.1f} s")
        self._drop_duplicate(system)

    def _export(self, what: str) -> Path:
        """The folder of an export. Several systems share one, so a failure is remembered too."""
        if what not in self.exports:
            try:
                self.exports[what] = self._make_export(what)
            except (InstallError, WorkerError) as error:
                self.exports[what] = error
        result = self.exports[what]
        if isinstance(result, Exception):
            raise result
        return result

    def _make_export(self, what: str) -> Path:
        """Made when it is missing, under another name until it is complete."""
        digest = hashlib.sha256((self._model / "model.safetensors").read_bytes()).hexdigest()[:12]
        folder = self._work / f"{what}-{digest}"
        if folder.exists():
            return folder
        say(f"exporting {what} ...")
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        environment, script = PREPARATIONS[what]
        worker = self.worker(f"prepare-{what}", environment, script)
        try:
            worker.ask(
                "prepare", what=what, model=str(self._model), into=str(half), texts=str(self._texts),
                max_length=MAX_LENGTH, flags=processor_flags(),
            )  # fmt: skip
        finally:
            worker.close()
        half.rename(folder)
        return folder

    def _fail(self, name: str, error: Exception) -> None:
        say(f"{name}: FAILED, {error}")
        self.report[name]["failed"] = without_paths(str(error))
        if name in self._workers:
            self._workers.pop(name).close()

    def _drop_duplicate(self, system: System) -> None:
        """An engine requested by name is not measured again if it is the default engine."""
        first = "gemel" if system.precision == "float32" else f"gemel-{system.precision}"
        if system.role != "ours" or system.name == first or first not in self._workers:
            return
        if self.report[first]["settings"]["kernel"] == self.report[system.name]["settings"]["kernel"]:
            self.report[system.name]["same_as"] = first
            self._workers.pop(system.name).close()
