"""Matryoshka (arXiv 2205.13147): any objective, also on the first numbers of the vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective
from gemel.training.objectives.compare import unit

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Matryoshka(Objective):
    """The mean of an objective over whole vectors and over their first `dims` numbers, for each of `dims`."""

    objective: Objective
    dims: tuple[int, ...]
    normalize: bool = False
    """The model scales its vectors to length 1; then encoding with `dim` does so after the cut, and so do we."""

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
        """Weights for each size, by the size's name; None if the objective has none."""
        from torch import nn

        made = {str(size): self.objective.weights(size, classes) for size in self._sizes(dim)}
        return None if None in made.values() else nn.ModuleDict(made)

    def kept(self, weights: nn.Module | None) -> nn.Module | None:
        """What the objective keeps of the weights for whole vectors."""
        return self.objective.kept(None if weights is None else weights[max(weights, key=int)])

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        whole = vectors[0].shape[1]
        losses = []
        for size in self._sizes(whole):
            cut = tuple(self._cut(column, size) for column in vectors)
            # A teacher's vector is cut as the student's; other labels say nothing of sizes.
            same = label is not None and self.needs.label == "vector" and label.shape[1] == whole
            wanted = self._cut(label, size) if same else label
            losses.append(self.objective(cut, wanted, None if weights is None else weights[str(size)]))
        return torch.stack(losses).mean()

    def _cut(self, vectors: Tensor, size: int) -> Tensor:
        if size == vectors.shape[1]:
            return vectors
        return unit(vectors[:, :size]) if self.normalize else vectors[:, :size]

    def _sizes(self, whole: int) -> list[int]:
        if max(self.dims) > whole:
            raise InputError(f"matryoshka sizes must be at most {whole}, the model's own, got {self.dims}")
        return sorted({*self.dims, whole}, reverse=True)
