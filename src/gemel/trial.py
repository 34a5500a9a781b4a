"""A fair comparison on this machine: every engine, precision and batch size in turn, same texts, same threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.sources import find_model
from gemel.encoder.architectures import is_known, read_network
from gemel.encoder.engines.native import why_not
from gemel.encoder.lanes import usable_cores
from gemel.encoder.tuning import Choice, processor, remember
from gemel.errors import InputError
from gemel.model import Model
from gemel.options import EngineName, Precision
from gemel.types import AnyVectors

BATCH_TOKENS = (128, 256, 512, 1024)
_ENGINES: tuple[EngineName, ...] = ("native", "onnxruntime")
_PRECISIONS: tuple[Precision, ...] = ("float32", "int8")


@dataclass(frozen=True)
class Trial:
    """One combination and the best that it reached."""

    engine: str
    kernel: str
    """The engine, with the processor level of its kernel where it has one."""
    precision: Precision
    batch_tokens: int
    threads: int
    texts_per_second: float
    mean_tokens: float
    """Tokens of a text that counted, on average."""
    cosine: float
    """The lowest cosine between a vector and that of the first float32 combination."""
    processor: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trials:
    """All combinations that could run, and why the others could not."""

    ran: tuple[Trial, ...]
    skipped: tuple[str, ...]

    def winners(self) -> list[Trial]:
        """The fastest of each precision."""
        best: dict[str, Trial] = {}
        for trial in self.ran:
            if trial.precision not in best or trial.texts_per_second > best[trial.precision].texts_per_second:
                best[trial.precision] = trial
        return list(best.values())


def run_trials(
    model: str | Path, texts: Sequence[str], *, threads: int | None = None, rounds: int = 3
) -> Trials:
    """Measures `model` on `texts`. Combinations take turns, so that a noisy moment hits all of them alike."""
    if not texts:
        raise InputError("there is no text to measure with. Give a file with at least one")
    checkpoint = read_checkpoint(find_model(model))
    if checkpoint.kind == "static" or not is_known(checkpoint.config):
        raise InputError(f"{checkpoint.name} has one engine only, so there is nothing to choose")
    network = read_network(checkpoint.config, checkpoint.weights)
    models: list[Model] = []
    skipped: list[str] = []
    for precision in _PRECISIONS:
        for engine in _ENGINES:
            reason = why_not(network, precision) if engine == "native" else None
            if reason:
                skipped.append(f"{engine}, {precision}: {reason}")
            else:
                models.append(Model(checkpoint, precision=precision, engine=engine))
    lanes = threads or usable_cores()
    tokens = float(models[0].encode_report(texts, threads=lanes, on_long="truncate").kept.mean())
    times: dict[tuple[int, int], float] = {}
    vectors: dict[int, AnyVectors] = {}
    for _ in range(rounds + 1):  # the first round warms up and counts too: only the best is kept
        for number, candidate in enumerate(models):
            for size in BATCH_TOKENS:
                candidate.engine.batch_tokens = size
                started = perf_counter()
                vectors[number] = candidate.encode(texts, threads=lanes, normalize=True, on_long="truncate")
                seconds = perf_counter() - started
                times[number, size] = min(seconds, times.get((number, size), seconds))
    return Trials(
        ran=tuple(
            Trial(
                engine=models[number].engine_name,
                kernel=models[number].kernel,
                precision=models[number].precision,
                batch_tokens=size,
                threads=lanes,
                texts_per_second=len(texts) / seconds,
                mean_tokens=tokens,
                cosine=float(np.einsum("ij,ij->i", vectors[number], vectors[0]).min()),
                processor=processor(),
            )
            for (number, size), seconds in times.items()
        ),
        skipped=tuple(skipped),
    )


def keep_winners(model: str | Path, trials: Trials) -> list[Trial]:
    """Remembers the winner of each precision for networks of this shape on this processor."""
    checkpoint = read_checkpoint(find_model(model))
    network = read_network(checkpoint.config, checkpoint.weights)
    for trial in trials.winners():
        choice = Choice(
            trial.engine, trial.batch_tokens, trial.threads, trial.texts_per_second, trial.mean_tokens
        )
        remember(network, trial.precision, choice)
    return trials.winners()
