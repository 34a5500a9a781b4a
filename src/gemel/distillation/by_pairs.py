"""Augmented SBERT: a teacher labels pairs of texts, and the student learns the scores (arXiv 2010.08240)."""

from __future__ import annotations

from collections.abc import Sequence

from gemel.distillation.agreement import Yardstick, split_rows, yardstick_of_pairs, yardstick_of_texts
from gemel.distillation.job import Job
from gemel.distillation.labelled_pairs import Labelled, Pair, label_pairs
from gemel.distillation.lesson import Lesson
from gemel.distillation.propose import propose_pairs
from gemel.distillation.read_data import read_pairs, read_texts
from gemel.distillation.result import Distilled
from gemel.distillation.teacher import BiTeacher
from gemel.model import Model, load
from gemel.train_models import run_request
from gemel.training.request import TrainRequest


def distill_pairs(job: Job) -> Distilled:
    """A student of its own, trained on the teacher's scores of pairs."""
    request = job.request
    assert request.student is not None
    student = load(request.student)
    given = read_pairs(request.data, request.columns, skip_bad=job.options.skip_bad)
    if given is None:
        pairs, yardstick = _proposed(job, student)
    else:
        job.note(*given.notes)
        split = split_rows(len(given), job.options.seed)
        yardstick = yardstick_of_pairs(job.teacher, given.rows, split, seed=job.options.seed)
        pairs = [(given.rows[row][0], given.rows[row][1]) for row in split.train]
    labelled = label_pairs(job.teacher, pairs, job.folder / "pairs.jsonl", progress=job.options.progress)
    job.note(_said(job, labelled))
    before = yardstick.measure(student, threads=job.options.threads)
    low = -1.0 if isinstance(job.teacher, BiTeacher) else 0.0
    columns = {"left": labelled.left, "right": labelled.right, "score": labelled.score.tolist()}
    training = TrainRequest(
        model=request.student,
        data=Lesson(f"pairs labelled by {job.teacher.name}", columns),
        objective=request.objective,
        out=request.out,
        score_range=(low, 1.0),
        resume=True,
    )
    trained = run_request(training, job.options, say=job.say)
    return job.finish(yardstick, before, f"{len(labelled):,} pairs", trained)


def _proposed(job: Job, student: Model) -> tuple[list[Pair], Yardstick]:
    """Pairs out of single texts. What is near, the teacher says if it has vectors, else the student."""
    request, options = job.request, job.options
    rows = read_texts(request.data, request.columns, skip_bad=options.skip_bad)
    job.note(*rows.notes)
    split = split_rows(len(rows), options.seed)
    near_by = None if isinstance(job.teacher, BiTeacher) else student
    yardstick = yardstick_of_texts(job.teacher, rows.rows, split, near_by=near_by, seed=options.seed)
    texts: Sequence[str] = list(dict.fromkeys(rows.rows[row][0] for row in split.train))
    finder = job.teacher.model if isinstance(job.teacher, BiTeacher) else student
    vectors = finder.encode(texts, on_long="truncate", threads=options.threads, progress=options.progress)
    found = propose_pairs(
        vectors,
        neighbours=request.neighbours,
        random=request.random_pairs,
        seed=options.seed,
        threads=options.threads,
    )
    job.note(
        f"{len(found.near):,} near and {len(found.random):,} random pairs of {len(texts):,} texts, "
        f"near by {finder.name}"
    )
    return [(texts[a], texts[b]) for a, b in found.all.tolist()], yardstick


def _said(job: Job, labelled: Labelled) -> str:
    low, high = float(labelled.score.min()), float(labelled.score.max())
    again = f"; {labelled.reused:,} were labelled already" if labelled.reused else ""
    return (
        f"{len(labelled):,} pairs labelled by {job.teacher.name} with {job.teacher.scale}, "
        f"from {low:.2f} to {high:.2f}, mean {float(labelled.score.mean()):.2f}{again}"
    )
