"""The methods of distillation that train a student: by pairs, by vectors, by layers.

pairs (Augmented SBERT, arXiv 2010.08240): the student learns the teacher's scores of pairs. They are stored in a file,
one JSON object per line, and are not computed again when a run is resumed. vectors: it learns the teacher's vectors, of
the texts and of their translations; if the sizes differ, the teacher's vectors are reduced by PCA, or the student gets
a dense layer. layers: it is the teacher with fewer layers, which then learns the teacher's vectors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemel.checkpoint.files import read_object
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.head import Dense
from gemel.checkpoint.write import write_checkpoint
from gemel.errors import InputError, WorkError
from gemel.files.atomic import atomic_folder, sync_open, write_json
from gemel.model import Model, load
from gemel.terminal import Progress
from gemel.training.distill.job import DistillJob, DistillResult, InMemoryDataset, StudentTexts, read_pairs
from gemel.training.distill.teacher import (
    AgreementTest,
    BiTeacher,
    Teacher,
    agreement_on_pairs,
    propose_pairs,
    split_rows,
)
from gemel.training.options import TrainOptions
from gemel.training.run import TrainResult, publish
from gemel.training.train import TrainRequest, run_request
from gemel.types import Vectors
from gemel.vectors.similarity import normalize


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
        split = split_rows(len(given.rows), job.options.seed)
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
    finder = job.teacher.model if isinstance(job.teacher, BiTeacher) else student
    data = job.read_texts(finder)
    texts = list(dict.fromkeys(row[0] for row in data.train))
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
    return [(texts[a], texts[b]) for a, b in proposed.all.tolist()], data.test


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


# By vectors.

_BRIDGE_TEXTS = 10_000  # to fit a dense layer on

_CROWDED = 0.7  # mean cosine of random texts

_TABLE_RATE = 1e-3  # a static model learns too slowly at the learning rate of a transformer


def distill_vectors(job: DistillJob) -> DistillResult:
    """Train another model on the teacher's vectors."""
    assert job.request.student is not None
    return learn_vectors(job, load(job.request.student), job.read_texts())


def learn_vectors(job: DistillJob, student: Model, data: StudentTexts) -> DistillResult:
    """Train `student` on the teacher's vectors of the texts and put it into the output folder."""
    texts, crowding = [row[0] for row in data.train], data.test.crowding
    targets = job.vectors(texts)
    if crowding > _CROWDED:
        job.note(
            f"warning: two random texts have a cosine of {crowding:.2f} for the teacher. A student learns "
            "what all texts have in common before it learns their differences: see gemel postprocess"
        )
    start, targets = _bridge(job, student, texts, targets)
    before = data.test.measure(load(start), threads=job.options.threads)
    trained = _train(job, start, data.train, targets)
    more = len(data.train[0]) - 1
    learned_from = f"{len(texts):,} texts" + (f" and {more} translations of each" if more else "")
    return job.finish(data.test, before, learned_from, trained)


def _train(job: DistillJob, start: Path, rows: Sequence[tuple[str, ...]], targets: Vectors) -> TrainResult:
    columns = list(zip(*rows, strict=True))
    translations = {f"translation{number}": column for number, column in enumerate(columns[1:], 1)}
    data = InMemoryDataset(
        f"vectors of {job.teacher.name}", {"text": columns[0], "vector": targets, **translations}
    )
    request = TrainRequest(
        model=start, data=data, objective="vector-distillation", out=job.request.out, resume=True
    )
    return run_request(request, _options(job, start), say=job.say)


def _options(job: DistillJob, start: Path) -> TrainOptions:
    if load(start).checkpoint.kind != "static" or job.options.learning_rate != TrainOptions().learning_rate:
        return job.options
    job.note(f"learning_rate {_TABLE_RATE:g}: the default is too small for a static model")
    return replace(job.options, learning_rate=_TABLE_RATE)


