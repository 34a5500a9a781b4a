"""`gemel.train`: from a request (model, data, objective, folder) to a trained model in that folder.

`run_request` opens every part by its name, checks the data, hands all of it to a `TrainingRun`, and writes the report
and the model card when the run ends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model
from gemel.encoder.pooling import POOLINGS
from gemel.errors import SAME_LOSSES, InputError
from gemel.evaluation.evaluate import score_tasks
from gemel.evaluation.task import Scores, Task, load_task
from gemel.training.bi_encoder import BiEncoderNetwork
from gemel.training.card import DataSet, Summary, measured, model_card
from gemel.training.cross_encoder import CrossNetwork, cross_objective, read_start
from gemel.training.data import open_all
from gemel.training.data.store import Examples, guide_vectors
from gemel.training.devices import open_accelerator
from gemel.training.doctor import Diagnosis, examine
from gemel.training.journal import FILE, read_journal
from gemel.training.late_encoder import LateNetwork, LateStart, read_late_start
from gemel.training.network import TrainableNetwork
from gemel.training.objectives.base import OBJECTIVES, Needs, Objective, make_objective
from gemel.training.objectives.matryoshka import Matryoshka
from gemel.training.options import TrainOptions
from gemel.training.run import TrainingRun, TrainResult, sample_texts
from gemel.training.sparse_encoder import (
    FlopsRegularized,
    RowsOfWords,
    SparseNetwork,
    SparseStart,
    read_sparse_start,
)
from gemel.training.watch import Collapse
from gemel.types import Encoder, Vectors

if TYPE_CHECKING:
    from accelerate import Accelerator

Kind = Literal["bi-encoder", "cross-encoder", "sparse", "late"]

_SCORED = {"sparse": {"score": "dot", "temperature": 1.0}, "late": {"score": "maxsim", "temperature": 1.0}}
"""Settings of the objectives of sparse encoders and of late interaction, unless they are given."""

_RANKING = ("in-batch-ranking", "margin-mse", "score-distillation")
"""Objectives that compare queries and documents by any score."""


def train(  # noqa: PLR0913 - each is a thing that the user names
    model: str | Path,
    data: Any,  # noqa: ANN401 - a file, several, a Hugging Face dataset or rows in memory
    *,
    objective: str,
    out: str | Path,
    kind: Kind = "bi-encoder",
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
    """Train `model` on `data` and save the best version in the folder `out`.

    `kind`: "bi-encoder" (one vector per text), "cross-encoder" (scores pairs), "sparse" (weights of words, SPLADE) or
    "late" (a vector of each token, ColBERT).
    `changes` are fields of TrainOptions by name (`epochs=1, batch_size=32`); `settings` belong to the objective
    (`{"margin": 0.5}`). `objective` may be the name of a loss of sentence-transformers. With `eval_data` the model is
    evaluated during training, and the best one is saved.
    """
    files = [eval_data] if isinstance(eval_data, str | Path) else list(eval_data)
    request = TrainRequest(
        model=model,
        data=data,
        objective=SAME_LOSSES.get(objective, objective),
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
    what = "train (settings of the objective go into settings=)"
    return run_request(request, TrainOptions.of(options, changes, what))


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train, on what data, into which folder; TrainOptions has the rest."""

    model: str | Path
    data: Any
    objective: str
    out: Path
    kind: Kind = "bi-encoder"
    settings: Mapping[str, Any] | None = None
    """Of the objective."""
    columns: Mapping[str, str] | None = None
    """Role to column, for columns with unusual names."""
    score_range: tuple[float, float] | None = None
    """The lowest and the highest possible score; None: detected from the data."""
    pooling: str | None = None
    eval_data: Sequence[str | Path] = ()
    eval_task: str = "sts"
    resume: bool = False

    @property
    def cross(self) -> bool:
        return self.kind == "cross-encoder"


