"""Margin-MSE (arXiv 2010.02666): a student learns the margins of a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from gemel.options import check_choice
from gemel.training.objectives.base import Needs, Objective, ScoreName, register, score_rows

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("margin-mse")
@dataclass(frozen=True)
class MarginMSE(Objective):
    """Margin-MSE: score(anchor, positive) - score(anchor, negative) must equal the teacher's difference."""

    score: ScoreName = "dot"
    """Score of two texts: cosine, dot product, or maxsim of the vectors of their tokens (late interaction)."""

    needs = Needs(texts=("anchor", "positive", "negative"), label="margin")

    def __post_init__(self) -> None:
        check_choice("score", self.score, get_args(ScoreName))

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import mse_loss

        anchor, positive, negative = vectors
        return mse_loss(
            score_rows(anchor, positive, self.score) - score_rows(anchor, negative, self.score), label
        )
