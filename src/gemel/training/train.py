"""`gemel.train`: a model by name, data in any form and an objective by name, to a trained model in a folder.

What to train, on what, and into which folder; how is said by TrainOptions.

The parts of a run, opened from what a user named: checkpoint, objective, data, network, evaluations.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model
from gemel.encoder.batches import usable_cores
from gemel.encoder.pooling import POOLINGS
from gemel.errors import InputError, MissingExtra
from gemel.evaluation.evaluate import score_tasks
from gemel.evaluation.task import Scores, Task, load_task
from gemel.files.isolation import disable_usage_reports
from gemel.training.bi_encoder import BiEncoderNetwork
from gemel.training.card import DataSet, Summary, measured, model_card
from gemel.training.cross_encoder import CrossNetwork, read_start
from gemel.training.data import open_all
from gemel.training.data.store import Examples
from gemel.training.doctor import Diagnosis, examine
from gemel.training.journal import FILE, check_trackers, read_journal
from gemel.training.low_precision import prepare_low_precision
from gemel.training.network import TrainableNetwork
from gemel.training.objectives.base import Objective, make_objective
from gemel.training.objectives.cross import cross_objective
from gemel.training.objectives.matryoshka import Matryoshka
from gemel.training.options import TrainOptions
from gemel.training.run import TrainingRun, TrainResult
from gemel.training.watch import Collapse
from gemel.types import Encoder

if TYPE_CHECKING:
    from accelerate import Accelerator

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
) -> TrainResult:
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
) -> TrainResult:
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
    run = TrainingRun(network, objective, weights, examples, options, request.out, tasks, accelerator, about)
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
    run: TrainingRun,
    diagnoses: Sequence[Diagnosis],
    result: TrainResult | None = None,
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


Kind = Literal["twin", "cross"]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train, on what, and into which folder; how is said by TrainOptions."""

    model: str | Path
    data: Any
    objective: str
    out: Path
    kind: Kind = "twin"
    settings: Mapping[str, Any] | None = None
    """Of the objective."""
    columns: Mapping[str, str] | None = None
    """Role to column, where the names do not say it."""
    score_range: tuple[float, float] | None = None
    """The lowest and the highest score that there can be; None: seen from the data."""
    pooling: str | None = None
    eval_data: Sequence[str | Path] = ()
    eval_task: str = "sts"
    resume: bool = False


