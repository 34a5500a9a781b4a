"""One run of the benchmark: start all workers, then run them in turns."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crew import MAX_LENGTH, Crew, without_paths
from environments import Environments, InstallError, installed_mb
from flops import read_shape, total_flop
from limits import Limits
from quality import agreement, looks_wrong, sts_spearman
from starts import measure_own, measure_starts
from systems import BASELINE, System
from texts import LONG, MANY, SHORT, Texts, read_texts
from workers import say

HERE = Path(__file__).parent
QUICK = {SHORT: 60, MANY: 100, LONG: 8, "query": 20}


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
    texts: int | None = None
    """At most so many sentences of each set; None: all."""


class Run:
    """Collects the results. The parts of `measure` are its methods, in order."""

    def __init__(self, settings: Settings) -> None:
        self._s = settings
        self._folder = find_model(settings.model)
        shutil.rmtree(settings.work / "vectors", ignore_errors=True)  # of an earlier run
        (settings.work / "vectors").mkdir(parents=True)
        self._results: dict[str, Any] = {"texts": {}, "start": {}, "gemel": {}}
        self._texts = self._read_texts()
        file = settings.work / "texts.json"
        file.write_text(json.dumps(self._texts.sets, ensure_ascii=False), encoding="utf-8")
        self._crew = Crew(self._folder, file, settings.environments, settings.work, settings.threads)
        self._limits = Limits(self._crew, settings.threads, calls=2 if settings.quick else 5)

    def measure(self) -> dict[str, Any]:
        """The results, without machine and date."""
        parts = self._s.parts
        with closing(self._crew), closing(self._limits):
            for system in self._s.systems:
                self._crew.load(system, dim=self._results["shape"]["width"])
            if "encode" in parts:
                self._limits.start({system.environment for system in self._s.systems})
                self._tune()
            if "latency" in parts:
                self._latency()
            if "start" in parts:
                self._starts()
            if "size" in parts and not self._s.quick:
                self._size()
            if "encode" in parts:
                self._rounds()
                self._compare()
        if self._s.million:
            self._million(self._s.million)
        grown = {"systems": self._crew.report, "sgemm": self._limits.report, "packages": self._crew.packages}
        return self._results | grown

    def _read_texts(self) -> Texts:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_LENGTH)

        def tokens(block: list[str]) -> list[int]:
            return [len(encoding.ids) for encoding in tokenizer.encode_batch(block)]

        texts = read_texts(self._s.data, tokens, MAX_LENGTH, self._s.documents)
        say(f"texts: {texts.source}")
        sets = {
            name: result[: QUICK.get(name) if self._s.quick else None if name == LONG else self._s.texts]
            for name, result in texts.sets.items()
        }
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
        return Texts(sets, texts.gold, texts.source)

    def _sets_of(self, system: System) -> list[str]:
        return [name for name in self._s.sets if name in system.sets]

    def _tune(self) -> None:
        """Batch size per system and set, from a few texts; a warm-up for gemel, which has none."""
        for system in self._crew.running():
            for name in self._sets_of(system):
                # 32 documents of 256 tokens are 8,192 tokens already: here fewer may be better, not more
                batches = (8, 32) if name == LONG and system.batches else system.batches
                result = self._crew.ask(
                    system.name,
                    "tune",
                    set=name,
                    texts=32 if name == LONG else 384,
                    batches=batches or [None],
                )
                if result is None:
                    break
                self._crew.report[system.name]["batch"][name] = result
        say("batch sizes chosen")

    def _latency(self) -> None:
        for system in self._crew.running():
            answer = self._crew.ask(system.name, "latency", set="query") if system.latency else None
            if answer is None:
                continue
            result = answer["milliseconds"]
            p95 = statistics.quantiles(result, n=20)[18]
            entry = {"p50": statistics.median(result), "p95": p95, "calls": len(result)}
            self._crew.report[system.name]["latency_ms"] = entry
            say(f"{system.name}: one query {entry['p50']:.2f} ms")

    def _starts(self) -> None:
        times = 1 if self._s.quick else 5
        pythons = {s.name: self._crew.python(s.environment) for s in self._crew.running()}
        folders = {"model": str(self._folder), "prepared": str(self._crew.exports.get("onnx", ""))}
        self._results["start"] = measure_starts(pythons, folders, self._s.threads, times)
        if "gemel" in pythons:
            self._results["gemel"] |= measure_own(self._s.threads, times)

    def _rounds(self) -> None:
        """All sets once, then the first set to the end, then the others in turn while there is time."""
        spent: dict[str, float] = {}

        def one(name: str) -> None:
            start = time.monotonic()
            self._round(name)
            spent[name] = time.monotonic() - start

        for name in self._s.sets:
            one(name)
        first, *others = self._s.sets
        for _ in range(1, self._s.rounds):
            one(first)
        for _ in range(1, self._s.rounds):
            for name in others:
                if time.monotonic() + spent[name] <= self._s.end:
                    one(name)

    def _round(self, name: str) -> None:
        """Every system once, one after the other, after measuring the current matmul limit."""
        counted = self._results["texts"][name]
        counted["rounds"] += 1
        self._limits.measure()
        for system in self._crew.running():
            if name not in system.sets:
                continue
            save = str(self._vectors(system.name, name)) if counted["rounds"] == 1 else None
            result = self._crew.ask(system.name, "encode", set=name, save=save)
            if result is None:
                continue
            entry = self._crew.report[system.name]
            entry["peak_mb"] = result["peak_mb"]
            rates = entry.setdefault("rates", {}).setdefault(name, {"seconds": []})
            rates["seconds"].append(result["seconds"])
            rates["texts_per_second"] = counted["texts"] / min(rates["seconds"])
            now = counted["texts"] / result["seconds"]
            say(f"{name} {counted['rounds']}  {system.name:24} {now:8.1f} texts/s")

    def _vectors(self, system: str, name: str) -> Path:
        return self._s.work / "vectors" / f"{system}.{name}.npy"

    def _compare(self) -> None:
        """Vectors of every system against the baseline's, or ours where that is absent."""
        running = [system.name for system in self._crew.running()]
        if not running:
            return
        reference = next((name for name in (BASELINE, "gemel") if name in running), running[0])
        self._results["reference"] = reference
        for system in self._crew.running():
            entry = self._crew.report[system.name]
            for name in self._sets_of(system):
                vectors = np.load(self._vectors(system.name, name))
                if name == SHORT and len(self._texts.gold) * 2 == len(vectors):
                    entry["spearman"] = sts_spearman(vectors, self._texts.gold)
                if self._vectors(reference, name).exists():
                    cosine = agreement(vectors, np.load(self._vectors(reference, name)))
                    entry.setdefault("cosine", {})[name] = cosine
                    entry["wrong"] = entry.get("wrong", False) or looks_wrong(system.precision, cosine)

    def _size(self) -> None:
        try:
            size = installed_mb(self._s.work, HERE.parent)
        except (InstallError, StopIteration) as error:
            self._results["gemel"]["size_failed"] = without_paths(str(error))
            say(f"installed size: FAILED, {error}")
        else:
            self._results["gemel"]["installed_mb"] = size
            say(f"installed size: {size:.0f} MB")

    def _million(self, count: int) -> None:
        out = self._s.work / "memory.json"
        command = [sys.executable, str(HERE / "memory.py"), "--model", self._s.model, "--count", str(count)]
        command += ["--threads", str(self._s.threads), "--out", str(out)]
        # its own summary goes to the log, standard output is for the table
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            self._results["million"] = {"failed": "benchmarks/memory.py failed"}
        else:
            self._results["million"] = json.loads(out.read_text(encoding="utf-8"))


def find_model(model: str) -> Path:
    """A folder as given, or the folder in gemel's cache of a model given by name."""
    if (Path(model) / "config.json").exists():
        return Path(model).resolve()
    from gemel.checkpoint import sources

    return sources.find_model(model)
