"""The student learns the teacher's vectors, of the texts and of their translations.

Fewer dimensions for a teacher's vectors: the widest directions, chosen so that cosines change least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.head import Dense
from gemel.checkpoint.write import write_checkpoint
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.training.distill.agreement import AgreementSplit, AgreementTest, split_rows, yardstick_of_texts
from gemel.training.distill.job import DistillJob, DistillResult, InMemoryDataset, read_texts
from gemel.training.options import TrainOptions
from gemel.training.run import TrainResult
from gemel.training.train import TrainRequest, run_request
from gemel.types import Vectors
from gemel.vectors.similarity import normalize

_BRIDGE_TEXTS = 10_000  # that a dense layer is fitted on

_CROWDED = 0.7  # mean cosine of random texts

_TABLE_RATE = 1e-3  # a table of token vectors learns nothing visible at the rate of a transformer


def distill_vectors(job: DistillJob) -> DistillResult:
    """A student of its own, trained on the teacher's vectors."""
    encoder = job.encoder
    assert job.request.student is not None
    student = load(job.request.student)
    rows = read_texts(job.request.data, job.request.columns, skip_bad=job.options.skip_bad)
    job.note(*rows.notes)
    split = split_rows(len(rows), job.options.seed)
    yardstick = yardstick_of_texts(encoder, rows.rows, split, near_by=None, seed=job.options.seed)
    return learn_vectors(job, student, rows.rows, split, yardstick)


def learn_vectors(
    job: DistillJob,
    student: Model,
    rows: Sequence[tuple[str, ...]],
    split: AgreementSplit,
    yardstick: AgreementTest,
) -> DistillResult:
    """From a student that is there to one that has learnt, in the folder."""
    chosen = [rows[row] for row in split.train]
    targets = job.vectors([row[0] for row in chosen])
    if yardstick.crowding > _CROWDED:
        job.note(
            f"warning: two random texts have a cosine of {yardstick.crowding:.2f} for the teacher. A student learns "
            "what they all share before it learns to tell them apart: see gemel postprocess"
        )
    start, targets = _bridge(job, student, [row[0] for row in chosen], targets)
    before = yardstick.measure(load(start), threads=job.options.threads)
    trained = _train(job, start, chosen, targets)
    more = len(chosen[0]) - 1
    said = f"{len(chosen):,} texts" + (f" and {more} translations of each" if more else "")
    return job.finish(yardstick, before, said, trained)


def _train(job: DistillJob, start: Path, rows: Sequence[tuple[str, ...]], targets: Vectors) -> TrainResult:
    columns = list(zip(*rows, strict=True))
    translations = {f"translation{number}": column for number, column in enumerate(columns[1:], 1)}
    data = InMemoryDataset(
        f"vectors of {job.teacher.name}", {"text": columns[0], "vector": targets, **translations}
    )
    request = TrainRequest(
        model=start, data=data, objective="vector-distillation", out=job.request.out, resume=True
    )
    return run_request(request, _options(job, start), say=job.say)


def _options(job: DistillJob, start: Path) -> TrainOptions:
    if load(start).checkpoint.kind != "static" or job.options.learning_rate != TrainOptions().learning_rate:
        return job.options
    job.note(f"learning_rate {_TABLE_RATE:g}: the default is too small for a table of token vectors")
    return replace(job.options, learning_rate=_TABLE_RATE)


def _bridge(job: DistillJob, student: Model, texts: Sequence[str], targets: Vectors) -> tuple[Path, Vectors]:
    """The student and the vectors that it shall learn, in one size and both of length 1 or not."""
    unit, bridge = job.encoder.model.checkpoint.normalize, _how(job, student.dim, targets.shape[1])
    checkpoint, dense = student.checkpoint, list(student.checkpoint.dense)
    if bridge == "pca":
        found = widest_directions(targets, student.dim)
        targets = found.apply(targets)
        job.note(
            f"the teacher's {found.weight.shape[1]} dimensions reduced to {student.dim} by PCA, "
            f"which keep {found.kept:.1%} of their length"
        )
    elif bridge == "dense":
        dense.append(_layer(student, texts, targets))
        job.note(f"a dense layer takes the student from {student.dim} to {targets.shape[1]} dimensions")
    ready = normalize(targets) if unit else targets
    if bridge != "dense" and checkpoint.normalize == unit:
        return checkpoint.folder, ready
    return _start(job, checkpoint, dense, unit), ready


def _how(job: DistillJob, student: int, teacher: int) -> str:
    asked = job.request.bridge
    if asked == "pca" and student > teacher:
        raise InputError(
            f"the student has {student} dimensions, the teacher {teacher}: there is nothing to reduce. "
            "Use bridge='dense' (--bridge dense)"
        )
    if asked != "auto":
        return asked if asked == "dense" or student < teacher else "none"
    return "none" if student == teacher else "pca" if student < teacher else "dense"


def _layer(student: Model, texts: Sequence[str], targets: Vectors) -> Dense:
    """The linear layer that brings the student's vectors nearest to the teacher's: where training starts."""
    vectors = student.encode(texts[:_BRIDGE_TEXTS], normalize=False, on_long="truncate").astype(np.float64)
    wanted = targets[:_BRIDGE_TEXTS].astype(np.float64)
    middle, aim = vectors.mean(axis=0), wanted.mean(axis=0)
    centred = vectors - middle
    squares = centred.T @ centred
    ridge = 1e-3 * np.trace(squares) / len(squares) + 1e-12
    weight = np.linalg.solve(squares + ridge * np.eye(len(squares)), centred.T @ (wanted - aim)).T
    bias = aim - weight @ middle
    return Dense(weight.astype(np.float32), bias.astype(np.float32), "identity")


def _start(job: DistillJob, checkpoint: Checkpoint, dense: Sequence[Dense], unit: bool) -> Path:
    folder = job.folder / Path(checkpoint.name).name
    if folder.is_dir():  # an earlier run has made it, and training goes on from there
        return folder
    return write_checkpoint(checkpoint, folder, dense=dense, normalize=unit)


@dataclass(frozen=True, eq=False)
class Projection:
    """x -> weight @ x."""

    weight: Vectors
    """(dim, in) float32, rows of length 1 at right angles."""
    kept: float
    """Share of the squared length of the vectors that is left."""

    def apply(self, vectors: Vectors) -> Vectors:
        """(n, in) -> (n, dim)"""
        return np.asarray(vectors @ self.weight.T, dtype=np.float32)


def widest_directions(vectors: Vectors, dim: int) -> Projection:
    """The `dim` directions that hold most of the vectors' length.

    Nothing is centred: a cosine is measured from the origin, and the mean may be what tells two kinds of text apart.
    """
    exact = vectors.astype(np.float64)
    spread, columns = np.linalg.eigh(exact.T @ exact)
    directions = columns.T[::-1][:dim]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    total = max(float(spread.sum()), 1e-30)
    return Projection(
        (directions * signs[:, None]).astype(np.float32), float(spread[::-1][:dim].sum() / total)
    )