def open_accelerator(options: TrainOptions) -> Accelerator:
    """Device, precision and processes, as accelerate sees them; dice and threads are set on the way."""
    prepare_low_precision(options.mixed_precision, device=options.device)
    disable_usage_reports("huggingface_hub")
    try:
        import torch
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
    except ImportError as error:
        raise MissingExtra("training", error.name or "torch", "train") from error
    check_trackers(options.tracker)
    together = int(
        os.environ.get("LOCAL_WORLD_SIZE", "1")
    )  # processes that a launcher started on this machine
    torch.set_num_threads(options.threads or max(1, usable_cores() // together))
    torch.manual_seed(options.seed)
    AcceleratorState._reset_state()  # a second run of a program may ask for another precision or device
    accelerator = Accelerator(cpu=options.device == "cpu", mixed_precision=options.mixed_precision)
    if options.device is not None and accelerator.device.type != options.device.split(":")[0]:
        raise InputError(
            f"device {options.device!r} is not there; this machine has {accelerator.device.type!r}"
        )
    return accelerator


def open_checkpoint(request: TrainRequest) -> Checkpoint:
    folder = find_model(request.model)
    name = None if Path(request.model).is_dir() else str(request.model)
    if request.kind == "cross":
        if request.pooling is not None:
            raise InputError("a cross-encoder makes no vectors, so it has no pooling. Leave pooling out")
        return read_start(folder, name=name)
    checkpoint = read_checkpoint(folder, name=name)
    if request.pooling is None:
        return checkpoint
    POOLINGS[request.pooling]
    return replace(checkpoint, pooling=replace(checkpoint.pooling, modes=(request.pooling,)))


def open_objective(request: TrainRequest, options: TrainOptions, checkpoint: Checkpoint) -> Objective:
    if request.kind == "cross":
        if options.matryoshka:
            raise InputError("a cross-encoder makes no vectors to be cut short. Leave matryoshka out")
        return cross_objective(request.objective, request.settings or {})
    objective = make_objective(request.objective, request.settings)
    if not options.matryoshka:
        return objective
    return Matryoshka(objective, options.matryoshka, normalize=checkpoint.normalize)


def open_data(request: TrainRequest, objective: Objective, options: TrainOptions) -> Sequence[Examples]:
    return open_all(
        request.data,
        objective.needs,
        columns=request.columns,
        skip_bad=options.skip_bad,
        score_range=request.score_range,
        objective=request.objective,
    )


def open_network(
    request: TrainRequest,
    checkpoint: Checkpoint,
    examples: Sequence[Examples],
    options: TrainOptions,
    accelerator: Accelerator,
) -> TrainableNetwork:
    if request.kind == "cross":
        return CrossNetwork(checkpoint, options, accelerator.device, labels=examples[0].classes)
    return BiEncoderNetwork(checkpoint, options, accelerator.device)


def examined(
    request: TrainRequest,
    objective: Objective,
    options: TrainOptions,
    examples: Sequence[Examples],
    tasks: Sequence[Task],
    network: TrainableNetwork,
) -> list[Diagnosis]:
    """What the doctor says of each data set; certain faults are refused unless forced."""
    found = [
        examine(
            each,
            objective.needs,
            batch_size=options.batch_size,
            tokenizer=getattr(network, "tokenizer", None),
            max_length=getattr(network, "max_length", None),
            evaluation_texts=_evaluation_pairs(tasks),
        )
        for each in examples
    ]
    errors = [finding for diagnosis in found for finding in diagnosis.errors]
    if errors and not options.force:
        said = "; ".join(finding.what for finding in errors)
        raise InputError(
            f"the data is certainly wrong: {said}. Repair it, or train all the same with force (--force)"
        )
    return found


def data_notes(examples: Sequence[Examples]) -> Iterator[str]:
    """What was decided about the data, and how many rows were left out."""
    for each in examples:
        yield from (f"{each.name}: {note}" for note in getattr(each, "notes", ()))
        if skipped := getattr(each, "skipped", 0):
            yield f"{each.name}: {skipped:,} bad rows left out, such as {getattr(each, 'bad', [''])[0]}"


def open_tasks(request: TrainRequest, rounds: int | None) -> list[Task]:
    """What the model is scored on; `rounds` of the intervals, None: the task's default."""
    return [task for path in request.eval_data for task in load_task(request.eval_task, path, rounds=rounds)]


def _content(path: Path) -> str:
    """sha256 of a file, or of all files of a folder with their names."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        digest.update(str(file.relative_to(path)).encode())
    return digest.hexdigest()


def _evaluation_pairs(tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """The pairs that the model will be scored on, where the task has pairs."""
    for task in tasks:
        yield from zip(getattr(task, "left", ()), getattr(task, "right", ()), strict=True)


def kept_facts(
    request: TrainRequest, objective: Objective, checkpoint: Checkpoint, examples: Sequence[Examples]
) -> dict[str, Any]:
    """What the model keeps beside its weights, what its card says, and what a run is known again by."""
    about: dict[str, Any] = {
        "model": checkpoint.name,
        "network": request.kind,
        "pooling": list(checkpoint.pooling.modes),
        "evaluation": [request.eval_task, *(_content(Path(path)) for path in request.eval_data)],
        "settings": dict(request.settings or {}),
    }
    inner = getattr(objective, "objective", objective)
    if inner.needs.label == "class":
        about["labels"] = list(examples[0].classes)
    if hasattr(inner, "concat"):
        about["concat"] = inner.concat
    return about
