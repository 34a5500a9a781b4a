"""An encoder through a task: every data set, their average, and how two models compare on the same items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemel.errors import InputError
from gemel.evaluation.samples import Comparison, NamedComparison, Sample, WeightedSample, compare
from gemel.evaluation.scores import POINTS, Score, Scores, score_of
from gemel.evaluation.task import Task, load_task
from gemel.types import Encoder

AVERAGE = "average"


def evaluate(
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


def compare_models(first: Scores, second: Scores, *, rounds: int = 2000, seed: int = 0) -> Comparison:
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
