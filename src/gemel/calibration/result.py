"""What a score means on this corpus: how many random pairs reach it, and how likely a pair with it belongs together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gemel.calibration.isotonic import ProbabilityCurve, fit_probability
from gemel.calibration.tail import Tail, stretch_of
from gemel.errors import InputError

VERSION = 1


@dataclass(frozen=True)
class Calibration:
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
        """The part of random pairs with at least this score, 0 to 1."""
        stretched = stretch_of(self.metric).out(np.asarray(_finite("score", score)))
        if stretched >= self.tail.start:
            return math.exp(-float(self.tail.minus_log_share(stretched)))
        below = np.linspace(0, 1 - math.exp(-self.tail.level), len(self.body))
        return 1 - float(np.interp(score, self.body, below))

    def percentile(self, score: float) -> float:
        """The per cent of random pairs below this score."""
        return 100 * (1 - self.share(score))

    def expected_false(self, score: float, n: int | None = None) -> float:
        """How many random pairs reach this score among all pairs of the corpus, or of a corpus of `n` texts."""
        if n is not None and n < 2:
            raise InputError(f"n must be at least 2 texts, got {n}")
        return self.share(score) * (self.total if n is None else n * (n - 1) / 2)

    def threshold(self, expected_false: float = 1) -> float:
        """The score that so many random pairs of this corpus are expected to reach. No labels needed."""
        wanted = _finite("expected_false", expected_false)
        if not 0 < wanted <= self.total:
            raise InputError(
                f"expected_false must be above 0 and at most {self.total:,}, the pairs of the corpus; got {wanted}"
            )
        minus_log = math.log(self.total / wanted)
        if minus_log >= self.tail.level:
            return float(stretch_of(self.metric).back(np.asarray(self.tail.at(minus_log))))
        below = np.linspace(0, 1 - math.exp(-self.tail.level), len(self.body))
        return float(np.interp(1 - wanted / self.total, below, self.body))

    def with_labels(self, labels: Sequence[tuple[float, int]]) -> Calibration:
        """The same, with a curve from scores to probabilities fitted on (score, 0 or 1) pairs."""
        return replace(self, curve=fit_probability(labels))

    def probability(self, score: float) -> float:
        """How likely a pair with this score belongs together, as the labels say. Never falls as the score rises."""
        if self.curve is None:
            raise InputError("no labels were given. Use calibrate(vectors, labels=[(score, 0 or 1), ...])")
        return self.curve.at(_finite("score", score))

    def summary(self) -> str:
        """Two or three lines for a person."""
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
        """Plain numbers and lists; `from_json` reads them back without loss."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """What `to_json` wrote."""
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
            raise InputError(f"this is no calibration that to_json wrote: {error}") from error


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)