def _bridge(job: DistillJob, student: Model, texts: Sequence[str], targets: Vectors) -> tuple[Path, Vectors]:
    """The student to start from and the vectors to learn, of the same size, both normalized or not."""
    unit, bridge = job.encoder.model.checkpoint.normalize, _how(job, student.dim, targets.shape[1])
    checkpoint, dense = student.checkpoint, list(student.checkpoint.dense)
    if bridge == "pca":
        projection = widest_directions(targets, student.dim)
        targets = projection.apply(targets)
        job.note(
            f"the teacher's {projection.weight.shape[1]} dimensions reduced to {student.dim} by PCA, "
            f"which keep {projection.kept:.1%} of their length"
        )
    elif bridge == "dense":
        dense.append(_layer(student, texts, targets))
        job.note(f"a dense layer takes the student from {student.dim} to {targets.shape[1]} dimensions")
    ready = normalize(targets) if unit else targets
    if bridge != "dense" and checkpoint.normalize == unit:
        return checkpoint.folder, ready
    return _start(job, checkpoint, dense, unit), ready


def _how(job: DistillJob, student: int, teacher: int) -> str:
    bridge = job.request.bridge
    if bridge == "pca" and student > teacher:
        raise InputError(
            f"the student has {student} dimensions, the teacher {teacher}: there is nothing to reduce. "
            "Use bridge='dense' (--bridge dense)"
        )
    if bridge != "auto":
        return bridge if bridge == "dense" or student < teacher else "none"
    return "none" if student == teacher else "pca" if student < teacher else "dense"


def _layer(student: Model, texts: Sequence[str], targets: Vectors) -> Dense:
    """The linear layer that maps the student's vectors closest to the teacher's, to start training from."""
    vectors = student.encode(texts[:_BRIDGE_TEXTS], normalize=False, on_long="truncate").astype(np.float64)
    wanted = targets[:_BRIDGE_TEXTS].astype(np.float64)
    mean, target_mean = vectors.mean(axis=0), wanted.mean(axis=0)
    centered = vectors - mean
    squares = centered.T @ centered
    ridge = 1e-3 * np.trace(squares) / len(squares) + 1e-12
    weight = np.linalg.solve(squares + ridge * np.eye(len(squares)), centered.T @ (wanted - target_mean)).T
    bias = target_mean - weight @ mean
    return Dense(weight.astype(np.float32), bias.astype(np.float32), "identity")


def _start(job: DistillJob, checkpoint: Checkpoint, dense: Sequence[Dense], unit: bool) -> Path:
    folder = job.folder / Path(checkpoint.name).name
    if folder.is_dir():  # from an earlier run that is resumed
        return folder
    return write_checkpoint(checkpoint, folder, dense=dense, normalize=unit)


@dataclass(frozen=True, eq=False)
class Projection:
    """x -> weight @ x."""

    weight: Vectors
    """(dim, in) float32, orthonormal rows."""
    kept: float
    """Share of the squared length of the vectors that remains."""

    def apply(self, vectors: Vectors) -> Vectors:
        """(n, in) -> (n, dim)"""
        return np.asarray(vectors @ self.weight.T, dtype=np.float32)


def widest_directions(vectors: Vectors, dim: int) -> Projection:
    """The `dim` directions with most of the vectors' length: a PCA without centering.

    A cosine is measured from the origin, and the mean may be what distinguishes two kinds of text.
    """
    exact = vectors.astype(np.float64)
    spread, columns = np.linalg.eigh(exact.T @ exact)
    directions = columns.T[::-1][:dim]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    total = max(float(spread.sum()), 1e-30)
    return Projection(
        (directions * signs[:, None]).astype(np.float32), float(spread[::-1][:dim].sum() / total)
    )


# By layers.


def distill_layers(job: DistillJob) -> DistillResult:
    """Leave out layers, and train if texts are given."""
    request, checkpoint = job.request, job.encoder.model.checkpoint
    keep = chosen_layers(checkpoint, request.layers, request.keep)
    job.note(f"layers {', '.join(map(str, keep))} of {layer_count(checkpoint)} remain")
    start = job.folder / f"{checkpoint.folder.name}-{len(keep)}-layers"
    if not start.is_dir():
        keep_layers(checkpoint, keep, start)
    if request.data is None:
        publish(start, request.out)
        return job.finish(None, None, "", None)
    data = job.read_texts()
    if request.trains:
        return learn_vectors(job, load(start), data)
    publish(start, request.out)
    return job.finish(data.test, None, "", None)


