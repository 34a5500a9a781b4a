"""Triplets, given as columns (arXiv 1908.10084, section 3) or mined from a batch of labeled texts (1703.07737)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from gemel.options import check_choice
from gemel.training.objectives.base import (
    Distance,
    Needs,
    Objective,
    check_positive,
    distance_rows,
    distance_table,
    register,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

Mining: TypeAlias = Literal["given", "all", "hard", "semi-hard"]


@register("triplet")
@dataclass(frozen=True)
class Triplet(Objective):
    """Triplet: the anchor must be nearer to the positive than to the negative, by a margin."""

    margin: float = 1.0
    """How much farther the negative must be; for cosine distances, which are at most 2, try 0.3."""
    metric: Distance = "euclidean"
    """Distance: euclidean, cosine (1 - cosine) or manhattan."""
    mining: Mining = "given"
    """Triplets: given as columns; or mined from a batch of texts with group labels: all that have a loss, the hardest
    of each text, or for each pair of a group the nearest negative beyond the positive (semi-hard)."""

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)
        check_choice("metric", self.metric, get_args(Distance))
        check_choice("mining", self.mining, get_args(Mining))

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        if self.mining == "given":
            return Needs(texts=("anchor", "positive", "negative"), more="negative")
        return Needs(texts=("text",), label="group")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        if self.mining == "given":
            return self._given(vectors)
        assert label is not None, "the data has a group for each text"
        distance = distance_table(vectors[0], self.metric)
        same = label[:, None] == label[None, :]
        near = same.clone().fill_diagonal_(False)
        find = self._hardest if self.mining == "hard" else self._by_pairs
        losses = find(distance, near, ~same)
        # A batch without a triplet has loss 0, but needs a graph for its backward pass.
        return losses.mean() if len(losses) else distance.sum() * 0

    def _given(self, vectors: tuple[Tensor, ...]) -> Tensor:
        """Each further negative column makes one more triplet per row."""
        import torch

        anchor, positive, *negatives = vectors
        right = distance_rows(anchor, positive, self.metric)
        wrong = torch.stack([distance_rows(anchor, negative, self.metric) for negative in negatives])
        return torch.relu(right - wrong + self.margin).mean()

    def _hardest(self, distance: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """One loss for each text with positives and negatives: the farthest positive against the nearest negative."""
        both = near.any(1) & far.any(1)
        right = distance.masked_fill(~near, -inf).amax(1)[both]
        wrong = distance.masked_fill(~far, inf).amin(1)[both]
        return (right - wrong + self.margin).relu()

    def _by_pairs(self, distance: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Losses of the triplets of each pair of a group, by a table of (pairs, n), not (n, n, n)."""
        anchor, positive = (near & far.any(1)[:, None]).nonzero(as_tuple=True)
        right = distance[anchor, positive][:, None]
        if self.mining == "all":
            losses = (right - distance[anchor] + self.margin).relu()[far[anchor]]
            return losses[losses > 0]  # else the loss would fade as more triplets are right
        beyond = far[anchor] & (distance[anchor] > right)
        nearest = distance[anchor].masked_fill(~beyond, inf).amin(1)
        farthest = distance[anchor].masked_fill(~far[anchor], -inf).amax(1)
        wrong = nearest.where(beyond.any(1), farthest)  # without one beyond: the farthest negative
        return (right[:, 0] - wrong + self.margin).relu()
