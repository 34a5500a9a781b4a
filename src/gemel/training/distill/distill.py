"""`gemel.distill`: a teacher by name and texts in any form, to a smaller model in a folder.

README.md of a student: a section in the card that training wrote, or a short card of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemel.errors import InputError, MissingExtra
from gemel.training.distill.job import (
    Bridge,
    DistillJob,
    DistillRequest,
    DistillResult,
    How,
    PairObjective,
    likely_how,
)
from gemel.training.distill.teacher import CrossTeacher, open_teacher
from gemel.training.options import TrainOptions


def distill(  # noqa: PLR0913 - each is a thing that the user names
    teacher: str | Path,
    data: Any = None,  # noqa: ANN401 - a file, several, a Hugging Face dataset or columns in memory
    *,
    out: str | Path,
    how: How | None = None,
    student: str | Path | None = None,
    objective: PairObjective = "regression",
    neighbours: int = 3,
    random_pairs: int = 3,
    bridge: Bridge = "auto",
    layers: int | None = None,
    keep: Sequence[int] = (),
    dim: int | None = None,
    train: bool | None = None,
    columns: Mapping[str, str] | None = None,
    resume: bool = False,
    options: TrainOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> DistillResult:
    """Make a smaller or faster model that agrees with `teacher`, in the folder `out`.

    how: "pairs" (the teacher, also a cross-encoder, labels pairs for the student to learn), "vectors" (the student
    learns the teacher's vectors, of translations too), "layers" (the teacher with fewer layers), "static" (a table of
    token vectors; needs no torch). None: as the other arguments say.
    `changes` are fields of TrainOptions by name; `say` is told what is decided and found.
    """
    opened = open_teacher(teacher, threads=_changed(options, changes).threads)
    way = how or likely_how(
        cross=isinstance(opened, CrossTeacher), student=student is not None, layers=bool(layers or keep)
    )
    request = DistillRequest(
        teacher=teacher,
        out=Path(out),
        how=way,
        data=data,
        student=student,
        objective=objective,
        neighbours=neighbours,
        random_pairs=random_pairs,
        bridge=bridge,
        layers=layers,
        keep=tuple(keep),
        dim=dim,
        train=train,
        columns=columns,
        resume=resume,
    )
    job = DistillJob(request, _changed(options, changes), opened, say)
    _check(job)
    job.open()
    try:
        return _way(way)(job)
    except InputError:
        job.forget()
        raise


def _way(how: How) -> Callable[[DistillJob], DistillResult]:
    """The function of this way; the ways that train are imported only when asked for."""
    if how == "static":
        from gemel.training.distill.by_static import distill_static as found
    elif how == "layers":
        from gemel.training.distill.by_layers import distill_layers as found
    elif how == "vectors":
        from gemel.training.distill.by_vectors import distill_vectors as found
    else:
        from gemel.training.distill.by_pairs import distill_pairs as found
    return found


def _check(job: DistillJob) -> None:
    """What would fail after the teacher's work is refused before it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "distill works in one process. Label the pairs with it, then train on them with gemel train"
        )
    if job.request.how != "pairs":
        job.encoder  # noqa: B018 - refuses a cross-encoder
    if job.request.trains and find_spec("torch") is None:
        raise MissingExtra("training a student", "torch", "train")


def _changed(options: TrainOptions | None, changes: Mapping[str, Any]) -> TrainOptions:
    known = [field.name for field in fields(TrainOptions)]
    for name in changes:
        if name not in known:
            raise InputError(f"unknown option {name!r} of distill. Known, of training: {', '.join(known)}")
    return replace(options or TrainOptions(), **changes)


_BEFORE = "## Limits"  # the section that a card of training has after its scores


def describe(found: DistillResult) -> None:
    """Write it."""
    path = found.folder / "README.md"
    if found.trained is None or not path.is_file():
        path.write_text(_card(found), encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if "## Distillation" not in text:
        path.write_text(text.replace(_BEFORE, f"{_section(found)}\n\n{_BEFORE}", 1), encoding="utf-8")


def _section(found: DistillResult) -> str:
    learnt = f" on {found.learnt_from}" if found.learnt_from else ""
    lines = [f"Made from `{found.teacher.name}` by `gemel distill --how {found.how}`{learnt}."]
    lines += [f"- {note}" for note in found.notes]
    lines += [f"- teacher {found.teacher.summary()}", f"- student {found.student.summary()}"]
    if found.after is not None:
        where = "texts that were held back" if found.held_out else "texts that it learnt from"
        lines += ["", f"Agreement with the teacher, Spearman × 100, on pairs of {where}:", ""]
        lines += ["| | near pairs | random pairs | all |", "|---|---|---|---|"]
        for name, agreement in (("before", found.before), ("after", found.after)):
            if agreement is not None:
                cells = [agreement.near, agreement.random, agreement.all]
                shown = " | ".join("-" if cell is None else f"{cell:.1f}" for cell in cells)
                lines.append(f"| {name} | {shown} |")
    return "\n".join(["## Distillation", "", *lines])


def _card(found: DistillResult) -> str:
    name = json.dumps(found.folder.name, ensure_ascii=False)
    front = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    front += ["- sentence-similarity", "- sentence-transformers", "- gemel", "---"]
    use = f'```python\nimport gemel\n\nvectors = gemel.load({name}).encode(["A man plays a guitar."])\n```'
    what = f"A sentence encoder of {found.dim} dimensions, to be compared by cosine."
    return "\n\n".join(["\n".join(front), f"# {found.folder.name}", what, use, _section(found)]) + "\n"
