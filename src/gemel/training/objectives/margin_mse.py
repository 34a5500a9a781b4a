"""Margin-MSE (arXiv 2010.02666): a student learns the margins of a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from gemel.options import check_choice
from gemel.training.objectives.base import Needs, Objective, register, unit

if TYPE_CHECKING:
    from torch import Tensor, nn

Likeness: TypeAlias = Literal["dot", "cosine"]


@register("margin-mse")
@dataclass(frozen=True)
class MarginMSE(Objective):
    """Margin-MSE: score(anchor, positive) - score(anchor, negative) must equal the teacher's difference."""

    score: Likeness = "dot"
    """Score of two vectors: dot product, or cosine if the teacher's scores are cosines."""

    needs = Needs(texts=("anchor", "positive", "negative"), label="margin")

    def __post_init__(self) -> None:
        check_choice("score", self.score, get_args(Likeness))

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import mse_loss

        anchor, positive, negative = vectors if self.score == "dot" else map(unit, vectors)
        return mse_loss((anchor * positive).sum(1) - (anchor * negative).sum(1), label)
