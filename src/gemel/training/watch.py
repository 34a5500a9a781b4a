"""Checks during training: when to stop a run, when to warn, and how the vectors are distributed.

`Watch` looks at every step and every evaluation. It stops a run with the exception `Collapse`, whose message says what
to try; warnings are returned as sentences, each once per run. Alignment and uniformity are those of arXiv 2005.10242.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, WorkError
from gemel.texts.whitening import isotropy
from gemel.vectors.similarity import checked, normalize, row_scores

SAME = 0.98
"""Mean cosine of random texts above which a model that started below `CROWDED` has collapsed."""

CROWDED = 0.9

LEFT = 0.05
"""A model that started above `CROWDED` has collapsed when this share of its distance to 1 is left."""

RANK = 0.1
"""Share of the effective rank at the start below which the vectors have collapsed to a few directions."""

NARROW = 0.25
"""The same for a warning: classification at a high learning rate had this in reproduction/, from a third of the run."""

SCORE = 0.8
"""Share of the untrained model's score below which an evaluation gives a warning."""

CONSTANT = 50
"""Steps in a row with exactly the same loss, or without a gradient, that are no coincidence."""

OVERFLOWS = 30
"""Steps in a row that fp16 may lose: its loss scale starts at 65,536 and halves each time."""

RECENT, EARLIER = 20, 100
"""The median loss of the most recent steps is compared with that of the steps before them."""

EXPLODED = 10.0

_CALMER = "Lower learning_rate, raise warmup, or set clip to 1"


class Collapse(WorkError):
    """The run cannot continue; the message says what was measured and what to try."""

    code = "GEM-503"


@dataclass(frozen=True)
class Geometry:
    """How a set of vectors is distributed; all measures are of directions, as a cosine is."""

    mean_cosine: float
    """Of all pairs of two different texts."""
    uniformity: float
    """log of the mean of exp(-2 |x - y|²) over all pairs: 0 when all are equal, near -4 when spread evenly."""
    alignment: float | None
    """Mean |x - y|² of texts that belong together, 0 to 4; None without such pairs."""
    effective_rank: float
    """exp of the entropy of the variances (Roy and Vetterli, 2007): directions in use."""

    @property
    def closeness(self) -> float | None:
        """Alignment over the mean |x - y|² of all pairs: below 1, positives are nearer than random texts are."""
        random = 2 * (1 - self.mean_cosine)
        return None if self.alignment is None or random <= 0 else self.alignment / random

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TrainingHealth(Geometry):
    """The vectors of the sampled texts at one evaluation, and the score of the model."""

    step: int
    score: float | None


def health(step: int, vectors: ArrayLike, pairs: ArrayLike | None, score: float | None) -> TrainingHealth:
    """The health of a model, by the vectors of a few hundred distinct texts.

    `pairs` (m, 2) are positions of texts that belong together. Vectors with NaN raise `Collapse`.
    """
    if not np.isfinite(np.asarray(vectors)).all():
        raise Collapse(_not_finite("the vectors of the sampled texts are", step))
    return TrainingHealth(**geometry(vectors, pairs).to_json(), step=step, score=score)


