"""The number behind each claim: a difference of two lines of a table, with its 95 % interval.

Lines that were run with several seeds or folds: the mean of the differences within a seed, and Student's interval over
seeds. Others: the paired bootstrap over the test pairs, which does not cover the variance between training runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reproduction.claims import CLAIMS, Claim
from reproduction.measuring import AVERAGE, difference
from reproduction.parts import Folders, Row

POINTS = 100


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
