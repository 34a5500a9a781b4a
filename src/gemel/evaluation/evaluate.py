"""Models by name through an evaluation: opens what was named, and keeps in the protocol how it encoded.

An encoder through a task: every data set, their average, and how two models compare on the same items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.checkpoint.folder import is_cross_encoder, is_model_folder
from gemel.checkpoint.sources import find_model, warn_of_folder
from gemel.cross_model import load_cross
from gemel.errors import InputError
from gemel.evaluation.baselines import is_baseline, open_baseline
from gemel.evaluation.statistics import NamedComparison, PairedComparison, Sample, WeightedSample, compare
from gemel.evaluation.task import POINTS, Score, Scores, Task, load_task, score_of
from gemel.model import Model, load
from gemel.options import EncodeOptions
from gemel.types import AnyVectors, Encoder

_CHANGE_NOTHING = ("threads", "memory", "progress")  # options that no vector depends on


def evaluate(
    model: Encoder | str | Path,
    *,
    task: str,
    data: str | Path,
    metric: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    options: EncodeOptions | None = None,
    pooling: str | None = None,
    **settings: Any,
) -> list[Scores]:
    """The scores of a model, or of anything with an `encode`, on each data set of a file or folder; then the average.

    `metric` is a similarity or "all", `rounds` and `seed` belong to the bootstrap intervals; None is the task's
    default. `options` and `pooling` are for a model given by name or folder. `settings` go to the task.
    """
    tasks = load_task(task, data, metric=metric, rounds=rounds, seed=seed, **settings)
    encoder = open_encoder(model, options=options, pooling=pooling)
    return list(score_model(tasks, encoder, name=name_of(model, encoder)))


def name_of(model: Encoder | str | Path, encoder: Encoder) -> str:
    """What results call it: a baseline by all that was typed, anything else by its own name or its class."""
    if isinstance(model, str) and _names_baseline(model):
        return model
    return str(getattr(encoder, "name", "") or type(encoder).__name__)


def score_model(tasks: Sequence[Task], encoder: Encoder, *, name: str | None = None) -> Iterator[Scores]:
    """Each result as soon as it is there; its protocol has the options and the fingerprint of a gemel model."""
    known = _known(encoder)
    for scores in score_tasks(tasks, encoder, name=name):
        yield replace(scores, protocol={**scores.protocol, **known})


def open_encoder(
    model: Encoder | str | Path, *, options: EncodeOptions | None = None, pooling: str | None = None
) -> Encoder:
    """A model by name or folder, a baseline such as "glove:vectors.txt", or the encoder itself."""
    changes = _changes(options or EncodeOptions())
    if not isinstance(model, str | Path):
        if changes or pooling:
            raise InputError(
                "options and pooling are for a model given by name or folder, not for an encoder"
            )
        return model
    if _names_baseline(model):
        if pooling or set(changes) - set(_CHANGE_NOTHING):
            raise InputError(f"the baseline {model} takes no options of encoding")
        return open_baseline(str(model))
    if changes.get("output") == "binary":
        raise InputError("output 'binary' holds bits, which no similarity here compares. Use 'int8'")
    if is_cross_encoder(folder := find_model(model)):
        if pooling or set(changes) - set(_CHANGE_NOTHING):
            raise InputError(f"{model} is a cross-encoder, which takes no options of encoding")
        return cast("Encoder", load_cross(folder))  # tasks that need vectors refuse it by name
    loaded = load(model, pooling=pooling, precision=changes.get("precision", "float32"))
    return EncodingModel(loaded, changes, pooling) if changes or pooling else loaded


@dataclass(frozen=True)
class EncodingModel:
    """A model that always encodes with the same options."""

    model: Model
    changes: Mapping[str, Any]
    """Fields of EncodeOptions that are not at their default."""
    pooling: str | None = None

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dim(self) -> int:
        return int(self.changes.get("dim") or self.model.dim)

    @property
    def encoding(self) -> dict[str, Any]:
        """What the vectors depend on."""
        kept = {name: value for name, value in self.changes.items() if name not in _CHANGE_NOTHING}
        return {"pooling": self.pooling, **kept} if self.pooling else kept

    @property
    def fingerprint(self) -> Fingerprint:
        return self.model.fingerprint_for(EncodeOptions(**self.changes))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Of the classification head, if the model kept one."""
        return self.model.labels

    def relation(self, left: Sequence[str], right: Sequence[str]) -> AnyVectors:
        """The model's own under these options; it refuses those that its head does not fit."""
        return self.model.relation(left, right, **self.changes)

    def encode(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode(texts, **self.changes)

    def encode_query(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode_query(texts, **self.changes)

    def encode_document(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode_document(texts, **self.changes)


def _known(encoder: Encoder) -> dict[str, Any]:
    """What the protocol tells of a gemel model; nothing of any other encoder."""
    if not isinstance(encoder, Model | EncodingModel):
        return {}
    encoding = encoder.encoding if isinstance(encoder, EncodingModel) else {}
    told = {"encoding": encoding} if encoding else {}
    return {**told, "fingerprint": encoder.fingerprint.to_json()}


def _changes(options: EncodeOptions) -> dict[str, Any]:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value != getattr(EncodeOptions(), name)}


def _names_baseline(model: str | Path) -> bool:
    """A baseline is a known name: it wins over a folder of that name, unless it is written as a path."""
    if not isinstance(model, str) or not is_baseline(model):
        return False
    if is_model_folder(Path(model)):
        warn_of_folder(model)
    return True


AVERAGE = "average"


def evaluate_encoder(
    encoder: Encoder, *, task: str, data: str | Path, name: str | None = None, **settings: Any
) -> list[Scores]:
    """The scores on each data set that the task finds, then their average where there are several.

    `settings` go to the task (`metric`, `rounds`, `seed` and its own); a setting that is None is the task's default.
    """
    return list(score_tasks(load_task(task, data, **settings), encoder, name=name))


def score_tasks(tasks: Sequence[Task], encoder: Encoder, *, name: str | None = None) -> Iterator[Scores]:
    """The same for tasks that are loaded, each result as soon as it is there."""
    called = name or str(getattr(encoder, "name", "") or type(encoder).__name__)
    results = []
    for task in tasks:
        results.append(replace(task.score(encoder), model=called))
        yield results[-1]
    if len(results) > 1 and len({(result.task, result.main) for result in results}) == 1:
        yield average(results)


def average(results: Sequence[Scores]) -> Scores:
    """The plain mean over data sets of every number that all of them have, but for thresholds."""
    first = results[0]
    # A threshold belongs to its data set: the mean of two is no threshold of anything.
    names = [
        name
        for name in first.values
        if "threshold" not in name and all(name in result.values for result in results)
    ]
    samples = tuple(result.sample for result in results if result.sample is not None)
    sample = WeightedSample(samples, (1.0,) * len(samples)) if len(samples) == len(results) else None
    values = {name: _mean(name, results) for name in names}
    if sample is not None and values[first.main].value is not None:
        rounds, seed = first.protocol.get("rounds", 1000), first.protocol.get("seed", 0)
        ends = score_of(sample, rounds=rounds, seed=seed)
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
    )


def _shared_protocol(results: Sequence[Scores]) -> dict[str, Any]:
    """What was done alike for all of them."""
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
            raise InputError(f"two models are compared on the same data, but their {what} is {one} and {two}")
    if first.protocol.get("data") != second.protocol.get("data"):
        raise InputError(
            f"two models are compared on the same data, but {first.dataset} was not the same data"
        )
    if first.sample is None or second.sample is None:
        raise InputError(f"{first.task} on {first.dataset} keeps no items to compare two models by")
    found = compare(first.sample, second.sample, rounds=rounds, seed=seed)
    return replace(
        found, difference=POINTS * found.difference, low=POINTS * found.low, high=POINTS * found.high
    )


def compare_with(
    earlier: Sequence[Scores], result: Scores, *, rounds: int = 2000, seed: int = 0
) -> list[NamedComparison]:
    """A result against those of earlier models on the same data set; none where a number is not defined."""
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
    """Whether draws can differ: a data set of one item is the same in every draw, and so are averages of such."""
    parts: Sequence[Sample] = getattr(sample, "parts", ())
    return all(_varies(part) for part in parts) if parts else sample.items > 1
