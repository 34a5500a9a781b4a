"""Task "mining": find the paraphrases among all pairs of a list of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import PAIRS, LabeledPairs, connected, read_pairs, tables_with
from gemel.evaluation.metrics import Floats
from gemel.evaluation.statistics import MeanSample
from gemel.evaluation.task import TASKS, Bootstrap, Score, Scores, System, Task, with_vectors
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.similarity import METRICS


@dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Precision and recall of the mined pairs above each distinct score, best first."""

    threshold: Floats
    precision: Floats
    recall: Floats
    of_gold: Floats
    """(gold pairs,) the precision at the score of each gold pair, 0 for one that was not mined."""

    @property
    def f1(self) -> Floats:
        total = self.precision + self.recall
        return np.divide(2 * self.precision * self.recall, total, out=np.zeros(len(total)), where=total > 0)


def curve(score: NDArray[np.float32], hit: NDArray[np.bool_], gold: int) -> PrecisionRecallCurve:
    """`score` of mined pairs, best first, and which of them are among the `gold` pairs. Equal scores are one step."""
    last = np.flatnonzero(np.append(score[1:] != score[:-1], True)) if len(score) else np.empty(0, np.int64)
    hits_so_far = np.cumsum(hit)[last] if len(score) else np.empty(0)
    precision = hits_so_far / (last + 1)
    of_gold = np.zeros(gold)
    hits = np.flatnonzero(hit)
    of_gold[: len(hits)] = precision[np.searchsorted(last, hits)]
    return PrecisionRecallCurve(
        np.asarray(score[last], dtype=np.float64), precision, hits_so_far / gold, of_gold
    )


@dataclass(frozen=True)
class MiningTask:
    """Texts and the pairs that are paraphrases, ready for any encoder."""

    dataset: str
    texts: tuple[str, ...]
    gold: tuple[tuple[int, int], ...]
    k: int
    metric: str
    closed: bool
    bootstrap: Bootstrap
    files: Mapping[str, Any] = field(default_factory=dict)
    """The part of the protocol on the choice of files."""

    def score(self, encoder: System) -> Scores:
        """Average precision first; then the best F1, where it is reached, and precision and recall there."""
        ready = with_vectors(encoder, self.texts, "mining")
        mined = similar_pairs(ready.encode(self.texts), k=self.k, metric=self.metric)
        cuts, sample = self._curve(mined)
        return Scores(
            task="mining",
            dataset=self.dataset,
            main="average-precision",
            values={"average-precision": self.bootstrap.score(sample), **_best(cuts)},
            items=len(self.gold),
            unit="gold_pairs",
            protocol=self._protocol(mined),
            sample=sample,
        )

    def _curve(self, mined: Pairs) -> tuple[PrecisionRecallCurve, MeanSample]:
        size = len(self.texts)
        codes = np.array([left * size + right for left, right in self.gold], dtype=np.int64)
        order = np.argsort(codes)
        mined_codes = mined.left * size + mined.right
        hit = np.isin(mined_codes, codes)
        cuts = curve(mined.score, hit, len(codes))
        # In the order of the gold pairs, so that two models can be compared pair by pair.
        values = np.zeros(len(codes))
        hits = mined_codes[hit]
        values[order[np.searchsorted(codes[order], hits)]] = cuts.of_gold[: len(hits)]
        return cuts, MeanSample(values)

    def _protocol(self, mined: Pairs) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "texts": len(self.texts),
            "pairs_compared": mined.compared,
            "pairs_mined": len(mined),
            "complete": mined.complete,
            "gold": "pairs with label 1" + (", and what follows from chains of them" if self.closed else ""),
            "not_gold": "every other pair counts as wrong, also those that nobody judged",
            "average-precision": "over gold pairs; 0 for those not among the mined; equal scores as one step",
            **self.files,
            **self.bootstrap.protocol("gold pairs, with the mined list fixed", self.texts, self.gold),
        }


@TASKS.add("mining")
def load(
    path: Path,
    *,
    metric: str = "cosine",
    k: int = 500_000,
    closed: bool = False,
    rounds: int = 1000,
    seed: int = 0,
) -> list[Task]:
    """Tables of labeled pairs; all their distinct texts are mined, whatever the label.

    `k` is the number of nearest pairs. `closed`: if a and b, and b and c are pairs, so are a and c.
    """
    METRICS[metric]
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    bootstrap, tasks = Bootstrap(rounds, seed), list[Task]()
    for table in tables_with(path, PAIRS):
        pairs = read_pairs(table)
        gold = _closure(pairs) if closed else pairs.same
        tasks.append(MiningTask(table.name, pairs.texts, gold, k, metric, closed, bootstrap, table.protocol))
    return tasks


def _closure(pairs: LabeledPairs) -> tuple[tuple[int, int], ...]:
    groups = connected(len(pairs.texts), pairs.same)
    return tuple((one, other) for group in groups for one in group for other in group if one < other)


def _best(cuts: PrecisionRecallCurve) -> dict[str, Score]:
    """The cut with the best F1; of equal ones the highest threshold."""
    if not cuts.f1.any():
        none = Score(None, note="no gold pair was mined")
        return {"f1": Score(0.0), "threshold": none, "precision": none, "recall": Score(0.0)}
    best = int(cuts.f1.argmax())
    return {
        "f1": Score(100 * float(cuts.f1[best])),
        "threshold": Score(float(cuts.threshold[best]), note="a score, not x 100"),
        "precision": Score(100 * float(cuts.precision[best])),
        "recall": Score(100 * float(cuts.recall[best])),
    }
