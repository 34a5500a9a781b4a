"""From one value a query to `Scores`: means in points with their bootstrap intervals, the main one with its sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.samples import MeanSample
from gemel.evaluation.scores import Score, Scores, score_of
from gemel.evaluation.table import fingerprint
from gemel.evaluation.text_columns import run_settings


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn. No rounds: no intervals."""

    rounds: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        run_settings(self.rounds, self.seed)

    def protocol(self, unit: str, *data: Iterable[object]) -> dict[str, Any]:
        """What was drawn, and a hash of the data it was drawn from: results with the same hash can be compared."""
        return {**run_settings(self.rounds, self.seed), "drawn": unit, "data": fingerprint(*data)}


def mean_score(values: NDArray[np.float64], bootstrap: Bootstrap) -> Score:
    """The mean of shares, in points, and where 95 % of the bootstrap means fall."""
    return score_of(MeanSample(values), rounds=bootstrap.rounds, seed=bootstrap.seed)


def mean_scores(
    task: str,
    dataset: str,
    values: Mapping[str, NDArray[np.float64]],
    *,
    unit: str,
    protocol: Mapping[str, Any],
    bootstrap: Bootstrap,
) -> Scores:
    """Named values, one a query; the first name is the number to compare models by."""
    main = next(iter(values))
    return Scores(
        task=task,
        dataset=dataset,
        main=main,
        values={name: mean_score(each, bootstrap) for name, each in values.items()},
        items=len(values[main]),
        unit=unit,
        protocol=protocol,
        sample=MeanSample(values[main]),
    )
