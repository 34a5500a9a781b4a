"""In-batch ranking (arXiv 1705.00652), with hard negatives, and two ways to leave out false negatives.

The guard compares vectors of the model that is trained; a guide is another model that finds them (GISTEmbed, arXiv
2402.16829).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from gemel.errors import InputError
from gemel.options import check_choice
from gemel.training.objectives.base import (
    LabelKind,
    Needs,
    Objective,
    ScoreName,
    check_positive,
    cosine_rows,
    cosine_table,
    info_nce,
    register,
    score_table,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("in-batch-ranking")
@dataclass(frozen=True)
class InBatchRanking(Objective):
    """In-batch ranking (InfoNCE, multiple negatives): the positives of the other rows are the negatives of a row."""

    temperature: float = 0.05
    """Similarities are divided by it: the smaller, the more the hardest negatives count."""
    score: ScoreName = "cosine"
    """Score of two texts: cosine, dot product, or maxsim of the vectors of their tokens (late interaction)."""
    symmetric: bool = False
    """Also find the anchor of each positive among all anchors; the loss is the mean of both."""
    guard: float | None = None
    """False-negative guard: a text whose cosine with the row's positive is above this is not used as a negative of the
    row, unless it is the row's own negative. None: no guard."""
    guide: str | None = None
    """A model's name or folder: a text that it finds nearer to the anchor than the row's positive is not used as a
    negative of the row (GISTEmbed). None: no guide."""
    guide_margin: float = 0.0
    """A text is left out already when the guide's cosine is this much below that of the positive."""

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        check_choice("score", self.score, get_args(ScoreName))
        if self.guard is not None and not -1 < self.guard <= 1:
            raise InputError(f"guard must be a cosine above -1, up to 1, got {self.guard!r}. Try 0.9")
        if not 0 <= self.guide_margin <= 2:
            raise InputError(
                f"guide_margin must be a difference of cosines from 0 to 2, got {self.guide_margin!r}"
            )
        if self.score == "maxsim" and (self.symmetric or self.guard is not None):
            raise InputError(
                "symmetric and guard compare documents with one another, and maxsim compares queries with documents. "
                "Leave them out; to leave out false negatives use a guide"
            )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        label: LabelKind | None = None if self.guide is None else "guide"
        return Needs(texts=("anchor", "positive"), label=label, more="negative", distinct=True)

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        anchor, positive, *negatives = vectors
        false = None if label is None else self._false_negatives(label)
        loss = self._rank(anchor, positive, torch.cat([positive, *negatives]), false)
        if not self.symmetric:
            return loss
        back = None if label is None else self._false_negatives(torch.stack([label[:, 1], label[:, 0]], 1))
        return (loss + self._rank(positive, anchor, anchor, back)) / 2

    def _rank(self, queries: Tensor, positives: Tensor, candidates: Tensor, false: Tensor | None) -> Tensor:
        """`candidates` starts with `positives`; the negatives follow, in blocks of one per row."""
        import torch

        scores = score_table(queries, candidates, self.score) / self.temperature
        if self.guard is not None:
            rows = len(queries)
            own = torch.eye(rows, dtype=torch.bool, device=queries.device).repeat(1, len(candidates) // rows)
            alike = cosine_table(positives.detach(), candidates.detach()) > self.guard
            scores = scores.masked_fill(alike & ~own, -torch.inf)
        if false is not None:
            scores = scores.masked_fill(false, -torch.inf)
        return info_nce(scores)

    def _false_negatives(self, guide: Tensor) -> Tensor:
        """(n, candidates) True where the guide's vectors (n, columns, d) say that a candidate is no negative."""
        anchor, positive = guide[:, 0], guide[:, 1]
        candidates = (
            guide[:, 1:].transpose(0, 1).flatten(0, 1)
        )  # the positives, then each column of negatives
        limit = cosine_rows(anchor, positive) - self.guide_margin
        false = cosine_table(anchor, candidates) > limit[:, None]
        false.diagonal().fill_(False)  # the positive itself
        return false
