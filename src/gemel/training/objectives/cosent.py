"""CoSENT: the order of cosines, over all pairs of a batch at once (the ranking term of arXiv 2309.12871, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.training.objectives.base import (
    Needs,
    Objective,
    check_positive,
    cosine_rows,
    rank_by_score,
    register,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("cosent")
@dataclass(frozen=True)
class CoSent(Objective):
    """CoSENT: a pair with a higher gold score must have a higher cosine; only the order of scores counts."""

    temperature: float = 0.05
    """Similarities are divided by it: the smaller, the more the hardest negatives count."""

    needs = Needs(texts=("left", "right"), label="score")

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        assert label is not None, "the data has a score for each pair"
        left, right = vectors
        return rank_by_score(cosine_rows(left, right), label, self.temperature)
