"""One run of the benchmark: start all workers, then let them take turns."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import starts
from environments import Environments, InstallError, installed_mb
from flops import read_shape, total_flop
from machine import processor_flags
from quality import agreement, looks_wrong, sts_spearman
from systems import BASELINE, PREPARATIONS, System
from texts import LONG, MANY, SHORT, Texts, read_texts
from workers import Worker, WorkerError, closing_all, say, surroundings

HERE = Path(__file__).parent
MAX_LENGTH = 256
QUICK = {SHORT: 60, MANY: 100, LONG: 8, "query": 20, "calibration": 40}


@dataclass(frozen=True)
class Settings:
    model: str
    data: Path
    systems: list[System]
    sets: list[str]
    parts: list[str]
    rounds: int
    end: float
    """Time (monotonic clock) after which the larger sets get no further round."""
    threads: int
    documents: int
    environments: Environments
    work: Path
    """Exports, logs and vectors; may be deleted at any time."""
    quick: bool
    million: int | None


class Run:
    """Holds the workers and the results while they grow."""

    def __init__(self, settings: Settings) -> None:
        self._s = settings
        self._folder = find_model(settings.model)
        self._workers: dict[str, Worker] = {}
        self._limits: dict[str, Worker] = {}
        self._results: dict[str, Any] = {"systems": {}, "sgemm": {}, "start": {}, "gemel": {}, "texts": {}}
        self._prepared: dict[str, Path] = {}
        self._unprepared: dict[str, Exception] = {}
        shutil.rmtree(settings.work / "vectors", ignore_errors=True)  # of an earlier run
        (settings.work / "vectors").mkdir(parents=True)

    def measure(self) -> dict[str, Any]:
        """The results, without machine and date."""
        self._texts = self._read_texts()
        with closing_all(self._workers), closing_all(self._limits):
            self._start_workers()
            if "encode" in self._s.parts:
                self._start_limits()
                self._tune()
            if "latency" in self._s.parts:
                self._latency()
            if "start" in self._s.parts:
                self._starts()
            if "encode" in self._s.parts:
                self._rounds()
                self._compare()
        if "size" in self._s.parts and not self._s.quick:
            self._size()
        if self._s.million:
            self._million(self._s.million)
        return self._results

    # texts -------------------------------------------------------------------------------------------

    def _read_texts(self) -> Texts:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_LENGTH)

        def tokens(block: list[str]) -> list[int]:
            return [len(encoding.ids) for encoding in tokenizer.encode_batch(block)]

        texts = read_texts(self._s.data, tokens, MAX_LENGTH, self._s.documents)
        say(f"texts: {texts.source}")
        sets = {name: found[: QUICK[name]] if self._s.quick else found for name, found in texts.sets.items()}
        shape = read_shape(self._folder)
        for name in self._s.sets:
            lengths = dict(zip(sets[name], tokens(sets[name]), strict=True))
            self._results["texts"][name] = {
                "texts": len(sets[name]),
                "distinct": len(lengths),
                "tokens": sum(lengths[text] for text in sets[name]),
                "gflop": total_flop(shape, (lengths[text] for text in sets[name])) / 1e9,
                "gflop_distinct": total_flop(shape, lengths.values()) / 1e9,
                "rounds": 0,
            }
        self._results |= {"source": texts.source, "max_length": MAX_LENGTH, "shape": vars(shape)}
        self._file = self._s.work / "texts.json"
        self._file.write_text(json.dumps(sets, ensure_ascii=False), encoding="utf-8")
        return Texts(sets, texts.gold, texts.source)

    # workers -----------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        for system in self._s.systems:
            entry = {
                "title": system.title,
                "role": system.role,
                "precision": system.precision,
                "failed": None,
            }
            self._results["systems"][system.name] = entry
            start = time.monotonic()
            try:
                loaded = self._load(system)
            except (InstallError, WorkerError) as error:
                self._fail(system.name, error)
                continue
            entry |= {"environment": system.environment, "load_seconds": loaded["seconds"], "batch": {}}
            entry |= {"settings": loaded["settings"], "packages": loaded["packages"]}
            say(f"{system.name}: loaded in {time.monotonic() - start:.1f} s")
            self._drop_twin(system)

    def _load(self, system: System) -> dict[str, Any]:
        prepared = self._prepare(system.prepared) if system.prepared else None
        worker = self._worker(system.name, system.environment, system.script)
        self._workers[system.name] = worker
        options = {
            "model": str(self._folder),
            "prepared": str(prepared) if prepared else None,
            "precision": system.precision,
            "threads": self._s.threads,
            "max_length": MAX_LENGTH,
            "dim": self._results["shape"]["width"],
            **system.options,
        }
        return worker.ask("load", texts=str(self._file), options=options)

    def _worker(self, name: str, environment: str | None, script: str) -> Worker:
        python = self._s.environments.python(environment) if environment else Path(sys.executable)
        variables = surroundings(self._s.threads, ours=environment is None)
        return Worker(name, python, script, variables, self._s.work / f"{name}.log")

    def _prepare(self, what: str) -> Path:
        """The folder of an export. Several systems share one, so its failure is remembered too."""
        if what in self._unprepared:
            raise self._unprepared[what]
        if what not in self._prepared:
            try:
                self._prepared[what] = self._export(what)
            except (InstallError, WorkerError) as error:
                self._unprepared[what] = error
                raise
        return self._prepared[what]

    def _export(self, what: str) -> Path:
        """Made when it is missing, under another name until it is complete."""
        digest = hashlib.sha256((self._folder / "model.safetensors").read_bytes()).hexdigest()[:12]
        folder = self._s.work / f"{what}-{digest}"
        if not folder.exists():
            say(f"exporting {what} ...")
            half = folder.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            environment, script = PREPARATIONS[what]
            worker = self._worker(f"prepare-{what}", environment, script)
            with closing_all({what: worker}):
                worker.ask(
                    "prepare", what=what, model=str(self._folder), into=str(half), texts=str(self._file),
                    max_length=MAX_LENGTH, flags=processor_flags(),
                )  # fmt: skip
            half.rename(folder)
        return folder

    def _fail(self, name: str, error: Exception) -> None:
        say(f"{name}: FAILED, {error}")
        self._results["systems"][name]["failed"] = str(error)
        if name in self._workers:
            self._workers.pop(name).close()

    def _drop_twin(self, system: System) -> None:
        """An engine asked for by name is not measured again when the default already is that engine."""
        first = "gemel" if system.precision == "float32" else "gemel-int8"
        if system.role != "ours" or system.name == first or first not in self._workers:
            return
        entries = self._results["systems"]
        if entries[first]["settings"]["engine"] == entries[system.name]["settings"]["engine"]:
            entries[system.name]["same_as"] = first
            self._workers.pop(system.name).close()

    def _start_limits(self) -> None:
        for library, environment in (("numpy", None), ("torch", "st")):
            if environment and not any(system.environment == environment for system in self._s.systems):
                continue
            try:
                worker = self._worker(f"sgemm-{library}", environment, "matmul.py")
                self._limits[library] = worker
                worker.ask("load", library=library, threads=self._s.threads)
            except (InstallError, WorkerError) as error:
                say(f"sgemm by {library}: FAILED, {error}")
                self._results["sgemm"][library] = {"failed": str(error)}
                if library in self._limits:
                    self._limits.pop(library).close()
            else:
                self._results["sgemm"][library] = {"gflops": 0.0, "rounds": []}

    # measurements ------------------------------------------------------------------------------------

    def _running(self) -> list[System]:
        return [system for system in self._s.systems if system.name in self._workers]

    def _tune(self) -> None:
        """Batch size per system and set, from a few texts; also the warm-up."""
        for system in self._running():
            for name in self._sets_of(system):
                # 32 documents of 256 tokens are 8,192 tokens already: here fewer may be better, not more
                batches = (8, 32) if name == LONG and system.batches else system.batches
                few = 32 if name == LONG else 384
                try:
                    if batches:
                        found = self._workers[system.name].ask("tune", set=name, texts=few, batches=batches)
                    else:
                        found = self._workers[system.name].ask("tune", set=name, texts=few, batches=[None])
                    self._results["systems"][system.name]["batch"][name] = found
                except WorkerError as error:
                    self._fail(system.name, error)
                    break
        say("batch sizes chosen")

    def _sets_of(self, system: System) -> list[str]:
        return [name for name in self._s.sets if name in system.sets]

    def _latency(self) -> None:
        for system in self._running():
            if not system.latency:
                continue
            try:
                found = self._workers[system.name].ask("latency", set="query")["milliseconds"]
            except WorkerError as error:
                self._fail(system.name, error)
                continue
            cuts = statistics.quantiles(found, n=20)
            entry = {"p50": statistics.median(found), "p95": cuts[18], "calls": len(found)}
            self._results["systems"][system.name]["latency_ms"] = entry
            say(f"{system.name}: one query {entry['p50']:.2f} ms")

    def _starts(self) -> None:
        times = 1 if self._s.quick else 5
        alive = {system.name: system for system in self._running() if system.name in starts.PROGRAMS}
        found: dict[str, list[starts.Start]] = {name: [] for name in alive}
        for turn in range(times + 1):  # the first only warms the disk
            for name, system in list(alive.items()):
                environment = system.environment
                python = self._s.environments.python(environment) if environment else Path(sys.executable)
                program = starts.PROGRAMS[name].format(
                    model=str(self._folder), prepared=str(self._prepared.get("onnx", ""))
                )
                try:
                    one = starts.first_vector(python, program, self._s.threads, ours=environment is None)
                except (starts.StartError, subprocess.TimeoutExpired) as error:
                    self._results["start"][name] = {"failed": str(error)}
                    say(f"start of {name}: FAILED, {error}")
                    del alive[name]
                    continue
                if turn:
                    found[name].append(one)
        for name in alive:
            best = min(found[name], key=lambda one: one.seconds)
            self._results["start"][name] = {
                "best_seconds": best.seconds,
                "peak_mb": min(one.peak_mb for one in found[name]),
                "seconds": [one.seconds for one in found[name]],
            }
            say(f"{name}: first vector after {best.seconds:.2f} s")
        self._own_starts(times)

    def _own_starts(self, times: int) -> None:
        if "gemel" not in self._workers:
            return
        own, threads = self._results["gemel"], self._s.threads
        try:
            own["import_seconds"] = min(starts.import_seconds(threads) for _ in range(times))
            own["help_seconds"] = min(starts.help_seconds(threads) for _ in range(times))
            own["help_imports"] = starts.help_imports(threads)
        except (starts.StartError, subprocess.TimeoutExpired) as error:
            own["failed"] = str(error)
            say(f"import gemel, gemel --help: FAILED, {error}")

    def _rounds(self) -> None:
        """All sets once, then the small set to the end, then the others in turn while there is time."""
        spent: dict[str, float] = {}

        def one(name: str, number: int) -> None:
            start = time.monotonic()
            self._round(name, number)
            spent[name] = time.monotonic() - start

        for name in self._s.sets:
            one(name, 1)
        first, *others = self._s.sets
        for number in range(2, self._s.rounds + 1):
            one(first, number)
        for number in range(2, self._s.rounds + 1):
            for name in others:
                if time.monotonic() + spent[name] <= self._s.end:
                    one(name, number)

    def _round(self, name: str, number: int) -> None:
        """Every system once, one after the other, and the matmul limit among them."""
        counted = self._results["texts"][name]
        counted["rounds"] += 1
        for library, worker in self._limits.items():
            self._limit(library, worker)
        for system in self._running():
            if name not in system.sets:
                continue
            file = str(self._vectors(system.name, name)) if number == 1 else None
            try:
                found = self._workers[system.name].ask("encode", set=name, save=file)
            except WorkerError as error:
                self._fail(system.name, error)
                continue
            entry = self._results["systems"][system.name]
            entry["peak_mb"] = found["peak_mb"]
            rates = entry.setdefault("rates", {}).setdefault(name, {"seconds": []})
            rates["seconds"].append(found["seconds"])
            rates["texts_per_second"] = counted["texts"] / min(rates["seconds"])
            say(f"{name} {number}  {system.name:24} {counted['texts'] / found['seconds']:8.1f} texts/s")

    def _limit(self, library: str, worker: Worker) -> None:
        limit = self._results["sgemm"][library]
        gflops = worker.ask("matmul", library=library, calls=2 if self._s.quick else 5)["gflops"]
        limit["rounds"].append(gflops)
        limit["gflops"] = max(limit["gflops"], *gflops.values())

    def _vectors(self, system: str, name: str) -> Path:
        return self._s.work / "vectors" / f"{system}.{name}.npy"

    def _compare(self) -> None:
        """Vectors of every system against the baseline's, or ours where that is absent."""
        running = [system.name for system in self._running()]
        if not running:
            return
        reference = next((name for name in (BASELINE, "gemel") if name in running), running[0])
        self._results["reference"] = reference
        for system in self._running():
            entry = self._results["systems"][system.name]
            for name in self._sets_of(system):
                vectors = np.load(self._vectors(system.name, name))
                if name == SHORT and len(self._texts.gold) * 2 == len(vectors):
                    entry["spearman"] = sts_spearman(vectors, self._texts.gold)
                if self._vectors(reference, name).exists():
                    cosine = agreement(vectors, np.load(self._vectors(reference, name)))
                    entry.setdefault("cosine", {})[name] = cosine
                    entry["wrong"] = entry.get("wrong", False) or looks_wrong(system.precision, cosine)

    # the rest ----------------------------------------------------------------------------------------

    def _size(self) -> None:
        try:
            size = installed_mb(self._s.work, HERE.parent)
        except (InstallError, StopIteration) as error:
            self._results["gemel"]["size_failed"] = str(error)
            say(f"installed size: FAILED, {error}")
        else:
            self._results["gemel"]["installed_mb"] = size
            say(f"installed size: {size:.0f} MB")

    def _million(self, count: int) -> None:
        out = self._s.work / "memory.json"
        command = [sys.executable, str(HERE / "memory.py"), "--model", self._s.model, "--count", str(count)]
        command += ["--threads", str(self._s.threads), "--out", str(out)]
        if subprocess.run(command, check=False).returncode:
            self._results["million"] = {"failed": "benchmarks/memory.py failed"}
        else:
            self._results["million"] = json.loads(out.read_text(encoding="utf-8"))


def find_model(model: str) -> Path:
    """A folder as given, or the folder in gemel's cache of a model known by name."""
    if (Path(model) / "config.json").exists():
        return Path(model).resolve()
    from gemel.checkpoint import sources

    found = sources.find_model(model)
    return Path(getattr(found, "folder", found))
