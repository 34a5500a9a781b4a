"""Regression of the cosine, the objective of Sentence-BERT (arXiv 1908.10084, section 3) on STS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.training.objectives.base import Needs, Objective, cosine_rows, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("regression")
@dataclass(frozen=True)
class Regression(Objective):
    """Regression: make the cosine of a pair equal its gold score, by mean squared error."""

    needs = Needs(texts=("left", "right"), label="score")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import mse_loss

        left, right = vectors
        return mse_loss(cosine_rows(left, right), label)
