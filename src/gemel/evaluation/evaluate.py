"""Evaluates models: opens them by name, scores every data set of a task and their average, and compares two models.

The protocol of a result has the options and the fingerprint of a gemel model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from gemel.checkpoint.folder import is_cross_encoder, is_model_folder, is_sparse_encoder
from gemel.checkpoint.modules import is_late_model
from gemel.checkpoint.sources import find_model, warn_of_folder
from gemel.cross_model import load_cross
from gemel.errors import InputError
from gemel.evaluation.baselines import is_baseline, open_baseline
from gemel.evaluation.statistics import NamedComparison, PairedComparison, Sample, WeightedSample, compare
from gemel.evaluation.task import POINTS, Bootstrap, Score, Scores, Task, load_task, system_name
from gemel.model import ConfiguredModel, Model, load
from gemel.options import EncodeOptions
from gemel.texts.late_model import load_late
from gemel.texts.sparse_model import load_sparse
from gemel.types import Encoder

AVERAGE = "average"
"""The name of the data set of an average."""

_WITHOUT_EFFECT = ("threads", "memory", "progress")  # options that do not change vectors


def evaluate(
    model: Encoder | str | Path,
    task: str,
    data: str | Path,
    *,
    metric: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    options: EncodeOptions | None = None,
    pooling: str | None = None,
    **settings: Any,
) -> list[Scores]:
    """The scores of a model, or of any object with an `encode`, on each data set of a file or folder; then the average.

    `metric` is a similarity or "all", `rounds` and `seed` are for the bootstrap intervals; None is the default of the
    task. `options` and `pooling` are for a model given by name or folder. `settings` are those of the task.
    """
    tasks = load_task(task, data, metric=metric, rounds=rounds, seed=seed, **settings)
    encoder = open_encoder(model, options=options, pooling=pooling)
    return list(score_model(tasks, encoder, name=name_of(model, encoder)))


def name_of(model: Encoder | str | Path, encoder: Encoder) -> str:
    """The name of a model in results: of a baseline as given, of others their `name` or class."""
    if isinstance(model, str) and _names_baseline(model):
        return model
    return system_name(encoder)


def score_model(tasks: Sequence[Task], encoder: Encoder, *, name: str | None = None) -> Iterator[Scores]:
    """The result of each task as soon as it is computed; the protocol describes the encoder."""
    description = description_of(encoder)
    for scores in score_tasks(tasks, encoder, name=name):
        yield replace(scores, protocol={**scores.protocol, **description})


def open_encoder(
    model: Encoder | str | Path,
    *,
    options: EncodeOptions | None = None,
    pooling: str | None = None,
    task: str | None = None,
) -> Encoder:
    """A model by name or folder, a baseline such as "glove:vectors.txt", or the encoder itself.

    `task`: that a model is loaded for, where it has adapters for several.
    """
    changes = _changes(options or EncodeOptions())
    if not isinstance(model, str | Path):
        if changes or pooling:
            raise InputError(
                "options and pooling are for a model given by name or folder, not for an encoder object"
            )
        return model
    if _names_baseline(model):
        if pooling or set(changes) - set(_WITHOUT_EFFECT):
            raise InputError(f"the baseline {model} takes no encoding options")
        return open_baseline(str(model))
    if changes.get("output") == "binary":
        raise InputError("output 'binary' is bits, which these similarities cannot compare. Use 'int8'")
    folder = find_model(model)
    for kind, (is_kind, open_kind) in _OTHER_KINDS.items():
        if is_kind(folder):
            if pooling or set(changes) - set(_WITHOUT_EFFECT):
                raise InputError(f"{model} is a {kind}, which takes no encoding options")
            return cast("Encoder", open_kind(model))  # tasks that need dense vectors raise an error
    loaded = load(model, pooling=pooling, task=task, precision=changes.get("precision", "float32"))
    return EncodingModel(loaded, options or EncodeOptions(), pooling) if changes or pooling else loaded


_OTHER_KINDS: Mapping[str, tuple[Callable[[Path], bool], Callable[[str | Path], object]]] = {
    "cross-encoder": (is_cross_encoder, load_cross),
    "sparse encoder": (is_sparse_encoder, load_sparse),
    "model for late interaction": (is_late_model, load_late),
}
"""What says that a folder is of this kind, and what opens it."""


@dataclass(frozen=True)
class EncodingModel(ConfiguredModel):
    """A model with fixed options, which the protocol of the results records."""

    pooling: str | None = None
    """The pooling that was given instead of the checkpoint's own."""

    @property
    def encoding(self) -> dict[str, Any]:
        """The options that vectors depend on, where they are not at their default."""
        options = {k: v for k, v in _changes(self.options).items() if k not in _WITHOUT_EFFECT}
        return {"pooling": self.pooling, **options} if self.pooling else options


def description_of(encoder: object) -> dict[str, Any]:
    """The part of the protocol on a gemel model; empty for any other encoder."""
    if not isinstance(encoder, Model | EncodingModel):
        return {}
    encoding = encoder.encoding if isinstance(encoder, EncodingModel) else {}
    options = {"encoding": encoding} if encoding else {}
    return {**options, "fingerprint": encoder.fingerprint.to_json()}


