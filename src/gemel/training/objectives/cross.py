"""The objectives of cross-encoders. The vector of a pair is the output of the network: a number for each label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gemel.errors import InputError
from gemel.options import check_choice
from gemel.training.objectives.base import Needs, Objective, with_settings

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class CrossClassification(Objective):
    """Classification: predict the label of a pair, by cross-entropy over the labels."""

    name: ClassVar[str] = "classification"
    needs = Needs(texts=("left", "right"), label="class")

    def weights(self, dim: int, classes: int) -> None:
        """None of its own: the head belongs to the network."""
        if classes < 2:
            raise InputError(f"classification needs two or more different labels, the data has {classes}")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(vectors[0], label)


@dataclass(frozen=True)
class CrossRegression(Objective):
    """Regression: make the score of a pair equal its gold score, by cross-entropy or by squared error."""

    loss: str = "cross-entropy"
    """cross-entropy takes the gold score as a probability and learns fast; squared-error predicts the mean."""

    name: ClassVar[str] = "regression"
    needs = Needs(texts=("left", "right"), label="score")

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, ("cross-entropy", "squared-error"))

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

        assert label is not None, "the loop passes the scores"
        if bool((label < 0).any()):
            raise InputError(
                "a cross-encoder gives scores from 0 to 1, the data has some below 0. Rescale them"
            )
        logits = vectors[0][:, 0]
        if self.loss == "squared-error":
            return mse_loss(logits.sigmoid(), label)
        return binary_cross_entropy_with_logits(logits, label)


_OBJECTIVES: dict[str, type[Objective]] = {
    "classification": CrossClassification,
    "regression": CrossRegression,
}


def cross_objective(name: str, settings: Mapping[str, Any]) -> Objective:
    """The objective of a cross-encoder by name; a setting that is None is left at its default."""
    if name not in _OBJECTIVES:
        raise InputError(
            f"a cross-encoder cannot be trained with objective {name!r}. Use one of: {', '.join(_OBJECTIVES)}"
        )
    return with_settings(_OBJECTIVES[name], settings, f"objective {name!r} of a cross-encoder")
