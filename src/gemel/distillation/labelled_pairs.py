"""Pairs with the teacher's scores in a file, a JSON object a line: what is there is never asked for again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemel.distillation.teacher import Teacher
from gemel.errors import InputError, WorkError
from gemel.progress import Progress
from gemel.types import Vectors

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
                stream.flush()
                os.fsync(stream.fileno())
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