def run_request(
    request: TrainRequest, options: TrainOptions, *, say: Callable[[str], None] = lambda line: None
) -> TrainResult:
    """Train as requested and return what the run gave; `say` gets notes on the data, line by line."""
    accelerator = open_accelerator(options)
    start = _open_start(request)
    checkpoint = start if isinstance(start, Checkpoint) else start.checkpoint
    objective = _open_objective(request, options, checkpoint)
    if accelerator.is_main_process:  # another process may get here after this one has begun to write
        _check_folder(request)
    examples = open_all(
        request.data,
        objective.needs,
        columns=request.columns,
        skip_bad=options.skip_bad,
        score_range=request.score_range,
        objective=request.objective,
    )
    if objective.needs.label == "guide":
        examples = _with_guide(examples, str((request.settings or {})["guide"]), options)
    tasks = _open_tasks(request, rounds=0)  # bootstrap intervals would take longer than the encoding
    network = _open_network(request, start, examples, options, accelerator)
    classes = network.vocabulary if objective.needs.label == "tokens" else len(examples[0].classes)
    weights = objective.weights(network.dim, classes)
    if weights is not None:
        weights.to(accelerator.device)
    elif options.head_learning_rate is not None:
        raise InputError(
            f"head_learning_rate is for an objective with weights of its own (classification, denoising); "
            f"{request.objective!r} of kind {request.kind!r} has none. Use learning_rate"
        )
    diagnoses = _check_data(objective, options, examples, tasks, network)
    notes = [] if isinstance(start, Checkpoint) else start.notes()
    for line in (*notes, *_data_notes(examples), *(line for each in diagnoses for line in each.summary())):
        say(line)
    about = _about(request, objective, checkpoint, examples)
    run = TrainingRun(network, objective, weights, examples, options, request.out, tasks, accelerator, about)
    if accelerator.is_main_process:
        _write_request(request, options, run.folder, diagnoses)
    try:
        result = run.start(resume=request.resume)
    except Collapse as collapse:
        if accelerator.is_main_process:
            _write_report(request, options, run, diagnoses, stopped=str(collapse))
        raise
    if accelerator.is_main_process:
        summary = _write_report(request, options, run, diagnoses, result)
        (request.out / "README.md").write_text(model_card(summary), encoding="utf-8")
    return result


# The parts of a run, opened by the names in the request.


def _open_start(request: TrainRequest) -> Checkpoint | SparseStart | LateStart:
    folder = find_model(request.model)
    name = None if Path(request.model).is_dir() else str(request.model)
    if request.kind != "bi-encoder" and request.pooling is not None:
        raise InputError(f"kind {request.kind!r} does not pool token vectors. Leave pooling out")
    if request.cross:
        return read_start(folder, name=name)
    if request.kind == "sparse":
        return read_sparse_start(folder, name=name)
    if request.kind == "late":
        return read_late_start(folder, name=name)
    checkpoint = read_checkpoint(folder, name=name)
    if request.pooling is None:
        return checkpoint
    POOLINGS[request.pooling]
    return replace(checkpoint, pooling=replace(checkpoint.pooling, modes=(request.pooling,)))


def _open_objective(request: TrainRequest, options: TrainOptions, checkpoint: Checkpoint) -> Objective:
    if request.cross:
        if options.matryoshka:
            raise InputError("a cross-encoder makes no vectors to truncate. Leave matryoshka out")
        return cross_objective(request.objective, request.settings or {})
    if request.kind in _SCORED:
        return _ranking_objective(request, options)
    objective = make_objective(request.objective, request.settings)
    if not options.matryoshka:
        return objective
    return Matryoshka(objective, options.matryoshka, normalize=checkpoint.normalize)


def _ranking_objective(request: TrainRequest, options: TrainOptions) -> Objective:
    """The objective of a sparse encoder or of late interaction."""
    if options.inference_free and request.kind != "sparse":
        raise InputError("inference_free is for kind 'sparse': only its queries can be encoded by a table")
    if options.matryoshka:
        raise InputError(f"matryoshka truncates dense vectors; kind {request.kind!r} has none. Leave it out")
    if request.objective not in _RANKING:
        raise InputError(
            f"kind {request.kind!r} cannot be trained with objective {request.objective!r}. Use one of: "
            f"{', '.join(_RANKING)}"
        )
    names = {field.name for field in fields(OBJECTIVES[request.objective])}  # type: ignore[arg-type]
    defaults = {name: value for name, value in _SCORED[request.kind].items() if name in names}
    objective = make_objective(request.objective, {**defaults, **(request.settings or {})})
    score = getattr(objective, "score")  # noqa: B009 - each of _RANKING has it
    if (score == "maxsim") != (request.kind == "late"):
        expected = "maxsim" if request.kind == "late" else "dot or cosine"
        raise InputError(f"kind {request.kind!r} compares texts by {expected}, score={score!r} was requested")
    if request.kind == "late":
        return objective
    return FlopsRegularized(objective, options.query_flops, options.document_flops, options.flops_warmup)


def _with_guide(examples: Sequence[Examples], guide: str, options: TrainOptions) -> list[Examples]:
    """The data with the vectors of its texts by the model `guide`, which runs without torch."""
    from gemel.model import load

    model = load(guide)

    def encode(texts: list[str]) -> Vectors:
        return model.encode(texts, threads=options.threads, on_long="truncate", progress=options.progress)

    return [replace(each, guide=guide_vectors(each.texts, encode)) for each in examples]


def _check_folder(request: TrainRequest) -> None:
    """The folder is new, or has the run to resume."""
    out = request.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Give a new folder for the model")
    if request.resume or not out.exists() or not any(out.iterdir()):
        return
    raise InputError(
        f"{out} exists and is not empty. Give a new folder, or resume the run in it: resume=True (--resume)"
    )


def _open_tasks(request: TrainRequest, rounds: int | None) -> list[Task]:
    """What the model is scored on; `rounds` of the bootstrap, None: the task's default."""
    return [task for path in request.eval_data for task in load_task(request.eval_task, path, rounds=rounds)]


