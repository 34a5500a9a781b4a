"""SimCSE without labels (arXiv 2104.08821, section 3). With labels it is in-batch ranking with negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.training.objectives.base import Needs, Objective, check_positive, cosine_table, info_nce, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("simcse")
@dataclass(frozen=True)
class SimCSE(Objective):
    """SimCSE: a text must find itself, with another dropout, among all texts of the batch; needs no labels."""

    temperature: float = 0.05
    """Similarities are divided by it: the smaller, the more the hardest negatives count."""

    needs = Needs(texts=("text",), distinct=True, passes=2)

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        first, second = vectors
        return info_nce(cosine_table(first, second) / self.temperature)
