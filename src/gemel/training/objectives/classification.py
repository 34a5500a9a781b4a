"""Classification of pairs, the objective of Sentence-BERT (arXiv 1908.10084, section 3) on NLI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.checkpoint.head import parse_concat
from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("classification")
@dataclass(frozen=True)
class Classification(Objective):
    """Classification: name the relation of a pair, softmax over W · (u, v, |u-v|); the head W is kept."""

    concat: str = "u,v,|u-v|"
    """What the head sees of the vectors u and v: parts out of u, v, |u-v|, u*v, joined by commas."""
    bias: bool = False
    """Give the head a bias for each label, as sentence-transformers does; the paper has none."""

    needs = Needs(texts=("left", "right"), label="class")

    def __post_init__(self) -> None:
        parse_concat(self.concat)

    def weights(self, dim: int, classes: int) -> nn.Module:
        """W; without a bias, as in the paper, a label's share of the data is not learned beside the vectors."""
        from torch import nn

        if classes < 2:
            raise InputError(f"classification needs two or more different labels, the data has {classes}")
        return nn.Linear(dim * len(parse_concat(self.concat)), classes, bias=self.bias)

    def kept(self, weights: nn.Module | None) -> nn.Module | None:
        return weights

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch
        from torch.nn.functional import cross_entropy

        assert weights is not None, "the loop brings what `weights` made"
        u, v = vectors
        parts = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
        joined = torch.cat([parts[name] for name in parse_concat(self.concat)], dim=1)
        return cross_entropy(weights(joined), label)
