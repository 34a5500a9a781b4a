"""Distillation by pairs (Augmented SBERT, arXiv 2010.08240): a teacher scores pairs, and the student learns the scores.

The scored pairs are stored in a file, one JSON object per line, and are not scored again when a run is resumed.
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
from gemel.training.distill.job import DistillJob, DistillResult, InMemoryDataset, read_pairs, read_texts
from gemel.training.distill.teacher import (
    AgreementTest,
    BiTeacher,
    Teacher,
    agreement_on_pairs,
    agreement_on_texts,
    propose_pairs,
    split_rows,
)
from gemel.training.train import TrainRequest, run_request
from gemel.types import Vectors


def distill_pairs(job: DistillJob) -> DistillResult:
    """Train another model on the teacher's scores of pairs."""
    request = job.request
    assert request.student is not None
    student = load(request.student)
    given = read_pairs(request.data, request.columns, skip_bad=job.options.skip_bad)
    if given is None:
        pairs, test = _proposed(job, student)
    else:
        job.note(*given.notes)
        split = split_rows(len(given), job.options.seed)
        test = agreement_on_pairs(job.teacher, given.rows, split, seed=job.options.seed)
        pairs = [(given.rows[row][0], given.rows[row][1]) for row in split.train]
    labeled = label_pairs(job.teacher, pairs, job.folder / "pairs.jsonl", progress=job.options.progress)
    job.note(_summary(job, labeled))
    before = test.measure(student, threads=job.options.threads)
    low = -1.0 if isinstance(job.teacher, BiTeacher) else 0.0
    columns = {"left": labeled.left, "right": labeled.right, "score": labeled.score.tolist()}
    training = TrainRequest(
        model=request.student,
        data=InMemoryDataset(f"pairs labeled by {job.teacher.name}", columns),
        objective=request.objective,
        out=request.out,
        score_range=(low, 1.0),
        resume=True,
    )
    trained = run_request(training, job.options, say=job.say)
    return job.finish(test, before, f"{len(labeled):,} pairs", trained)


def _proposed(job: DistillJob, student: Model) -> tuple[list[Pair], AgreementTest]:
    """Near and random pairs of single texts; the teacher finds the near ones if it has vectors, else the student."""
    request, options = job.request, job.options
    rows = read_texts(request.data, request.columns, skip_bad=options.skip_bad)
    job.note(*rows.notes)
    split = split_rows(len(rows), options.seed)
    near_by = None if isinstance(job.teacher, BiTeacher) else student
    test = agreement_on_texts(job.teacher, rows.rows, split, near_by=near_by, seed=options.seed)
    texts: Sequence[str] = list(dict.fromkeys(rows.rows[row][0] for row in split.train))
    finder = job.teacher.model if isinstance(job.teacher, BiTeacher) else student
    vectors = finder.encode(texts, on_long="truncate", threads=options.threads, progress=options.progress)
    proposed = propose_pairs(
        vectors,
        neighbors=request.neighbors,
        random=request.random_pairs,
        seed=options.seed,
        threads=options.threads,
    )
    job.note(
        f"{len(proposed.near):,} near and {len(proposed.random):,} random pairs of {len(texts):,} texts, "
        f"near by {finder.name}"
    )
    return [(texts[a], texts[b]) for a, b in proposed.all.tolist()], test


def _summary(job: DistillJob, labeled: TeacherLabels) -> str:
    low, high = float(labeled.score.min()), float(labeled.score.max())
    again = f"; {labeled.reused:,} of them from an earlier run" if labeled.reused else ""
    return (
        f"{len(labeled):,} pairs labeled by {job.teacher.name} with {job.teacher.scale}, "
        f"from {low:.2f} to {high:.2f}, mean {float(labeled.score.mean()):.2f}{again}"
    )


_BLOCK = 1024  # pairs that are written at once

Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class TeacherLabels:
    """Pairs and their scores."""

    left: list[str]
    right: list[str]
    score: Vectors
    reused: int = 0
    """The number of pairs that were in the file already."""

    def __len__(self) -> int:
        return len(self.left)


def label_pairs(
    teacher: Teacher, pairs: Sequence[Pair], path: Path, *, progress: bool = False
) -> TeacherLabels:
    """The score of each pair, from the file at `path` or else from the teacher, which is then added to the file."""
    scored = _read(path, teacher)
    missing = [pair for pair in dict.fromkeys(pairs) if pair not in scored]
    reused = len(set(pairs)) - len(missing)
    line = Progress(len(missing), "pairs labeled", shown=progress and bool(missing))
    try:
        with path.open("a", encoding="utf-8") as stream:
            for start in range(0, len(missing), _BLOCK):
                block = missing[start : start + _BLOCK]
                scores = teacher.scores([pair[0] for pair in block], [pair[1] for pair in block])
                for pair, score in zip(block, scores.tolist(), strict=True):
                    scored[pair] = score
                    row = {"left": pair[0], "right": pair[1], "score": score}
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                sync_open(stream)
                line.add(len(block))
    except OSError as error:
        raise WorkError(f"cannot write the labeled pairs to {path}: {error.strerror or error}") from error
    line.close()
    left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return TeacherLabels(left, right, np.array([scored[pair] for pair in pairs], dtype=np.float32), reused)


def _read(path: Path, teacher: Teacher) -> dict[Pair, float]:
    """The scores of an earlier run, without a last line that was cut off. A file beside it identifies the teacher."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".teacher.json")
    if beside.exists():
        former = json.loads(beside.read_text(encoding="utf-8"))
        if former.get("identity") != teacher.identity:
            raise InputError(
                f"{path} was labeled by {former.get('teacher')}, not by {teacher.name}. Use another folder"
            )
    else:
        facts = {"teacher": teacher.name, "identity": teacher.identity, "score": teacher.scale}
        beside.write_text(json.dumps(facts, ensure_ascii=False) + "\n", encoding="utf-8")
    raw = path.read_bytes() if path.exists() else b""
    complete = raw[: raw.rfind(b"\n") + 1]
    if len(complete) < len(raw):
        os.truncate(path, len(complete))
    try:
        rows = [json.loads(line) for line in complete.splitlines()]
        return {(row["left"], row["right"]): float(row["score"]) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not have labeled pairs ({error!r}). Delete it, or use another folder"
        ) from error
