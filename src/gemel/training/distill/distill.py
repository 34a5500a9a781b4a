"""`gemel.distill`: from a teacher and texts to a smaller or faster model in a folder, with its model card."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
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
from gemel.training.distill.methods import distill_layers, distill_pairs, distill_vectors
from gemel.training.distill.static_table import distill_static
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
    neighbors: int = 3,
    random_pairs: int = 3,
    bridge: Bridge = "auto",
    layers: int | None = None,
    keep: Sequence[int] = (),
    dim: int | None = None,
    train: bool | None = None,
    teacher_vectors: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    resume: bool = False,
    options: TrainOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> DistillResult:
    """Make a smaller or faster model that agrees with `teacher`, in the folder `out`.

    how: "pairs" (the student learns the scores of pairs by the teacher, also a cross-encoder), "vectors" (the student
    learns the teacher's vectors, also of translations), "layers" (the teacher with fewer layers), "static" (a static
    model; needs no torch). None: chosen by the other arguments.
    teacher_vectors: a folder for the teacher's vectors; another student of the same texts need not compute them again.
    `changes` are fields of TrainOptions by name; `say` is called with each note on data and progress.
    """
    train_options = TrainOptions.of(options, changes, "distill")
    opened = open_teacher(teacher, threads=train_options.threads)
    method = how or likely_how(
        cross=isinstance(opened, CrossTeacher), student=student is not None, layers=bool(layers or keep)
    )
    request = DistillRequest(
        teacher=teacher,
        out=Path(out),
        how=method,
        data=data,
        student=student,
        objective=objective,
        neighbors=neighbors,
        random_pairs=random_pairs,
        bridge=bridge,
        layers=layers,
        keep=tuple(keep),
        dim=dim,
        train=train,
        teacher_vectors=None if teacher_vectors is None else Path(teacher_vectors),
        columns=columns,
        resume=resume,
    )
    job = DistillJob(request, train_options, opened, say)
    _check(job)
    job.open()
    try:
        result = _METHODS[method](job)
    except InputError:
        job.discard()
        raise
    _write_card(result)
    return result


_METHODS: Mapping[How, Callable[[DistillJob], DistillResult]] = {
    "pairs": distill_pairs,
    "vectors": distill_vectors,
    "layers": distill_layers,
    "static": distill_static,
}


def _check(job: DistillJob) -> None:
    """Refuse what would fail later, before the teacher starts to work."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "distill works in one process. Label the pairs with it, then train on them with gemel train"
        )
    if job.request.how != "pairs":
        job.encoder  # noqa: B018 - refuses a cross-encoder
    if job.request.trains and find_spec("torch") is None:
        raise MissingExtra("training a student", "torch", "train")


_BEFORE = "## Limits"  # the section after the scores in the card of a training run


def _write_card(result: DistillResult) -> None:
    """README.md: a section in the card of the training run, or a short card of its own."""
    path = result.folder / "README.md"
    if result.trained is None or not path.is_file():
        path.write_text(_card(result), encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if "## Distillation" not in text:
        path.write_text(text.replace(_BEFORE, f"{_section(result)}\n\n{_BEFORE}", 1), encoding="utf-8")


def _section(result: DistillResult) -> str:
    texts = f" on {result.learnt_from}" if result.learnt_from else ""
    lines = [f"Made from `{result.teacher.name}` by `gemel distill --how {result.how}`{texts}."]
    lines += [f"- {note}" for note in result.notes]
    lines += [f"- teacher {result.teacher.summary()}", f"- student {result.student.summary()}"]
    if result.after is not None:
        where = "held-out texts" if result.held_out else "its training texts"
        lines += ["", f"Agreement with the teacher, Spearman × 100, on pairs of {where}:", ""]
        lines += ["| | near pairs | random pairs | all |", "|---|---|---|---|"]
        for name, agreement in (("before", result.before), ("after", result.after)):
            if agreement is not None:
                cells = [agreement.near, agreement.random, agreement.all]
                shown = " | ".join("-" if cell is None else f"{cell:.1f}" for cell in cells)
                lines.append(f"| {name} | {shown} |")
    return "\n".join(["## Distillation", "", *lines])


def _card(result: DistillResult) -> str:
    name = json.dumps(result.folder.name, ensure_ascii=False)
    front = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    front += ["- sentence-similarity", "- sentence-transformers", "- gemel", "---"]
    use = f'```python\nimport gemel\n\nvectors = gemel.load({name}).encode(["A man plays a guitar."])\n```'
    what = f"A sentence encoder of {result.dim} dimensions, to be compared by cosine."
    return "\n\n".join(["\n".join(front), f"# {result.folder.name}", what, use, _section(result)]) + "\n"
