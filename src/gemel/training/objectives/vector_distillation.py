"""Distillation of vectors, also into other languages (arXiv 2004.09813)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("vector-distillation")
@dataclass(frozen=True)
class VectorDistillation(Objective):
    """Vector distillation: a text and its translations get the vector that a teacher gives the text."""

    needs = Needs(texts=("text",), label="vector", more="translation")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        assert label is not None, "the data has a teacher's vector for each text"
        if vectors[0].shape[1] != label.shape[1]:
            raise InputError(
                f"the model's vectors have {vectors[0].shape[1]} dimensions, the teacher's {label.shape[1]}. "
                "Use a teacher with the model's size, or truncate its vectors (encode with dim=...)"
            )
        return (torch.stack(vectors) - label).square().mean()
