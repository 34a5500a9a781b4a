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
    """Classification: predict the label of a pair, softmax over W · (u, v, |u-v|); the head W is saved."""

    concat: str = "u,v,|u-v|"
    """Input of the head, from the vectors u and v: some of u, v, |u-v|, u*v, separated by commas."""
    bias: bool = False
    """Give the head a bias for each label, as sentence-transformers does; the paper has none."""

    needs = Needs(texts=("left", "right"), label="class")

    def __post_init__(self) -> None:
        parse_concat(self.concat)

    def weights(self, dim: int, classes: int) -> nn.Module:
        """W; without a bias, as in the paper, it does not learn the frequency of a label."""
        from torch import nn

        if classes < 2:
            raise InputError(f"classification needs two or more different labels, the data has {classes}")
        return nn.Linear(dim * len(parse_concat(self.concat)), classes, bias=self.bias)

    def saved_weights(self, weights: nn.Module | None) -> nn.Module | None:
        return weights

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch
        from torch.nn.functional import cross_entropy

        assert weights is not None, "the loop passes what `weights` made"
        u, v = vectors
        parts = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
        joined = torch.cat([parts[name] for name in parse_concat(self.concat)], dim=1)
        return cross_entropy(weights(joined), label)