def _open_network(
    request: TrainRequest,
    start: Checkpoint | SparseStart | LateStart,
    examples: Sequence[Examples],
    options: TrainOptions,
    accelerator: Accelerator,
) -> TrainableNetwork:
    device = accelerator.device
    if isinstance(start, SparseStart):
        texts = (
            sample_texts(examples, Needs(texts=()), options.seed).texts
            if start.fresh or options.inference_free
            else ()
        )
        return SparseNetwork(start, options, device, texts=texts)
    if isinstance(start, LateStart):
        return LateNetwork(start, options, device)
    if request.cross:
        return CrossNetwork(start, options, device, labels=examples[0].classes)
    return BiEncoderNetwork(start, options, device)


def _check_data(
    objective: Objective,
    options: TrainOptions,
    examples: Sequence[Examples],
    tasks: Sequence[Task],
    network: TrainableNetwork,
) -> list[Diagnosis]:
    """What the data checks find in each data set; errors are refused unless forced."""
    diagnoses = [
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
    errors = [finding for diagnosis in diagnoses for finding in diagnosis.errors]
    if errors and not options.force:
        reasons = "; ".join(finding.what for finding in errors)
        raise InputError(
            f"the data is wrong: {reasons}. Fix it, or train anyway with force (--force)", code="GEM-502"
        )
    return diagnoses


def _evaluation_pairs(tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """The pairs that the model will be scored on, for tasks that have pairs."""
    for task in tasks:
        yield from zip(getattr(task, "left", ()), getattr(task, "right", ()), strict=True)


def _data_notes(examples: Sequence[Examples]) -> Iterator[str]:
    """What was decided about the data, and how many rows were left out."""
    for each in examples:
        yield from (f"{each.name}: {note}" for note in each.notes)
        if each.skipped:
            yield f"{each.name}: {each.skipped:,} bad rows left out, such as {each.bad[0]}"


def _about(
    request: TrainRequest, objective: Objective, checkpoint: Checkpoint, examples: Sequence[Examples]
) -> dict[str, Any]:
    """What is saved beside the weights, and what identifies a run when it is resumed."""
    about: dict[str, Any] = {
        "model": checkpoint.name,
        "network": request.kind,
        "pooling": list(checkpoint.pooling.modes),
        "evaluation": [request.eval_task, *(_content_hash(Path(path)) for path in request.eval_data)],
        "settings": dict(request.settings or {}),
    }
    inner = getattr(objective, "objective", objective)
    if inner.needs.label == "class":
        about["labels"] = list(examples[0].classes)
    if hasattr(inner, "concat"):
        about["concat"] = inner.concat
    return about


def _content_hash(path: Path) -> str:
    """sha256 of a file, or of all files of a folder with their names."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        digest.update(str(file.relative_to(path)).encode())
    return digest.hexdigest()


# What is written beside the model.


def _write_request(
    request: TrainRequest, options: TrainOptions, folder: Path, diagnoses: Sequence[Diagnosis]
) -> None:
    """options.json: the request and the options; doctor.json: what the data checks found."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {field.name: getattr(request, field.name) for field in fields(request)}
    content = {"request": {**values, "data": _data_names(request.data)}, "options": asdict(options)}
    text = json.dumps(
        content, indent=2, default=lambda value: dict(value) if hasattr(value, "keys") else str(value)
    )
    (folder / "options.json").write_text(text + "\n", encoding="utf-8")
    text = json.dumps([each.to_json() for each in diagnoses], indent=2, ensure_ascii=False)
    (folder / "doctor.json").write_text(text + "\n", encoding="utf-8")


def _data_names(data: object) -> object:
    """The paths of the data; data in memory becomes the name of its type."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, list | tuple) and all(isinstance(each, str | Path) for each in data):
        return list(data)
    return f"{type(data).__name__} in memory"


def _write_report(
    request: TrainRequest,
    options: TrainOptions,
    run: TrainingRun,
    diagnoses: Sequence[Diagnosis],
    result: TrainResult | None = None,
    stopped: str = "",
) -> Summary:
    """The report of a finished run, with the scores of the saved model as inference gives them."""
    from gemel.training.report import write_report

    scores: list[Scores] = []
    if result is not None and request.eval_data:
        scores = list(score_tasks(_open_tasks(request, rounds=None), _load_saved(request)))
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
    write_report(run.folder, summary=summary, journal=read_journal(run.folder / FILE), doctor=diagnoses)
    return summary


def _load_saved(request: TrainRequest) -> Encoder:
    """The model on disk, loaded without torch."""
    from gemel.cross_model import load_cross
    from gemel.model import load
    from gemel.texts.late_model import load_late
    from gemel.texts.sparse_model import load_sparse

    if request.kind == "late":
        return cast("Encoder", load_late(request.out))
    if request.kind == "sparse":
        return cast("Encoder", RowsOfWords(load_sparse(request.out)))
    return cast("Encoder", load_cross(request.out)) if request.cross else load(request.out)
