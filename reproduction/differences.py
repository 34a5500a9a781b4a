"""The number behind each claim: a difference of two lines of a table, with its 95 % interval.

Lines that were run with several seeds or folds: the mean of the differences within a seed, and Student's interval over
seeds. Others: the paired bootstrap over the test pairs, which does not cover the variance between training runs.

And for each student its share of the teacher's score, by the same paired bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemel.evaluation.statistics import Rows, Sample, draw_rows, interval
from reproduction.claims import CLAIMS, Claim
from reproduction.measuring import AVERAGE, difference, ready, sample_of
from reproduction.parts import Folders, Row

POINTS = 100
TEACHER_LINE = "teacher"


@dataclass(frozen=True, eq=False)
class ShareSample:
    """The number of one model over that of another, on the same items."""

    own: Sample
    other: Sample

    @property
    def items(self) -> int:
        return self.own.items

    def number(self, rows: Rows) -> float | None:
        own, other = self.own.number(rows), self.other.number(rows)
        return own / other if own is not None and other else None

    def draw(self, random: np.random.Generator) -> Rows:
        return draw_rows(self.own, random)


def differences(
    table: str, plan: Sequence[Row], result: Sequence[dict[str, Any]], folders: Folders
) -> dict[str, Any]:
    """For each claim of the table whose lines are there, of all that is planned."""
    labels = {entry["label"] for entry in result}
    ready = [
        claim for claim in CLAIMS if claim.table == table and labels.issuperset(claim.better + claim.worse)
    ]
    each = {claim.name: _difference(claim, plan, result, folders) for claim in ready}
    return {name: value for name, value in each.items() if value}


def _difference(
    claim: Claim, plan: Sequence[Row], result: Sequence[dict[str, Any]], folders: Folders
) -> dict[str, Any]:
    better, worse = (
        _by_seed(claim.better, result, claim.dataset),
        _by_seed(claim.worse, result, claim.dataset),
    )
    seeds = _common(claim, plan, better, worse)
    several = max(len(claim.better), len(claim.worse)) > 1  # the bootstrap compares two lines
    if not seeds:
        return {}
    if several or len(seeds) > 1:
        pairs = [(better.get(seed, better.get(0, 0.0)), worse.get(seed, worse.get(0, 0.0))) for seed in seeds]
        return over_seeds([one - two for one, two in pairs])
    second, first = (_planned(label, seeds[0], plan) for label in (claim.better[0], claim.worse[0]))
    compared = difference(first, second, claim.dataset or AVERAGE, folders, rounds=2000)
    ends = {"difference": compared.difference, "low": compared.low, "high": compared.high}
    return {
        **{name: round(POINTS * value, 2) for name, value in ends.items()},
        "over": "pairs",
        "count": compared.items,
    }


def _common(
    claim: Claim, plan: Sequence[Row], better: dict[int, float], worse: dict[int, float]
) -> list[int]:
    """The seeds that both sides have. A line that the plan runs once is compared with every seed of the other."""
    repeated = [
        set(result)
        for labels, result in ((claim.better, better), (claim.worse, worse))
        if len({row.seed for row in plan if row.label in labels}) > 1
    ]
    return sorted(set.intersection(*repeated)) if repeated else [0]


def _planned(label: str, seed: int, plan: Sequence[Row]) -> Row:
    """The line of that seed, or the only one there is."""
    rows = {row.seed: row for row in plan if row.label == label}
    return rows.get(seed) or rows[0]


def _by_seed(labels: Sequence[str], result: Sequence[dict[str, Any]], dataset: str) -> dict[int, float]:
    """The number of a line for each seed; of several lines, their spread, where all have the seed."""
    values: dict[int, dict[str, float]] = {}
    for entry in result:
        if entry["label"] in labels:
            scores = entry["scores"]
            score = scores[dataset] if dataset else next(iter(scores.values()))
            values.setdefault(entry["seed"], {})[entry["label"]] = score["value"]
    whole = {seed: list(each.values()) for seed, each in values.items() if len(each) == len(labels)}
    return {seed: max(each) - min(each) if len(labels) > 1 else each[0] for seed, each in whole.items()}


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """The mean and its interval by Student's t; with one seed there is none."""
    from scipy import stats

    mean, count = float(np.mean(values)), len(values)
    half = float("inf")
    if count > 1:
        spread = float(np.std(values, ddof=1)) / count**0.5
        half = float(stats.t.ppf(0.975, count - 1)) * spread
    ends = {"low": mean - half, "high": mean + half} if count > 1 else {"low": None, "high": None}
    rounded = {name: None if value is None else round(value, 2) for name, value in ends.items()}
    return {"difference": round(mean, 2), **rounded, "over": "seeds", "count": count}


def add_shares(plan: Sequence[Row], result: Sequence[dict[str, Any]], folders: Folders, rounds: int) -> None:
    """Each student's share of the teacher's average, where the work folder has the items of both."""
    measured = {(row.label, row.suite.name): row for row in plan if ready(row, folders)}
    for entry in result:
        row = measured.get((entry["label"], entry["suite"]))
        teacher = measured.get((TEACHER_LINE, entry["suite"]))
        if row is None or teacher is None or row is teacher:
            continue
        entry["share"] = share(*(sample_of(each, folders, AVERAGE) for each in (row, teacher)), rounds)


def share(own: Sample, other: Sample, rounds: int) -> dict[str, float]:
    """One number over another and its interval: each round draws the same rows for both."""
    sample = ShareSample(own, other)
    value, ends = sample.number(np.arange(sample.items, dtype=np.int64)), interval(sample, rounds=rounds)
    if value is None or ends is None:
        return {}
    numbers = {"value": value, "low": ends.low, "high": ends.high}
    return {name: round(number, 4) for name, number in numbers.items()}
