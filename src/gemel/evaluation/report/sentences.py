"""What a report says in words: comparisons of models, and the protocol behind the numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gemel.evaluation.report.grid import Grid
from gemel.evaluation.run import AVERAGE
from gemel.evaluation.samples import NamedComparison
from gemel.evaluation.scores import Scores

_HASH = re.compile(r"\b[0-9a-f]{40,}\b")  # results.json has them in full
HOW_COMPARED = (
    "Paired bootstrap: each round draws the same items for both models. A model is called better where the 95 % "
    "interval of the difference does not hold zero."
)


def comparison_sentence(named: NamedComparison) -> str:
    """Who is better and by how much, or that nobody can tell."""
    found = named.comparison
    ahead, behind, sign = (
        (named.second, named.first, 1) if found.difference >= 0 else (named.first, named.second, -1)
    )
    low, high = sorted((sign * found.low, sign * found.high))
    amount = f"by {sign * found.difference:.2f} [{low:.2f}, {high:.2f}], {_p(found.p_value)}"
    if found.sure:
        return f"{ahead} is better than {behind} on {place(named)} {amount}"
    return f"{place(named)}: cannot tell {ahead} from {behind} (ahead {amount})"


def place(named: NamedComparison) -> str:
    """Where two models met: the data set, and the task that it was used for."""
    return f"{named.dataset} ({named.task})"


def number_line(grid: Grid) -> str:
    """Which number the tables of a task hold."""
    scores = [result.values[result.main] for result in grid.cells.values()]
    with_interval = any(score.low is not None for score in scores)
    return (
        f"{', '.join(grid.mains)} × 100" + (", with 95 % bootstrap intervals" if with_interval else "") + "."
    )


def protocol_lines(grid: Grid) -> list[tuple[str, str]]:
    """Settings and their values; where results differ, each value is followed by the models or data sets it is for."""
    results = [result for result in grid.cells.values() if result.dataset != AVERAGE]
    names = dict.fromkeys(name for result in results for name in result.protocol)
    lines = [(name, _values(results, name)) for name in names]
    averages = grid.of_dataset(AVERAGE)
    if averages and "aggregation" in averages[0].protocol:
        lines.append((AVERAGE, _said(averages[0].protocol["aggregation"])))
    return lines


def fingerprint_of(results: Sequence[Scores], model: str) -> str:
    """What the results of a model say about its exact weights; empty where they say nothing."""
    for result in results:
        if (result.model or "model") == model and result.protocol.get("fingerprint"):
            return _said(result.protocol["fingerprint"])
    return ""


def _values(results: list[Scores], name: str) -> str:
    by_value: dict[str, list[Scores]] = {}
    for result in results:
        if name in result.protocol:
            by_value.setdefault(_said(result.protocol[name]), []).append(result)
    if len(by_value) == 1 and sum(map(len, by_value.values())) == len(results):
        return next(iter(by_value))
    return "; ".join(f"{value} ({_who(results, group)})" for value, group in by_value.items())


def _who(results: list[Scores], group: list[Scores]) -> str:
    """The shortest true name of some of the results: models, data sets, or both."""
    models = list(dict.fromkeys(result.model for result in group))
    datasets = list(dict.fromkeys(result.dataset for result in group))
    if len(group) == sum(result.model in models for result in results):
        return ", ".join(models)
    if len(group) == sum(result.dataset in datasets for result in results):
        return ", ".join(datasets)
    return ", ".join(f"{result.dataset} by {result.model}" for result in group)


def _said(value: Any) -> str:  # noqa: ANN401 - a protocol holds whatever JSON can hold
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(_said(part) for part in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(part)}" for name, part in value.items() if part not in ("", None))
    return _HASH.sub(lambda found: found[0][:16], str(value))


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
