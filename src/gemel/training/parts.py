"""The parts of a run, opened from what a user named: checkpoint, objective, data, network, evaluations."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model
from gemel.encoder.lanes import usable_cores
from gemel.encoder.pooling import POOLINGS
from gemel.errors import InputError, MissingExtra
from gemel.evaluation.task import Task, load_task
from gemel.network_use import disable_usage_reports
from gemel.objectives.matryoshka import Matryoshka
from gemel.objectives.table import Objective, make_objective
from gemel.training.cross_network import CrossNetwork, read_start
from gemel.training.cross_objectives import cross_objective
from gemel.training.data import open_all
from gemel.training.doctor import Diagnosis, examine
from gemel.training.examples import Examples
from gemel.training.low_precision import prepare_low_precision
from gemel.training.options import TrainOptions
from gemel.training.port import Network
from gemel.training.request import TrainRequest
from gemel.training.trackers import check_trackers
from gemel.training.twin_network import TwinNetwork

if TYPE_CHECKING:
    from accelerate import Accelerator


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
) -> Network:
    if request.kind == "cross":
        return CrossNetwork(checkpoint, options, accelerator.device, labels=examples[0].classes)
    return TwinNetwork(checkpoint, options, accelerator.device)


def examined(
    request: TrainRequest,
    objective: Objective,
    options: TrainOptions,
    examples: Sequence[Examples],
    tasks: Sequence[Task],
    network: Network,
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
