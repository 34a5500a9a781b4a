"""A fair comparison on this machine: every engine, precision and batch size in turn, same texts, same threads.

What is kept of a comparison in the cache, who it is for, and how it is shown and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import architecture_of
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model, given_name
from gemel.encoder import tuning
from gemel.encoder.batches import usable_cores
from gemel.encoder.engines.native import why_not
from gemel.encoder.weights import read_network
from gemel.errors import InputError
from gemel.model import Model
from gemel.options import EngineName, Precision
from gemel.terminal import Progress
from gemel.types import AnyVectors

BATCH_TOKENS = (128, 256, 512, 1024)

_ENGINES: tuple[EngineName, ...] = ("native", "onnxruntime")

_PRECISIONS: tuple[Precision, ...] = ("float32", "int8")

_NEIGHBOURS = 2000  # texts whose nearest one is looked for: all pairs of them fit into memory


@dataclass(frozen=True)
class EngineAgreement:
    """How far vectors are those of the first float32 engine."""

    difference: float
    """The largest difference of two numbers; 0: the same bits."""
    cosine: float
    """The lowest cosine between a vector and its counterpart."""
    same_nearest: float
    """Share of the texts whose nearest other text is the same one."""


@dataclass(frozen=True)
class EngineResult:
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
    agreement: EngineAgreement
    processor: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BenchmarkResult:
    """All combinations that could run, and why the others could not."""

    ran: tuple[EngineResult, ...]
    skipped: tuple[str, ...]

    def winners(self) -> list[EngineResult]:
        """The fastest of each precision."""
        best: dict[str, EngineResult] = {}
        for trial in self.ran:
            if trial.precision not in best or trial.texts_per_second > best[trial.precision].texts_per_second:
                best[trial.precision] = trial
        return list(best.values())


def run_benchmark(
    model: str | Path,
    texts: Sequence[str],
    *,
    threads: int | None = None,
    repeats: int = 3,
    progress: bool = False,
) -> BenchmarkResult:
    """Measures `model` on `texts`; the best of `repeats` rounds counts, after one that warms up.

    In a round all combinations take their turn, every other round backwards, so that a noisy moment or a processor that
    grows hot hits all of them alike.
    """
    if not texts:
        raise InputError("there is no text to measure with. Give a file with at least one")
    models, skipped = _candidates(read_checkpoint(find_model(model)))
    lanes = threads or usable_cores()
    tokens = float(models[0].encode_report(texts, threads=lanes, on_long="truncate").kept.mean())
    shown = Progress(len(models) * len(BATCH_TOKENS) * (repeats + 1), "turns", shown=progress)
    times, vectors = _take_turns(models, texts, lanes, repeats + 1, shown)
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
            processor=tuning.processor(),
        )
        for (number, size), seconds in times.items()
    )
    return BenchmarkResult(tuple(ran), skipped)


def _take_turns(
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
    """Of rows of length 1 with those of a reference."""
    return EngineAgreement(
        difference=float(np.abs(vectors - reference).max()),
        cosine=float(np.einsum("ij,ij->i", vectors, reference).min()),
        same_nearest=float((_nearest(vectors) == _nearest(reference)).mean()),
    )


def _nearest(vectors: AnyVectors) -> NDArray[np.intp]:
    few = vectors[:_NEIGHBOURS].astype(np.float32)
    scores = few @ few.T
    np.fill_diagonal(scores, -np.inf)
    nearest: NDArray[np.intp] = scores.argmax(axis=1)
    return nearest


def _candidates(checkpoint: Checkpoint) -> tuple[list[Model], tuple[str, ...]]:
    """A model for each engine and precision that can run it, float32 first, and why others cannot."""
    if checkpoint.kind == "static" or architecture_of(checkpoint.config) is None:
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
    return models, tuple(skipped)


def keep_winners(
    model: str | Path, trials: BenchmarkResult, *, precision: Precision | None = None
) -> list[EngineResult]:
    """Remembers the winner of each precision for networks of this shape on this processor.

    `precision` is what commands use for this model from now on where no precision is asked for; None leaves that alone.
    """
    checkpoint = _named(model)
    network = read_network(checkpoint.config, checkpoint.weights)
    for trial in trials.winners():
        choice = tuning.Choice(
            engine=trial.engine,
            batch_tokens=trial.batch_tokens,
            threads=trial.threads,
            texts_per_second=trial.texts_per_second,
            mean_tokens=trial.mean_tokens,
            model=checkpoint.name,
        )
        tuning.remember(network, trial.precision, choice)
    if precision is not None:
        tuning.remember_precision(checkpoint, precision)
    return trials.winners()


@dataclass(frozen=True)
class SavedEngine:
    """What `gemel.load` takes for networks of one shape."""

    model: str | None
    """What it was measured with; None: an older gemel measured."""
    network: str
    precision: str
    engine: str
    batch_tokens: int
    threads: int
    texts_per_second: float
    machine: str
    here: bool
    """It was measured on a machine such as this one, so it is used."""


@dataclass(frozen=True)
class SavedPrecision:
    """What commands take for one model where no precision is asked for."""

    model: str
    weights: str
    precision: Precision
    machine: str
    here: bool


@dataclass(frozen=True)
class SavedChoices:
    """All that `gemel bench` left in the cache."""

    engines: tuple[SavedEngine, ...]
    precisions: tuple[SavedPrecision, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """One line a choice, for a person; those of other machines say so."""
        engines = [
            f"{each.model or each.network} and its like, {each.precision}: {each.engine}, "
            f"{each.batch_tokens:,} tokens a batch ({each.texts_per_second:,.0f} texts/s, {each.threads} threads)"
            f"{'' if each.here else f', on {each.machine}'}"
            for each in self.engines
        ]
        precisions = [
            f"{each.model}: {each.precision} in commands without --precision"
            f"{'' if each.here else f', on {each.machine}'}"
            for each in self.precisions
        ]
        return engines + precisions


def saved_choices(model: str | Path | None = None) -> SavedChoices:
    """What was kept in the cache, of one model or of all; nothing is loaded or fetched without `model`."""
    shape, weights = _marks(model)
    engines = []
    for key, choice in tuning.all_choices().items():
        machine, network, precision = key.rsplit("; ", 2)
        if shape in (None, network):
            row = SavedEngine(
                model=choice.model,
                network=network,
                precision=precision,
                engine=choice.engine,
                batch_tokens=choice.batch_tokens,
                threads=choice.threads,
                texts_per_second=choice.texts_per_second,
                machine=machine,
                here=machine == tuning.here(),
            )
            engines.append(row)
    precisions = []
    for key, chosen in tuning.all_precisions().items():
        machine, _, hashed = key.rpartition("; ")
        if weights in (None, hashed):
            here = machine == tuning.here()
            precisions.append(SavedPrecision(chosen.model, hashed, chosen.precision, machine, here))
    return SavedChoices(tuple(engines), tuple(precisions))


def forget_choices(model: str | Path | None = None) -> SavedChoices:
    """Removes what was kept, of one model or of all, and returns it."""
    gone = saved_choices(model)
    engines = [f"{each.machine}; {each.network}; {each.precision}" for each in gone.engines]
    tuning.forget(tuning.tuning_file(), engines)
    tuning.forget(tuning.precision_file(), [f"{each.machine}; {each.weights}" for each in gone.precisions])
    return gone


def saved_precision(model: str | Path) -> Precision | None:
    """The precision that was kept for this very model on this machine; None: none was."""
    return tuning.recall_precision(_named(model)) if tuning.precision_file().exists() else None


def _named(model: str | Path) -> Checkpoint:
    folder = find_model(model)
    return read_checkpoint(folder, name=given_name(model, folder))


def _marks(model: str | Path | None) -> tuple[str | None, str | None]:
    """The shape and the hash that rows of a model have; None stands for any."""
    if model is None:
        return None, None
    checkpoint = _named(model)
    network = read_network(checkpoint.config, checkpoint.weights)
    return tuning.shape_of(network), tuning.precision_key(checkpoint).rpartition("; ")[2]