# The names of layers in all architectures that do not share weights between layers.
_LAYER = re.compile(r"((?:.*\.)?(?:encoder\.layer|transformer\.layer|layers)\.)(\d+)(\..+)")


def layer_count(checkpoint: Checkpoint) -> int:
    """Number of layers; a model without any is refused."""
    count = next((checkpoint.config.get(key) for key in _KEYS if key in checkpoint.config), None)
    if checkpoint.kind == "static" or not isinstance(count, int):
        raise InputError(
            f"{checkpoint.name} has no layers to leave out. Give a transformer, or use how='static'"
        )
    return count


_KEYS = ("num_hidden_layers", "n_layers")


def chosen_layers(checkpoint: Checkpoint, layers: int | None, keep: Sequence[int]) -> tuple[int, ...]:
    """The layers that remain: `keep`, or `layers` of them, evenly spaced from the first to the last."""
    total = layer_count(checkpoint)
    if (layers is None) == (not keep):
        raise InputError("give the number of layers (layers=2), or which ones (keep=(0, 2, 5)), but not both")
    if layers is not None:
        if not 1 <= layers < total:
            raise InputError(
                f"layers must be from 1 to {total - 1}: {checkpoint.name} has {total}, got {layers}"
            )
        return tuple(int(layer) for layer in np.linspace(0, total - 1, layers).round())
    if list(keep) != sorted(set(keep)) or keep[0] < 0 or keep[-1] >= total or len(keep) == total:
        raise InputError(
            f"keep must be some of the layers 0 to {total - 1} of {checkpoint.name}, in order, "
            f"got {', '.join(map(str, keep))}"
        )
    return tuple(keep)


def keep_layers(checkpoint: Checkpoint, keep: Sequence[int], folder: Path) -> Path:
    """The model with the layers `keep` only, as a new model in `folder`."""
    patch = _patch(checkpoint, keep)
    weights = checkpoint.weights
    names = {name: name for name in weights}
    if checkpoint.config.get("model_type") != "albert":
        names = _renamed(list(weights), keep)
    with atomic_folder(folder.absolute()) as working:
        write_checkpoint(checkpoint, working, weights={new: weights[old] for new, old in names.items()})
        write_json(working / "config.json", {**read_object(working / "config.json"), **patch})
    return folder


def _renamed(names: Sequence[str], keep: Sequence[int]) -> dict[str, str]:
    """New name to old name of every weight that remains."""
    numbers = {old: new for new, old in enumerate(keep)}
    renamed: dict[str, str] = {}
    for name in names:
        match = _LAYER.fullmatch(name)
        if match is None:
            renamed[name] = name
        elif int(match[2]) in numbers:
            renamed[f"{match[1]}{numbers[int(match[2])]}{match[3]}"] = name
    return renamed


def _patch(checkpoint: Checkpoint, keep: Sequence[int]) -> dict[str, Any]:
    """The changes of config.json for fewer layers."""
    config = checkpoint.config
    kind = config.get("model_type")
    patch: dict[str, Any] = {next(key for key in _KEYS if key in config): len(keep)}
    if kind == "albert" and int(config.get("num_hidden_groups", 1)) > 1:
        raise InputError(
            f"{checkpoint.name} shares layers in groups; leaving some out would mix up the groups"
        )
    if kind == "embedding_gemma2_text":
        raise InputError(
            f"the layers of {checkpoint.name} differ in their heads and share a weight: none can be left out"
        )
    if kind == "modernbert":
        from gemel.encoder.architectures.modernbert import layer_kinds

        if keep[0] != 0:
            raise InputError(
                f"the first layer of {checkpoint.name} belongs to its embeddings and must remain: keep=(0, ...)"
            )
        kinds = layer_kinds(config)
        patch["layer_types"] = [kinds[layer] for layer in keep]
    return patch
