"""`gemel.train`: a model by name, data in any form and an objective by name, to a trained model in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gemel.errors import InputError
from gemel.evaluation.run import score_tasks
from gemel.evaluation.scores import Scores
from gemel.training.card import model_card
from gemel.training.journal import FILE, read_journal
from gemel.training.options import TrainOptions
from gemel.training.parts import (
    data_notes,
    examined,
    kept_facts,
    open_accelerator,
    open_checkpoint,
    open_data,
    open_network,
    open_objective,
    open_tasks,
)
from gemel.training.request import Kind, TrainRequest
from gemel.training.run import Run, Trained
from gemel.training.summary import DataSet, Summary, measured
from gemel.training.watch import Collapse
from gemel.types import Encoder

if TYPE_CHECKING:
    from gemel.training.doctor import Diagnosis


def train(  # noqa: PLR0913 - each is a thing that the user names
    model: str | Path,
    data: Any,  # noqa: ANN401 - a file, several, a Hugging Face dataset or rows in memory
    *,
    objective: str,
    out: str | Path,
    kind: Kind = "twin",
    settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    score_range: tuple[float, float] | None = None,
    pooling: str | None = None,
    eval_data: str | Path | Sequence[str | Path] = (),
    eval_task: str = "sts",
    resume: bool = False,
    options: TrainOptions | None = None,
    **changes: Any,
) -> Trained:
    """Train `model` on `data` and save the best of it in the folder `out`.

    `changes` are fields of TrainOptions by name (`epochs=1, batch_size=32`); `settings` belong to the objective
    (`{"margin": 0.5}`). With `eval_data` the model is scored while it learns, and the best one is kept.
    """
    files = [eval_data] if isinstance(eval_data, str | Path) else list(eval_data)
    request = TrainRequest(
        model=model,
        data=data,
        objective=objective,
        out=Path(out),
        kind=kind,
        settings=settings,
        columns=columns,
        score_range=score_range,
        pooling=pooling,
        eval_data=files,
        eval_task=eval_task,
        resume=resume,
    )
    return run_request(request, _changed(options, changes))


def run_request(
    request: TrainRequest, options: TrainOptions, *, say: Callable[[str], None] = lambda line: None
) -> Trained:
    """Everything from the request to the model on disk; `say` is told what was decided and found, line by line."""
    accelerator = open_accelerator(options)
    checkpoint = open_checkpoint(request)
    objective = open_objective(request, options, checkpoint)
    if accelerator.is_main_process:  # the others may come when the first has begun to write
        _check_folder(request)
    examples = open_data(request, objective, options)
    tasks = open_tasks(request, rounds=0)  # an interval would cost more than the encoding
    network = open_network(request, checkpoint, examples, options, accelerator)
    classes = network.vocabulary if objective.needs.label == "tokens" else len(examples[0].classes)
    weights = objective.weights(network.dim, classes)
    if weights is not None:
        weights.to(accelerator.device)
    diagnosis = examined(request, objective, options, examples, tasks, network)
    for line in (*data_notes(examples), *(line for each in diagnosis for line in each.summary())):
        say(line)
    about = kept_facts(request, objective, checkpoint, examples)
    run = Run(network, objective, weights, examples, options, request.out, tasks, accelerator, about)
    if accelerator.is_main_process:
        _write_down(request, options, run.folder, diagnosis)
    try:
        result = run.start(resume=request.resume)
    except Collapse as collapse:
        if accelerator.is_main_process:
            _write_report(request, options, run, diagnosis, stopped=str(collapse))
        raise
    if accelerator.is_main_process:
        summary = _write_report(request, options, run, diagnosis, result)
        (request.out / "README.md").write_text(model_card(summary), encoding="utf-8")
    return result


def _changed(options: TrainOptions | None, changes: Mapping[str, Any]) -> TrainOptions:
    known = [field.name for field in fields(TrainOptions)]
    for name in changes:
        if name not in known:
            raise InputError(
                f"unknown option {name!r} of train. Known: {', '.join(known)}. "
                "What belongs to the objective goes into settings="
            )
    return replace(options or TrainOptions(), **changes)


def _check_folder(request: TrainRequest) -> None:
    """The folder is new, or holds the run that is to be resumed."""
    out = request.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a new folder for the model")
    if request.resume or not out.exists() or not any(out.iterdir()):
        return
    raise InputError(
        f"{out} exists and is not empty. Give a new folder, or go on with that run: resume=True (--resume)"
    )


def _write_down(
    request: TrainRequest, options: TrainOptions, folder: Path, diagnoses: Sequence[Diagnosis]
) -> None:
    """What was asked for and what the doctor said, beside the run."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = {field.name: _said(getattr(request, field.name)) for field in fields(request)}
    content = {"request": asked, "options": asdict(options)}
    (folder / "options.json").write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    said = [diagnosis.to_json() for diagnosis in diagnoses]
    (folder / "doctor.json").write_text(
        json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _said(value: object) -> object:
    """A part of the request as JSON; data that lies in memory is named, not copied."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str | Path | float) for each in value):
        return [str(each) if isinstance(each, Path) else each for each in value]
    if isinstance(value, Mapping) and all(
        isinstance(each, str | bool | int | float) for each in value.values()
    ):
        return dict(value)
    return f"{type(value).__name__} in memory"


def _write_report(
    request: TrainRequest,
    options: TrainOptions,
    run: Run,
    diagnoses: Sequence[Diagnosis],
    result: Trained | None = None,
    stopped: str = "",
) -> Summary:
    """The report of a run that ended, with the scores of the model that was saved, as inference gives them."""
    from gemel.training.report import write_report

    scores: list[Scores] = []
    if result is not None and request.eval_data:
        scores = list(score_tasks(open_tasks(request, rounds=None), _saved(request)))
    summary = Summary(
        name=request.out.name,
        base_model=str(request.model),
        objective=request.objective,
        settings=dict(request.settings or {}),
        options=asdict(options),
        data=tuple(DataSet.of(each) for each in run.examples),
        steps=run.loop.position.step,
        best_step=run.loop.position.best_step or None,
        measured=measured(scores, run.untrained),
        dim=run.network.dim,
        max_length=getattr(run.network, "max_length", None),
        labels=tuple(run.about.get("labels", ())),
        stopped=stopped or (result.stopped if result else ""),
        kind=request.kind,
    )
    said = [diagnosis.to_json() for diagnosis in diagnoses]
    write_report(run.folder, summary=summary, journal=read_journal(run.folder / FILE), doctor=said)
    return summary


def _saved(request: TrainRequest) -> Encoder:
    """The model on disk, without torch."""
    from gemel.cross_model import load_cross
    from gemel.model import load

    return cast("Encoder", load_cross(request.out)) if request.kind == "cross" else load(request.out)
