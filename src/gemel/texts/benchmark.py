"""Which engine is fastest on this machine: every engine, precision and batch size on the same texts and threads."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import architecture_of
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model
from gemel.encoder.engines.engine import arithmetic, has_onnxruntime
from gemel.encoder.engines.native import why_not
from gemel.encoder.weights import read_network
from gemel.errors import InputError
from gemel.files.machine import CoreLimits, core_limits
from gemel.model import Model
from gemel.options import EngineName, Precision
from gemel.terminal import Progress
from gemel.types import AnyVectors

BATCH_TOKENS = (128, 256, 512, 1024)

_ENGINES: tuple[EngineName, ...] = ("native", "onnxruntime")

_PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_NEIGHBORS = 2000  # texts whose nearest one is compared: all pairs of them fit into memory


@dataclass(frozen=True)
class EngineAgreement:
    """How close the vectors are to those of the first float32 engine."""

    difference: float
    """The largest difference of two numbers; 0: the same bits."""
    cosine: float
    """The lowest cosine between a vector and its counterpart."""
    same_nearest: float
    """Share of the texts whose nearest other text is the same one."""


@dataclass(frozen=True)
class EngineResult:
    """One combination and its best speed."""

    engine: str
    kernel: str
    """The engine, with the processor level of its kernel if it has one."""
    precision: Precision
    batch_tokens: int
    threads: int
    texts_per_second: float
    mean_tokens: float
    """Tokens that were encoded per text."""
    agreement: EngineAgreement
    processor: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BenchmarkResult:
    """All combinations that could run, and why the others could not."""

    ran: tuple[EngineResult, ...]
    skipped: tuple[str, ...]
    cores: CoreLimits
    """Of the process that measured: more threads than its quota are slowed down."""

    def winners(self) -> list[EngineResult]:
        """The fastest of each precision."""
        best: dict[str, EngineResult] = {}
        for result in self.ran:
            rival = best.setdefault(result.precision, result)
            best[result.precision] = max(rival, result, key=lambda each: each.texts_per_second)
        return list(best.values())


def run_benchmark(
    model: str | Path,
    texts: Sequence[str],
    *,
    threads: int | None = None,
    repeats: int = 3,
    progress: bool = False,
) -> BenchmarkResult:
    """The speed of every combination for `model` on `texts`: the best of `repeats` rounds after a warm-up.

    A round measures all combinations, every other one backwards, so that noise and heat affect all of them alike.
    """
    if not texts:
        raise InputError("there is no text to measure with. Give a file with at least one")
    models, skipped = _candidates(read_checkpoint(find_model(model)))
    cores = core_limits()
    lanes = threads or cores.used
    tokens = float(models[0].encode_report(texts, threads=lanes, on_long="truncate").kept.mean())
    shown = Progress(len(models) * len(BATCH_TOKENS) * (repeats + 1), "turns", shown=progress)
    times, vectors = _measure(models, texts, lanes, repeats + 1, shown)
    near = [agreement(each, vectors[0]) for each in vectors]
    ran = (
        EngineResult(
            engine=models[number].engine_name,
            kernel=models[number].kernel,
            precision=models[number].precision,
            batch_tokens=size,
            threads=lanes,
            texts_per_second=len(texts) / seconds,
            mean_tokens=tokens,
            agreement=near[number],
            processor=processor(),
        )
        for (number, size), seconds in times.items()
    )
    return BenchmarkResult(tuple(ran), skipped, cores)


def _measure(
    models: Sequence[Model], texts: Sequence[str], lanes: int, rounds: int, shown: Progress
) -> tuple[dict[tuple[int, int], float], list[AnyVectors]]:
    """The best seconds of each model and batch size, and the vectors of each model."""
    turns = [(number, size) for number in range(len(models)) for size in BATCH_TOKENS]
    times = dict.fromkeys(turns, float("inf"))
    vectors: dict[int, AnyVectors] = {}
    for counted in range(rounds):
        for number, size in turns if counted % 2 == 0 else turns[::-1]:
            models[number].engine.batch_tokens = size
            started = perf_counter()
            vectors[number] = models[number].encode(texts, threads=lanes, normalize=True, on_long="truncate")
            times[number, size] = min(perf_counter() - started, times[number, size])
            shown.add(1)
    shown.close()
    return times, [vectors[number] for number in range(len(models))]


def agreement(vectors: AnyVectors, reference: AnyVectors) -> EngineAgreement:
    """The agreement of vectors of length 1 with those of a reference."""
    return EngineAgreement(
        difference=float(np.abs(vectors - reference).max()),
        cosine=float(np.einsum("ij,ij->i", vectors, reference).min()),
        same_nearest=float((_nearest(vectors) == _nearest(reference)).mean()),
    )


def _nearest(vectors: AnyVectors) -> NDArray[np.intp]:
    few = vectors[:_NEIGHBORS].astype(np.float32)
    scores = few @ few.T
    np.fill_diagonal(scores, -np.inf)
    nearest: NDArray[np.intp] = scores.argmax(axis=1)
    return nearest


def _candidates(checkpoint: Checkpoint) -> tuple[list[Model], tuple[str, ...]]:
    """A model for each engine and precision that can run it, float32 first, and why the others cannot."""
    if checkpoint.kind == "static" or architecture_of(checkpoint.config) is None:
        raise InputError(f"{checkpoint.name} has one engine only, so there is nothing to choose")
    network = read_network(checkpoint.config, checkpoint.weights)
    models: list[Model] = []
    skipped: list[str] = []
    for precision in _PRECISIONS:
        for engine in _ENGINES:
            reason = why_not(network) if engine == "native" else None
            if engine == "onnxruntime" and not has_onnxruntime():
                reason = "not installed: pip install 'gemel[onnxruntime]'"
            if reason is None and arithmetic(precision, engine) != precision:
                reason = f"this engine computes it in {arithmetic(precision, engine)} here"
            if reason:
                skipped.append(f"{engine}, {precision}: {reason}")
            else:
                models.append(Model(checkpoint, precision=precision, engine=engine))
    return models or [Model(checkpoint, precision="float32", engine="numpy")], tuple(skipped)


def processor() -> str:
    """The name of the processor, if the system says it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