def _changes(options: EncodeOptions) -> dict[str, Any]:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value != getattr(EncodeOptions(), name)}


def _names_baseline(model: str | Path) -> bool:
    """True for the name of a baseline, which has priority over a folder of that name unless written as a path."""
    if not isinstance(model, str) or not is_baseline(model):
        return False
    if is_model_folder(Path(model)):
        warn_of_folder(model)
    return True


def score_tasks(tasks: Sequence[Task], encoder: Encoder, *, name: str | None = None) -> Iterator[Scores]:
    """The result of each task as soon as it is computed, then the average of several."""
    model = name or system_name(encoder)
    results = []
    for task in tasks:
        results.append(replace(task.score(encoder), model=model))
        yield results[-1]
    if len(results) > 1 and len({(result.task, result.main) for result in results}) == 1:
        yield average(results)


def average(results: Sequence[Scores]) -> Scores:
    """The mean over data sets of every number that all of them have, except thresholds."""
    first = results[0]
    # A threshold belongs to its data set: the mean of two has no meaning.
    names = [
        name
        for name in first.values
        if "threshold" not in name and all(name in result.values for result in results)
    ]
    samples = tuple(result.sample for result in results if result.sample is not None)
    sample = WeightedSample(samples, (1.0,) * len(samples)) if len(samples) == len(results) else None
    values = {name: _mean(name, results) for name in names}
    if sample is not None and values[first.main].value is not None:
        bootstrap = Bootstrap(first.protocol.get("rounds", 1000), first.protocol.get("seed", 0))
        ends = bootstrap.score(sample)
        values[first.main] = replace(values[first.main], low=ends.low, high=ends.high)
    return Scores(
        task=first.task,
        dataset=AVERAGE,
        main=first.main,
        values=values,
        items=sum(result.items for result in results),
        unit=first.unit,
        model=first.model,
        protocol={
            **_shared_protocol(results),
            "aggregation": "the mean of the data sets, each with the same weight",
            "datasets": [result.dataset for result in results],
            "data": [result.protocol.get("data") for result in results],
        },
        sample=sample,
        costs=_mean_costs(results),
    )


def _mean_costs(results: Sequence[Scores]) -> dict[str, float]:
    """Of each data set the same weight; a cost that one of them does not have is left out."""
    return {
        name: sum(result.costs[name] for result in results) / len(results)
        for name in results[0].costs
        if all(name in result.costs for result in results)
    }


def _shared_protocol(results: Sequence[Scores]) -> dict[str, Any]:
    """The settings that all results have in common."""
    first, *others = (result.protocol for result in results)
    missing = object()
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name, missing) == value for other in others)
    }


def _mean(name: str, results: Sequence[Scores]) -> Score:
    missing = [result.dataset for result in results if result.values[name].value is None]
    if missing:
        return Score(None, note=f"not defined on {', '.join(missing)}")
    numbers = [result.values[name].value or 0.0 for result in results]
    return Score(sum(numbers) / len(numbers))


def compare_models(first: Scores, second: Scores, *, rounds: int = 2000, seed: int = 0) -> PairedComparison:
    """How much better the second model is, in points, and how sure: a paired bootstrap over the same items."""
    for what in ("task", "dataset", "main", "items"):
        one, two = getattr(first, what), getattr(second, what)
        if one != two:
            raise InputError(
                f"two models can only be compared on the same data, but their {what} is {one} and {two}"
            )
    if first.protocol.get("data") != second.protocol.get("data"):
        raise InputError(f"two models can only be compared on the same data, but {first.dataset} differs")
    if first.sample is None or second.sample is None:
        raise InputError(
            f"the results of {first.task} on {first.dataset} have no items to compare two models by"
        )
    result = compare(first.sample, second.sample, rounds=rounds, seed=seed)
    return replace(
        result, difference=POINTS * result.difference, low=POINTS * result.low, high=POINTS * result.high
    )


def compare_with(
    earlier: Sequence[Scores], result: Scores, *, rounds: int = 2000, seed: int = 0
) -> list[NamedComparison]:
    """Comparisons of a result with those of earlier models on the same data set, where both numbers are defined."""
    return [
        NamedComparison(
            other.model,
            result.model,
            result.task,
            result.dataset,
            compare_models(other, result, rounds=rounds, seed=seed),
        )
        for other in earlier
        if (other.task, other.dataset) == (result.task, result.dataset)
        and _comparable(other)
        and _comparable(result)
    ]


def _comparable(result: Scores) -> bool:
    return (
        result.sample is not None and _varies(result.sample) and result.values[result.main].value is not None
    )


def _varies(sample: Sample) -> bool:
    """False for a data set of one item, or an average of such: every bootstrap draw is the same."""
    parts: Sequence[Sample] = getattr(sample, "parts", ())
    return all(_varies(part) for part in parts) if parts else sample.items > 1
