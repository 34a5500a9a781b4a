"""Distillation of scores: the student ranks the documents of a query as the teacher does (RocketQAv2, 2110.07367)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from gemel.errors import InputError
from gemel.options import check_choice
from gemel.training.objectives.base import Needs, Objective, ScoreName, check_positive, register, score_rows

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("score-distillation")
@dataclass(frozen=True)
class ScoreDistillation(Objective):
    """Score distillation: the scores of a row's documents, as probabilities, must equal the teacher's (KL)."""

    score: ScoreName = "dot"
    """Score of two texts: cosine, dot product, or maxsim of the vectors of their tokens (late interaction)."""
    temperature: float = 1.0
    """Similarities are divided by it: the smaller, the more the hardest negatives count."""
    teacher_temperature: float = 1.0
    """The teacher's scores are divided by it before they become probabilities; 0.05 for cosines."""

    needs = Needs(texts=("anchor", "positive", "negative"), label="scores", more="negative")

    def __post_init__(self) -> None:
        check_choice("score", self.score, get_args(ScoreName))
        check_positive("temperature", self.temperature)
        check_positive("teacher_temperature", self.teacher_temperature)

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch
        from torch.nn.functional import kl_div, log_softmax

        assert label is not None, "the data has the teacher's scores"
        anchor, *documents = vectors
        if label.shape[1] != len(documents):
            raise InputError(
                f"a row has {len(documents)} documents and {label.shape[1]} scores of the teacher. Give one score for "
                "the positive and each negative, in the order of the columns"
            )
        scores = torch.stack([score_rows(anchor, each, self.score) for each in documents], dim=1)
        student = log_softmax(scores / self.temperature, dim=1)
        teacher = log_softmax(label / self.teacher_temperature, dim=1)
        return kl_div(student, teacher, reduction="batchmean", log_target=True)
