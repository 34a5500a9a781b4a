"""The number behind each claim: a difference of two lines of a table, with its 95 % interval.

Lines that were run with several seeds or folds: the mean of the differences within a seed, and Student's interval over
seeds. Others: the paired bootstrap over the test pairs, which says nothing about another training run.
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
    table: str, rows: Sequence[Row], found: Sequence[dict[str, Any]], folders: Folders
) -> dict[str, Any]:
    """For each claim of the table whose lines are there."""
    labels = {entry["label"] for entry in found}
    ready = [
        claim for claim in CLAIMS if claim.table == table and labels.issuperset(claim.better + claim.worse)
    ]
    return {claim.name: _difference(claim, rows, found, folders) for claim in ready}


def _difference(
    claim: Claim, rows: Sequence[Row], found: Sequence[dict[str, Any]], folders: Folders
) -> dict[str, Any]:
    better, worse = _by_seed(claim.better, found, claim.dataset), _by_seed(claim.worse, found, claim.dataset)
    spread = max(len(claim.better), len(claim.worse)) > 1  # of several lines: the bootstrap compares two
    if spread or max(len(better), len(worse)) > 1:
        seeds = (
            sorted(set(better) & set(worse))
            if min(len(better), len(worse)) > 1
            else sorted({*better, *worse})
        )
        # A line without seeds of its own stands against every seed of the other.
        pairs = [(better.get(seed, better.get(0, 0.0)), worse.get(seed, worse.get(0, 0.0))) for seed in seeds]
        return over_seeds([one - two for one, two in pairs])
    places = {row.label: row for row in rows}
    second, first = places[claim.better[0]], places[claim.worse[0]]
    compared = difference(first, second, claim.dataset or AVERAGE, folders, rounds=2000)
    ends = {"difference": compared.difference, "low": compared.low, "high": compared.high}
    return {
        **{name: round(POINTS * value, 2) for name, value in ends.items()},
        "over": "pairs",
        "count": compared.items,
    }


def _by_seed(labels: Sequence[str], found: Sequence[dict[str, Any]], dataset: str) -> dict[int, float]:
    """The number of a line for each seed; of several lines, their spread, where all have the seed."""
    values: dict[int, dict[str, float]] = {}
    for entry in found:
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
