"""Soft labels for data whose 0s are hard negatives: similar texts with another meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective, check_share, cosine_rows, register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("soft-label")
@dataclass(frozen=True)
class SoftLabel(Objective):
    """Soft label: the cosine of a 1 is 1, of a 0 (a hard negative) a floor, of texts of different rows 0."""

    floor: float = 0.3
    """The target cosine of a pair labeled 0, which is still more similar than two random texts."""
    random: int = 1
    """Random pairs per row: its left text with the right texts of the next rows of the batch, target 0."""

    needs = Needs(texts=("left", "right"), label="binary", distinct=True)

    def __post_init__(self) -> None:
        check_share("floor", self.floor)
        if self.random < 0:
            raise InputError(f"random must be 0 or more pairs for each row, got {self.random}")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        assert label is not None, "the data has 0 or 1 for each pair"
        left, right = vectors
        wanted = torch.where(label == 1, 1.0, self.floor)
        errors = [cosine_rows(left, right) - wanted]
        # The order of a batch is random already, so that shifting it needs no random numbers.
        for shift in range(1, min(self.random, len(left) - 1) + 1):
            errors.append(cosine_rows(left, right.roll(-shift, 0)))
        return torch.cat(errors).square().mean()
