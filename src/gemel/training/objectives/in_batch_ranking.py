"""In-batch ranking (arXiv 1705.00652), with hard negatives and a guard against false negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective, check_positive, cosine_table, info_nce, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("in-batch-ranking")
@dataclass(frozen=True)
class InBatchRanking(Objective):
    """In-batch ranking (InfoNCE, multiple negatives): the positives of the other rows are the negatives of a row."""

    temperature: float = 0.05
    """Similarities are divided by it: the smaller, the more the hardest negatives count."""
    symmetric: bool = False
    """Also find the anchor of each positive among all anchors; the loss is the mean of both."""
    guard: float | None = None
    """False-negative guard: a text whose cosine with the row's positive is above this is not used as a negative of the
    row, unless it is the row's own negative. None: no guard."""

    needs = Needs(texts=("anchor", "positive"), more="negative", distinct=True)

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        if self.guard is not None and not -1 < self.guard <= 1:
            raise InputError(f"guard must be a cosine above -1, up to 1, got {self.guard!r}. Try 0.9")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        anchor, positive, *negatives = vectors
        loss = self._rank(anchor, positive, torch.cat([positive, *negatives]))
        return (loss + self._rank(positive, anchor, anchor)) / 2 if self.symmetric else loss

    def _rank(self, queries: Tensor, positives: Tensor, candidates: Tensor) -> Tensor:
        """`candidates` starts with `positives`; the negatives follow, in blocks of one per row."""
        import torch

        scores = cosine_table(queries, candidates) / self.temperature
        if self.guard is not None:
            rows = len(queries)
            own = torch.eye(rows, dtype=torch.bool, device=queries.device).repeat(1, len(candidates) // rows)
            alike = cosine_table(positives.detach(), candidates.detach()) > self.guard
            scores = scores.masked_fill(alike & ~own, -torch.inf)
        return info_nce(scores)
