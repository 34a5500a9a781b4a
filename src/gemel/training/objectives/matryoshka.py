"""Matryoshka (arXiv 2205.13147): any objective, also on truncated vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective, unit

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Matryoshka(Objective):
    """The mean of an objective over full vectors and over vectors truncated to each of `dims`."""

    objective: Objective
    dims: tuple[int, ...]
    normalize: bool = False
    """The model normalizes its vectors; encoding with `dim` then normalizes after truncation, and so does this."""

    def __post_init__(self) -> None:
        if not self.dims or min(self.dims) < 1:
            raise InputError(f"matryoshka needs sizes of at least 1, got {self.dims}")

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.objective.name

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return self.objective.needs

    def weights(self, dim: int, classes: int) -> nn.Module | None:
        """Weights for each size, by the size; None if the objective has none."""
        from torch import nn

        made = {str(size): self.objective.weights(size, classes) for size in self._sizes(dim)}
        return None if None in made.values() else nn.ModuleDict(made)

    def saved_weights(self, weights: nn.Module | None) -> nn.Module | None:
        """What the objective saves of the weights for full vectors."""
        return self.objective.saved_weights(None if weights is None else weights[max(weights, key=int)])

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        full = vectors[0].shape[1]
        losses = []
        for size in self._sizes(full):
            truncated = tuple(self._truncate(column, size) for column in vectors)
            # A teacher's vector is truncated like the student's; other labels do not depend on the size.
            same = label is not None and self.needs.label == "vector" and label.shape[1] == full
            wanted = self._truncate(label, size) if same else label
            losses.append(self.objective(truncated, wanted, None if weights is None else weights[str(size)]))
        return torch.stack(losses).mean()

    def _truncate(self, vectors: Tensor, size: int) -> Tensor:
        if size == vectors.shape[1]:
            return vectors
        return unit(vectors[:, :size]) if self.normalize else vectors[:, :size]

    def _sizes(self, full: int) -> list[int]:
        if max(self.dims) > full:
            raise InputError(
                f"matryoshka sizes must be at most {full}, the model's dimensions, got {self.dims}"
            )
        return sorted({*self.dims, full}, reverse=True)