class Watch:
    """Checks every step and every evaluation of one run.

    `first` is the health of the untrained model; None for a cross-encoder. With `force` only NaN and infinity stop the
    run, everything else becomes a warning. With `fp16` single gradients may overflow: the loss scaler skips such steps.
    `groups`: how many groups of texts the objective separates; None: it does not separate groups.
    """

    def __init__(
        self,
        *,
        first: TrainingHealth | None,
        force: bool = False,
        fp16: bool = False,
        groups: int | None = None,
    ) -> None:
        self._first, self._force, self._fp16, self._groups = first, force, fp16, groups
        self._losses: deque[float] = deque(maxlen=RECENT + EARLIER)
        self._start: float | None = None
        self._same = self._no_gradient = self._overflows = 0
        self._warned: set[str] = set()

    def step(self, step: int, loss: float, gradient_norm: float | None = None) -> list[str]:
        """New warnings; raises `Collapse`. Call it before the optimizer changes the weights: then they are still good.

        `gradient_norm` is that before clipping; None if it was not computed.
        """
        if not self._finite(step, loss, gradient_norm):
            return []
        self._same = self._same + 1 if self._losses and loss == self._losses[-1] else 0
        self._no_gradient = self._no_gradient + 1 if gradient_norm == 0 else 0
        self._losses.append(loss)
        if self._start is None and len(self._losses) == RECENT:
            self._start = median(self._losses)
        return self._constant(step, loss) + self._exploded(step)

    def evaluated(self, now: TrainingHealth) -> list[str]:
        """New warnings at an evaluation; raises `Collapse`."""
        assert self._first is not None, "a network without vectors has no health"
        first = self._first
        return (
            self._same_vectors(first, now) + self._few_directions(first, now) + self._score_fell(first, now)
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, as JSON, so that a resumed run is checked like an uninterrupted one."""
        return {
            "losses": list(self._losses),
            "start": self._start,
            "same": self._same,
            "no_gradient": self._no_gradient,
            "overflows": self._overflows,
            "said": sorted(self._warned),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._losses.clear()
        self._losses.extend(state["losses"])
        self._start, self._warned = state["start"], set(state["said"])
        self._same, self._no_gradient = state["same"], state["no_gradient"]
        self._overflows = state["overflows"]

    def _finite(self, step: int, loss: float, gradient_norm: float | None) -> bool:
        """False for a step that the loss scaler of fp16 will skip."""
        bad_loss = not math.isfinite(loss)
        if not bad_loss and (gradient_norm is None or math.isfinite(gradient_norm)):
            self._overflows = 0
            return True
        self._overflows += 1
        if self._fp16 and self._overflows <= OVERFLOWS:
            return False
        raise Collapse(_not_finite("the loss is" if bad_loss else "the gradient is", step))

    def _constant(self, step: int, loss: float) -> list[str]:
        if self._same < CONSTANT - 1 and self._no_gradient < CONSTANT:
            return []
        if loss == 0:
            return self._warn(
                "zero",
                f"the loss has been 0 for {CONSTANT} steps (step {step}): nothing is left to learn from these rows. "
                "Use harder negatives or a larger margin, or stop here",
            )
        if self._no_gradient >= CONSTANT:
            return self._stop(
                "gradient",
                f"the gradient has been 0 for {CONSTANT} steps (step {step}, loss {loss:.4g}): nothing is learned. "
                "Freeze fewer layers, or check that the labels differ",
            )
        return self._stop(
            "constant",
            f"the loss has been exactly {loss:.6g} for {CONSTANT} steps (step {step}): the vectors no longer depend on "
            f"the text, or no weight moves. {_CALMER}, or freeze fewer layers",
        )

    def _exploded(self, step: int) -> list[str]:
        if self._start is None or len(self._losses) < RECENT + EARLIER // 2:
            return []
        losses = list(self._losses)
        now, earlier = median(losses[-RECENT:]), sorted(losses[:-RECENT])
        before, high = median(earlier), earlier[len(earlier) * 9 // 10]
        # Near zero a hard batch may be ten times the median and harmless: the loss must also be above that of the
        # start, and above the highest tenth of the earlier steps.
        if before <= 0 or now <= max(EXPLODED * before, 2 * self._start, high):
            return []
        return self._stop(
            "exploded",
            f"the loss rose to {now:.4g} by step {step}, {now / before:.0f} times what it was ({before:.4g}; at the "
            f"start {self._start:.4g}): the run diverges. {_CALMER}",
        )

    def _same_vectors(self, first: TrainingHealth, now: TrainingHealth) -> list[str]:
        start = first.mean_cosine
        limit = SAME if start < CROWDED else 1 - LEFT * (1 - start)
        if now.mean_cosine <= limit:
            return []
        message = (
            f"every text gets nearly the same vector at step {now.step}: the mean cosine of random texts is "
            f"{now.mean_cosine:.3f}, at the start it was {start:.3f}"
        )
        if _scores_better(first, now):
            return self._warn(
                "same", f"{message}; the score is not lower ({now.score:.2f}), so training continues"
            )
        return self._stop("same", f"{message}. {_CALMER}; more or harder negatives in a batch also help")

    def _few_directions(self, first: TrainingHealth, now: TrainingHealth) -> list[str]:
        start = first.effective_rank
        # Groups lie in one direction fewer than there are groups when they are separated: to use so few is the aim.
        aim = start if self._groups is None else min(start, self._groups - 1)
        if now.effective_rank >= NARROW * aim:
            return []
        message = (
            f"the vectors use few directions at step {now.step}: an effective rank of {now.effective_rank:.1f}, "
            f"at the start it was {start:.1f}"
        )
        grouped = _positives_nearer(first, now)
        if now.effective_rank >= RANK * aim:
            # A score above that of the untrained model is no excuse: lower rates have a better one (reproduction/).
            hint = f"{message}. Cosines then distinguish less; a lower learning_rate keeps more directions"
            return [] if grouped else self._warn("narrow", hint)
        if grouped or _scores_better(first, now):
            return self._warn(
                "rank", f"{message}; positives are still nearer than other texts, so training continues"
            )
        return self._stop("rank", f"{message}. {_CALMER}; check that the labels are not all the same")

    def _score_fell(self, first: TrainingHealth, now: TrainingHealth) -> list[str]:
        before = first.score
        if before is None or now.score is None or before <= 0 or now.score >= SCORE * before:
            return []
        return self._warn(
            "score",
            f"the score is {now.score:.2f} at step {now.step}, far below the {before:.2f} of the untrained model. "
            "Check that the training data is like the evaluation data, or lower learning_rate",
        )

    def _stop(self, rule: str, sentence: str) -> list[str]:
        if not self._force:
            raise Collapse(sentence)
        return self._warn(rule, f"{sentence}. Training continues because of force")

    def _warn(self, rule: str, sentence: str) -> list[str]:
        if rule in self._warned:
            return []
        self._warned.add(rule)
        return [sentence]


def _scores_better(first: TrainingHealth, now: TrainingHealth) -> bool:
    return now.score is not None and first.score is not None and now.score >= first.score


def _positives_nearer(first: TrainingHealth, now: TrainingHealth) -> bool:
    """Training on a few groups should use few directions: then positives become much nearer than other texts."""
    before, after = first.closeness, now.closeness
    return before is not None and after is not None and after < before / 2


def _not_finite(what: str, step: int) -> str:
    return (
        f"{what} NaN or infinity at step {step}: lower learning_rate, raise warmup, or set mixed_precision to no (bf16 "
        "overflows less than fp16)"
    )


BINS = 80
"""Of a histogram of cosines from -1 to 1, always the same, so that histograms can be compared."""


def geometry(vectors: ArrayLike, pairs: ArrayLike | None = None) -> Geometry:
    """The measures of two or more vectors, over all pairs; a few hundred vectors of distinct texts are enough."""
    measured = isotropy(vectors)
    return Geometry(
        measured.mean_cosine, uniformity(vectors), alignment(vectors, pairs), measured.effective_rank
    )


def uniformity(vectors: ArrayLike) -> float:
    """Lower is more even; see `Geometry.uniformity`."""
    cosines = _cosines(vectors)
    return float(np.log(np.exp(-4 * (1 - cosines)).mean()))  # |x - y|² = 2 - 2 cos for unit vectors


def alignment(vectors: ArrayLike, pairs: ArrayLike | None) -> float | None:
    """Lower is nearer; None without pairs."""
    together = _together(vectors, pairs)
    return None if together is None else float((2 - 2 * together).mean())


@dataclass(frozen=True)
class SimilaritySample:
    """Cosines in `BINS` equal bins from -1 to 1, as counts."""

    random: tuple[int, ...]
    """Of two different texts that are not labeled as belonging together."""
    positive: tuple[int, ...] | None
    """Of two texts that belong together; None if the data does not say."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SimilaritySample:
        """The inverse of `to_json`; other fields are ignored."""
        positive = content.get("positive")
        return cls(tuple(content["random"]), None if positive is None else tuple(positive))


def similarities(vectors: ArrayLike, pairs: ArrayLike | None = None) -> SimilaritySample:
    """The histograms of all pairs of different rows that are not in `pairs`, and of those that are."""
    together = _together(vectors, pairs)
    random = _counts(_cosines(vectors))
    if together is None:
        return SimilaritySample(tuple(random.tolist()), None)
    both = np.unique(np.sort(np.asarray(pairs, dtype=np.int64), axis=1), axis=0)
    both = both[both[:, 0] != both[:, 1]]
    inside = _counts(row_scores(*(checked(vectors, "vectors")[side] for side in both.T)))
    # A score at the edge of a bin may round to the other side in the two computations.
    others = np.maximum(random - inside, 0)
    return SimilaritySample(tuple(others.tolist()), tuple(_counts(together).tolist()))


def _cosines(vectors: ArrayLike) -> NDArray[np.float64]:
    """Of every two different rows, once."""
    unit = normalize(vectors).astype(np.float64)
    if len(unit) < 2:
        raise InputError(f"cosines of pairs need at least 2 vectors, got {len(unit)}")
    return np.asarray((unit @ unit.T)[np.triu_indices(len(unit), k=1)])


def _together(vectors: ArrayLike, pairs: ArrayLike | None) -> NDArray[np.float64] | None:
    """The cosine of each pair; None without pairs."""
    if pairs is None:
        return None
    positions, rows = np.asarray(pairs, dtype=np.int64), checked(vectors, "vectors")
    if positions.size == 0:
        return None
    if positions.ndim != 2 or positions.shape[1] != 2 or positions.min() < 0 or positions.max() >= len(rows):
        raise InputError(
            f"pairs must have two positions per row, each from 0 to {len(rows) - 1}, got shape {positions.shape}"
        )
    return row_scores(rows[positions[:, 0]], rows[positions[:, 1]]).astype(np.float64)


def _counts(cosines: NDArray[Any]) -> NDArray[np.int64]:
    return np.histogram(cosines.clip(-1, 1), bins=BINS, range=(-1, 1))[0].astype(np.int64)
