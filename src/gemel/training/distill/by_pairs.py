"""Augmented SBERT: a teacher labels pairs of texts, and the student learns the scores (arXiv 2010.08240).

Pairs with the teacher's scores in a file, a JSON object a line: what is there is never asked for again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.files.atomic import sync_open
from gemel.model import Model, load
from gemel.terminal import Progress
from gemel.training.distill.agreement import (
    AgreementTest,
    propose_pairs,
    split_rows,
    yardstick_of_pairs,
    yardstick_of_texts,
)
from gemel.training.distill.job import DistillJob, DistillResult, InMemoryDataset, read_pairs, read_texts
from gemel.training.distill.teacher import BiTeacher, Teacher
from gemel.training.train import TrainRequest, run_request
from gemel.types import Vectors


def distill_pairs(job: DistillJob) -> DistillResult:
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
        data=InMemoryDataset(f"pairs labelled by {job.teacher.name}", columns),
        objective=request.objective,
        out=request.out,
        score_range=(low, 1.0),
        resume=True,
    )
    trained = run_request(training, job.options, say=job.say)
    return job.finish(yardstick, before, f"{len(labelled):,} pairs", trained)


def _proposed(job: DistillJob, student: Model) -> tuple[list[Pair], AgreementTest]:
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


def _said(job: DistillJob, labelled: Labelled) -> str:
    low, high = float(labelled.score.min()), float(labelled.score.max())
    again = f"; {labelled.reused:,} were labelled already" if labelled.reused else ""
    return (
        f"{len(labelled):,} pairs labelled by {job.teacher.name} with {job.teacher.scale}, "
        f"from {low:.2f} to {high:.2f}, mean {float(labelled.score.mean()):.2f}{again}"
    )


_BLOCK = 1024  # pairs: what a kill costs

Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Pairs and their scores."""

    left: list[str]
    right: list[str]
    score: Vectors
    reused: int = 0
    """Of them, those that the file had already."""

    def __len__(self) -> int:
        return len(self.left)


def label_pairs(teacher: Teacher, pairs: Sequence[Pair], path: Path, *, progress: bool = False) -> Labelled:
    """The score of each pair, from the file at `path` or from the teacher, who then adds it to the file."""
    known = _read(path, teacher)
    missing = [pair for pair in dict.fromkeys(pairs) if pair not in known]
    reused = len(set(pairs)) - len(missing)
    line = Progress(len(missing), "pairs labelled", shown=progress and bool(missing))
    try:
        with path.open("a", encoding="utf-8") as stream:
            for start in range(0, len(missing), _BLOCK):
                block = missing[start : start + _BLOCK]
                scores = teacher.scores([pair[0] for pair in block], [pair[1] for pair in block])
                for pair, score in zip(block, scores.tolist(), strict=True):
                    known[pair] = score
                    row = {"left": pair[0], "right": pair[1], "score": score}
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                sync_open(stream)
                line.add(len(block))
    except OSError as error:
        raise WorkError(f"cannot write the labelled pairs to {path}: {error.strerror or error}") from error
    line.close()
    left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Labelled(left, right, np.array([known[pair] for pair in pairs], dtype=np.float32), reused)


def _read(path: Path, teacher: Teacher) -> dict[Pair, float]:
    """What an earlier run has labelled, without a line that a kill cut off. A file beside it names the teacher."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".teacher.json")
    if beside.exists():
        said = json.loads(beside.read_text(encoding="utf-8"))
        if said.get("identity") != teacher.identity:
            raise InputError(
                f"{path} was labelled by {said.get('teacher')}, not by {teacher.name}. Take another folder"
            )
    else:
        said = {"teacher": teacher.name, "identity": teacher.identity, "score": teacher.scale}
        beside.write_text(json.dumps(said, ensure_ascii=False) + "\n", encoding="utf-8")
    raw = path.read_bytes() if path.exists() else b""
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        os.truncate(path, len(whole))
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
        return {(row["left"], row["right"]): float(row["score"]) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not hold labelled pairs ({error!r}). Delete it, or take another folder"
        ) from error
