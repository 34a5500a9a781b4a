"""What a score means on one corpus: how many random pairs reach it, and how likely such a pair belongs together.

Scores of random pairs are counted where there are many and extrapolated by a fitted tail where there are few. The
tail is fitted to the upper tenth without its top 0.5 %, where pairs that truly belong together would distort it, on
stretched scores (`Metric.stretch`): there the logarithm of the share of random pairs above a score falls as a
straight line for real texts and as a parabola for random directions. Labels, where given, make probabilities by
isotonic regression.

Random pairs say nothing about texts on one topic that are not the same: where a corpus has many of those, most pairs
above any score of random pairs are such neighbors. `precision_threshold` chooses the score from labeled pairs instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.options import check_count
from gemel.types import ShownResult, Vectors
from gemel.vectors.similarity import METRICS, Metric, Stretch, check_same_dim, checked

__all__ = ["Calibration", "PrecisionThreshold", "calibrate", "precision_threshold"]

VERSION = 1  # of the JSON form

FEWEST_PAIRS = 1000  # 46 texts: fewer do not show how high random pairs score

FEWEST_LABELS = 10

_STEPS = 1001  # scores stored of the body of the distribution

_TILE = 64  # rows per side: a matrix product is fast, and 2 million scores still see 31,000 different rows

_FIT_FROM = 0.1  # share of random pairs above the lowest fitted score

_FIT_TO = 0.005  # and above the highest: rarer pairs may not be random

_FEWEST_ABOVE = 20  # scores above the highest fitted one, where the sample is small

_POINTS = 25


def calibrate(
    vectors: ArrayLike,
    *,
    other: ArrayLike | None = None,
    sample: int = 2_000_000,
    seed: int = 0,
    metric: str = "cosine",
    labels: Sequence[tuple[float, int]] | None = None,
) -> Calibration:
    """The distribution of the scores of random pairs within `vectors`, or between them and `other`.

    sample: pairs to score, about; a corpus with fewer is scored whole.
    labels: (score, 0 or 1) of some pairs, which make `probability` possible.

    Pairs that belong together (near-duplicates) hardly move the fit while they are fewer than one in a thousand.
    """
    record = METRICS[metric]
    stretch = _stretch(metric)
    check_count("sample", sample, FEWEST_PAIRS)
    left = checked(vectors, "vectors")
    right = None if other is None else checked(other, "other")
    if right is not None:
        check_same_dim(left, right, "vectors", "rows of other")
    total = len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)
    if total < FEWEST_PAIRS:
        raise InputError(
            f"calibration needs at least {FEWEST_PAIRS:,} pairs (46 texts) to see how high random pairs score, "
            f"got {total:,}. Give more texts of the same kind"
        )
    scores = np.sort(_random_scores(record, left, right, sample, np.random.default_rng(seed)))
    tail = _fit_tail(scores, stretch)
    if tail is None:
        raise InputError("nearly all random pairs have the same score: there is nothing to calibrate")
    body = np.quantile(scores, np.linspace(0, 1 - math.exp(-tail.level), _STEPS))
    calibration = Calibration(
        metric=metric,
        total=total,
        rows=(len(left),) if right is None else (len(left), len(right)),
        sampled=len(scores),
        mean=float(scores.mean(dtype=np.float64)),
        deviation=float(scores.std(dtype=np.float64)),
        body=tuple(body.tolist()),
        tail=tail,
    )
    return calibration if labels is None else calibration.with_labels(labels)


@dataclass(frozen=True)
class Calibration(ShownResult):
    """The distribution of random-pair scores of one model on one corpus. Made by `calibrate`."""

    metric: str
    total: int
    """Pairs of the whole corpus."""
    rows: tuple[int, ...]
    """Texts: one number, or two when two sets were compared."""
    sampled: int
    """Random pairs that were scored."""
    mean: float
    deviation: float
    body: tuple[float, ...]
    """Scores at even steps of the share of pairs below them, from the lowest up to where the tail begins."""
    tail: Tail
    curve: ProbabilityCurve | None = None

    def share(self, score: float) -> float:
        """The share of random pairs with at least this score, 0 to 1."""
        stretched = _stretch(self.metric).forward(np.asarray(_finite("score", score)))
        if stretched >= self.tail.start:
            return math.exp(-float(self.tail.minus_log_share(stretched)))
        below = np.linspace(0, 1 - math.exp(-self.tail.level), len(self.body))
        return 1 - float(np.interp(score, self.body, below))

    def percentile(self, score: float) -> float:
        """The percentage of random pairs below this score."""
        return 100 * (1 - self.share(score))

    def expected_false(self, score: float, n: int | None = None) -> float:
        """How many random pairs reach this score among all pairs of the corpus, or of a corpus of `n` texts."""
        if n is not None and n < 2:
            raise InputError(f"n must be at least 2 texts, got {n}")
        return self.share(score) * (self.total if n is None else n * (n - 1) / 2)

    def threshold(self, expected_false: float = 1) -> float:
        """The score that `expected_false` random pairs of this corpus are expected to reach. Needs no labels."""
        allowed = _finite("expected_false", expected_false)
        if not 0 < allowed <= self.total:
            raise InputError(
                f"expected_false must be above 0 and at most {self.total:,}, the pairs of the corpus; got {allowed}"
            )
        minus_log = math.log(self.total / allowed)
        if minus_log >= self.tail.level:
            return float(_stretch(self.metric).inverse(np.asarray(self.tail.at(minus_log))))
        below = np.linspace(0, 1 - math.exp(-self.tail.level), len(self.body))
        return float(np.interp(1 - allowed / self.total, below, self.body))

    def with_labels(self, labels: Sequence[tuple[float, int]]) -> Calibration:
        """A copy with a curve from scores to probabilities, fitted on (score, 0 or 1) pairs."""
        return replace(self, curve=_fit_probability(labels))

    def probability(self, score: float) -> float:
        """How likely a pair with this score belongs together, by the labels; it never falls as the score rises."""
        if self.curve is None:
            raise InputError("no labels were given. Use calibrate(vectors, labels=[(score, 0 or 1), ...])")
        return self.curve.at(_finite("score", score))

    def summary(self) -> str:
        """A description of two or three lines."""
        lines = [
            f"{' x '.join(f'{n:,}' for n in self.rows)} texts, {self.total:,} pairs, {self.sampled:,} sampled: "
            f"random pairs score {self.mean:.3f} on average (standard deviation {self.deviation:.3f})"
        ]
        cuts = [f"{self.threshold(n):.3f} ({n:g})" for n in (100, 10, 1, 0.1) if n <= self.total]
        lines.append(f"score above which so many random pairs are expected: {', '.join(cuts)}")
        if self.curve is not None:
            lines.append(f"probabilities from {self.curve.labels:,} labels")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain numbers and lists; `from_json` reads it back without loss."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """The calibration that `to_json` wrote."""
        try:
            fields = dict(data)
            if fields.pop("version") != VERSION:
                raise InputError(f"a calibration of version {data['version']}; this gemel reads {VERSION}")
            fields["tail"] = Tail(**fields["tail"])
            fields["rows"], fields["body"] = tuple(fields["rows"]), tuple(fields["body"])
            if fields["curve"] is not None:
                curve = fields["curve"]
                fields["curve"] = ProbabilityCurve(
                    tuple(curve["scores"]), tuple(curve["probabilities"]), curve["labels"]
                )
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise InputError(f"this is not a calibration that to_json wrote: {error}") from error


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def _stretch(metric: str) -> Stretch:
    stretch = METRICS[metric].stretch
    if stretch is None:
        able = ", ".join(name for name in METRICS if METRICS[name].stretch is not None)
        raise InputError(f"the metric {metric!r} cannot be calibrated. Use one of {able}")
    return stretch


def _random_scores(
    metric: Metric, vectors: Vectors, other: Vectors | None, count: int, rng: np.random.Generator
) -> Vectors:
    """At most about `count` scores of different random pairs: i < j within one array, any with `other`."""
    rows = metric.prepare(vectors)[rng.permutation(len(vectors))]
    columns = rows if other is None else metric.prepare(other)[rng.permutation(len(other))]
    parts: list[Vectors] = []
    scored = 0
    for top, left, diagonal in _tiles(len(rows), len(columns), within=other is None):
        table = metric.scores(rows[top : top + _TILE], columns[left : left + _TILE])
        parts.append(table[np.triu_indices(len(table), 1)] if diagonal else table.ravel())
        scored += len(parts[-1])
        if scored >= count:
            break
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def _tiles(rows: int, columns: int, *, within: bool) -> Iterator[tuple[int, int, bool]]:
    """(top, left, on the diagonal) of tiles that cover every pair once; each round visits all rows before the next."""
    down, across = -(-rows // _TILE), -(-columns // _TILE)
    if not within:
        for shift in range(across):
            yield from ((i * _TILE, (i + shift) % across * _TILE, False) for i in range(down))
        return
    # Shift 0, the diagonal, comes last: its tiles have half as many pairs.
    for shift in range(1, down // 2 + 1):
        half = down // 2 if 2 * shift == down else down
        yield from ((i * _TILE, (i + shift) % down * _TILE, False) for i in range(half))
    yield from ((i * _TILE, i * _TILE, True) for i in range(down))


@dataclass(frozen=True)
class Tail:
    """From `start` on (a stretched score), -log share = level + slope t + bend t² / 2, with t = score - `start`."""

    start: float
    level: float
    slope: float
    bend: float

    def minus_log_share(self, stretched: NDArray[np.float64]) -> NDArray[np.float64]:
        """-log of the share of random pairs above a stretched score."""
        t = np.maximum(stretched - self.start, 0)
        return self.level + self.slope * t + self.bend * t * t / 2

    def at(self, minus_log: float) -> float:
        """The stretched score above which exp(-minus_log) of random pairs lie; not below `start`."""
        rest = max(minus_log - self.level, 0.0)
        if self.bend * rest < 1e-9 * self.slope**2:
            return self.start + rest / self.slope
        return self.start + float((np.sqrt(self.slope**2 + 2 * self.bend * rest) - self.slope) / self.bend)


def _fit_tail(ordered: Vectors, stretch: Stretch) -> Tail | None:
    """The tail of ascending scores; None where they do not differ enough to show one."""
    count = len(ordered)
    last = min(max(_FIT_TO, _FEWEST_ABOVE / count), _FIT_FROM / 2)
    shares = np.geomspace(_FIT_FROM, last, _POINTS)
    positions = np.clip(np.round(count * (1 - shares)).astype(np.int64), 0, count - 1)
    y = stretch.forward(ordered[positions].astype(np.float64))
    if y[-1] - y[0] <= 1e-9:
        return None
    t, height = y - y[-1], -np.log(shares)
    bend, slope = _parabola(t, height)
    return Tail(float(y[-1]), float(height[-1]), slope, bend)


def _parabola(t: NDArray[np.float64], height: NDArray[np.float64]) -> tuple[float, float]:
    """Bend and slope at t = 0 by least squares; a line where the parabola would flatten, so that shares always fall."""
    half_bend, slope, _ = np.polyfit(t, height, 2)
    if half_bend <= 0 or slope <= 0:
        half_bend, slope = 0.0, np.polyfit(t, height, 1)[0]
    return 2 * float(half_bend), float(slope)


@dataclass(frozen=True)
class ProbabilityCurve:
    """A curve that never falls: straight between its knots, constant outside."""

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    labels: int
    """How many labels it was fitted on."""

    def at(self, score: float) -> float:
        return float(np.interp(score, self.scores, self.probabilities))


def _fit_probability(labels: Sequence[tuple[float, int]]) -> ProbabilityCurve:
    """The curve through (score, 0 or 1) pairs: in each block of scores, the share of ones."""
    scores, truths = _check_labels(labels)
    blocks: list[tuple[float, float, float, float]] = []  # ones, labels, first and last score
    for score in np.unique(scores):
        equal = truths[scores == score]
        block = (float(equal.sum()), float(len(equal)), float(score), float(score))
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            ones, count, first, _ = blocks.pop()
            block = (ones + block[0], count + block[1], first, block[3])
        blocks.append(block)
    knots = [(edge, ones / count) for ones, count, *edges in blocks for edge in dict.fromkeys(edges)]
    return ProbabilityCurve(tuple(edge for edge, _ in knots), tuple(p for _, p in knots), len(truths))


def _check_labels(labels: Sequence[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    try:
        table = np.asarray([(float(score), float(truth)) for score, truth in labels])
    except (TypeError, ValueError):
        raise InputError("labels must be pairs (score, 0 or 1)") from None
    ones = int((table[:, 1] == 1).sum()) if len(table) else 0
    if len(table) and (not np.isfinite(table[:, 0]).all() or not np.isin(table[:, 1], (0, 1)).all()):
        raise InputError("labels must be pairs (score, 0 or 1), with finite scores")
    if len(table) < FEWEST_LABELS or ones in (0, len(table)):
        raise InputError(
            f"a probability needs at least {FEWEST_LABELS} labels with both 0 and 1 among them; "
            f"got {len(table)}, of which {ones} are 1. Label more pairs, also some that do not belong together"
        )
    return table[:, 0], table[:, 1]


@dataclass(frozen=True)
class PrecisionThreshold(ShownResult):
    """The lowest score with a requested precision, by labels. Made by `precision_threshold`."""

    threshold: float
    target: float
    """The requested share of correct pairs."""
    precision: float
    """The estimated share of correct pairs among those at or above the threshold."""
    low: float
    high: float
    """Limits of the interval of 95 % around `precision`."""
    pairs: int
    """Pairs at or above the threshold."""
    labels: int
    """Labels at or above the threshold: what the estimate is made of."""
    curve: ProbabilityCurve
    """From the score of one pair to the probability that it is correct."""

    def summary(self) -> str:
        """A description in one line."""
        return (
            f"{self.pairs:,} pairs at {self.threshold:.3f} or above, of which {self.precision:.0%} are correct "
            f"(95 % interval {self.low:.0%} to {self.high:.0%}, from {self.labels:,} labels above it)"
        )


def precision_threshold(
    labels: Sequence[tuple[float, int]], scores: ArrayLike, target: float
) -> PrecisionThreshold:
    """The lowest score at or above which a share of at least `target` of the pairs is estimated to be correct.

    labels: (score, 0 or 1) of some pairs of this corpus, best spread evenly over its best pairs.
    scores: of all pairs of the corpus, at least of those as high as the lowest label.

    The estimate is the mean probability of all pairs above the score, so labels need not be as frequent as pairs are.
    Nothing below the lowest label is chosen: no label says what is there.
    """
    if not 0 < _finite("target", target) < 1:
        raise InputError(f"target must be a precision above 0 and below 1, such as 0.9; got {target}")
    label_scores, truths = _check_labels(labels)
    curve = _fit_probability(labels)
    ordered = np.sort(np.asarray(scores, dtype=np.float64).ravel())[::-1]
    ordered = ordered[ordered >= label_scores.min()]
    if not len(ordered):
        raise InputError(
            "no pair scores as high as the lowest label. Give labels and scores of the same corpus"
        )
    probabilities = np.interp(ordered, curve.scores, curve.probabilities)
    precision = np.cumsum(probabilities) / np.arange(1, len(ordered) + 1)
    ends = np.flatnonzero(np.append(ordered[1:] < ordered[:-1], True))  # equal scores stand or fall together
    enough = ends[precision[ends] >= target]
    if not len(enough):
        best = float(precision[ends].max())
        raise InputError(
            f"no score has a precision of {target:g}: by these {len(truths):,} labels it is {best:.2f} for the best "
            "pairs. Request less, label more of the best pairs, or use a cross-encoder or a model trained on your data"
        )
    last = int(enough[-1])
    low, high = _wilson(float(precision[last]), _effective_labels(label_scores, ordered[: last + 1]))
    return PrecisionThreshold(
        threshold=float(ordered[last]),
        target=float(target),
        precision=float(precision[last]),
        low=low,
        high=high,
        pairs=last + 1,
        labels=int((label_scores >= ordered[last]).sum()),
        curve=curve,
    )


def _effective_labels(label_scores: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """How many evenly spread labels these are worth, when each stands for the scores that it is nearest to (Kish)."""
    distinct, counts = np.unique(label_scores, return_counts=True)
    nearest = np.searchsorted((distinct[1:] + distinct[:-1]) / 2, scores)
    shares = np.bincount(nearest, minlength=len(distinct)) / len(scores)
    return 1 / float(np.sum(shares**2 / counts))


def _wilson(share: float, count: float) -> tuple[float, float]:
    """The limits of Wilson's interval of 95 % of a share of `count` independent labels."""
    z = 1.959964
    center = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(center - half, 0.0), min(center + half, 1.0)
