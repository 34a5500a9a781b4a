"""Triplets, given as columns (arXiv 1908.10084, section 3) or found in a batch of labelled texts (1703.07737)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gemel.training.objectives.base import Needs, Objective, check_one_of, check_positive, register
from gemel.training.objectives.compare import Distance, distance_rows, distance_table

if TYPE_CHECKING:
    from torch import Tensor, nn

Mining: TypeAlias = Literal["given", "all", "hard", "semi-hard"]


@register("triplet")
@dataclass(frozen=True)
class Triplet(Objective):
    """Triplet: the anchor must be nearer to the positive than to the negative, by a margin."""

    margin: float = 1.0
    """How much farther the negative must be; for cosine distances, which end at 2, try 0.3."""
    metric: Distance = "euclidean"
    """Distance: euclidean, cosine (1 - cosine) or manhattan."""
    mining: Mining = "given"
    """Triplets: given as columns; or out of a batch of texts with group labels: all that are not yet right, the
    hardest of each text, or for each pair of a group the nearest negative beyond the positive (semi-hard)."""

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)
        check_one_of("metric", self.metric, Distance)
        check_one_of("mining", self.mining, Mining)

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
        assert label is not None, "the data brings a group for each text"
        distance = distance_table(vectors[0], self.metric)
        same = label[:, None] == label[None, :]
        near = same.clone().fill_diagonal_(False)
        find = self._hardest if self.mining == "hard" else self._by_pairs
        losses = find(distance, near, ~same)
        # Without one triplet in the batch there is nothing to learn, but still a graph to walk back.
        return losses.mean() if len(losses) else distance.sum() * 0

    def _given(self, vectors: tuple[Tensor, ...]) -> Tensor:
        """Each further negative makes one more triplet of every row."""
        import torch

        anchor, positive, *negatives = vectors
        right = distance_rows(anchor, positive, self.metric)
        wrong = torch.stack([distance_rows(anchor, negative, self.metric) for negative in negatives])
        return torch.relu(right - wrong + self.margin).mean()

    def _hardest(self, distance: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """One loss for each text that has both: its farthest positive against its nearest negative."""
        import torch

        whole = near.any(1) & far.any(1)
        right = distance.masked_fill(~near, -torch.inf).amax(1)[whole]
        wrong = distance.masked_fill(~far, torch.inf).amin(1)[whole]
        return torch.relu(right - wrong + self.margin)

    def _by_pairs(self, distance: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Losses of the triplets over each pair of a group: (pairs, n) at once, never n * n * n."""
        import torch

        anchor, positive = torch.nonzero(near & far.any(1)[:, None], as_tuple=True)
        right = distance[anchor, positive][:, None]
        if self.mining == "all":
            losses = torch.relu(right - distance[anchor] + self.margin)[far[anchor]]
            return losses[losses > 0]  # the mean over those already right would fade as they grow in number
        beyond = far[anchor] & (distance[anchor] > right)
        nearest = distance[anchor].masked_fill(~beyond, torch.inf).amin(1)
        farthest = distance[anchor].masked_fill(~far[anchor], -torch.inf).amax(1)
        wrong = torch.where(
            beyond.any(1), nearest, farthest
        )  # no negative beyond: the one that comes closest
        return torch.relu(right[:, 0] - wrong + self.margin)
