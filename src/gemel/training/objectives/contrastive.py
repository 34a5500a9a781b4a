"""Contrastive loss of pairs (Hadsell, Chopra and LeCun, CVPR 2006), and its form on the hard pairs of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from gemel.options import check_choice
from gemel.training.objectives.base import Distance, Needs, Objective, check_positive, distance_rows, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("contrastive")
@dataclass(frozen=True)
class Contrastive(Objective):
    """Contrastive: pairs labeled 1 are pulled together, pairs labeled 0 are pushed apart up to a margin."""

    margin: float = 0.5
    """Distance beyond which a pair labeled 0 has no loss."""
    metric: Distance = "cosine"
    """Distance: cosine (1 - cosine), euclidean or manhattan."""
    online: bool = False
    """Only the hard pairs of a batch count: 1s that are farther than the nearest 0, 0s nearer than the farthest 1."""

    needs = Needs(texts=("left", "right"), label="binary")

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)
        check_choice("metric", self.metric, get_args(Distance))

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        assert label is not None, "the data has 0 or 1 for each pair"
        left, right = vectors
        distance = distance_rows(left, right, self.metric)
        alike = label == 1
        losses = (distance**2).where(alike, (self.margin - distance).relu() ** 2) / 2
        if self.online:
            losses = losses[_hard(distance.detach(), alike)]
        return losses.mean() if len(losses) else distance.sum() * 0


def _hard(distance: Tensor, alike: Tensor) -> Tensor:
    """(n,) bool; in a batch of only 1s or only 0s all count."""
    if alike.all() or not alike.any():
        return alike.new_ones(len(alike))
    nearest, farthest = distance[~alike].amin(), distance[alike].amax()
    return (distance > nearest).where(alike, distance < farthest)
