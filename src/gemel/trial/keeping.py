"""What is kept of a comparison in the cache, who it is for, and how it is shown and forgotten."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model, given_name
from gemel.encoder import tuning
from gemel.encoder.architectures import read_network
from gemel.options import Precision
from gemel.trial.measuring import Trial, Trials


def keep_winners(model: str | Path, trials: Trials, *, precision: Precision | None = None) -> list[Trial]:
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
