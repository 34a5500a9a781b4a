"""AnglE: the order of angles in complex space (arXiv 2309.12871, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.errors import InputError
from gemel.training.objectives.base import Needs, Objective, check_positive, rank_by_score, register, unit

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("angle")
@dataclass(frozen=True)
class Angle(Objective):
    """AnglE: as CoSENT, on angles between complex vectors, whose gradient does not vanish where a cosine is flat."""

    temperature: float = 0.05
    """Similarities are divided by it: the smaller, the more the hardest negatives count."""

    needs = Needs(texts=("left", "right"), label="score")

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        assert label is not None, "the data has a score for each pair"
        left, right = vectors
        return rank_by_score(complex_angle(left, right), label, self.temperature)


def complex_angle(left: Tensor, right: Tensor) -> Tensor:
    """(n,): |Re + Im| of the quotient z/w at modulus 1, summed over the dimensions; equal vectors have 1.

    The first half of a vector is the real part of a complex one, the second the imaginary part: z = a + bi,
    w = c + di, z/w · |w|/|z| = ((ac + bd) + (bc - ad)i) / (|z| |w|). The paper writes this as a difference of
    angles; it grows with similarity, and is ranked that way.
    """
    if left.shape[1] % 2:
        raise InputError(
            f"objective 'angle' splits a vector into two halves, got {left.shape[1]} numbers. "
            "Use an even number of dimensions, or the objective 'cosent'"
        )
    (a, b), (c, d) = unit(left).chunk(2, dim=1), unit(right).chunk(2, dim=1)
    return (a * c + b * d + b * c - a * d).sum(1).abs()
