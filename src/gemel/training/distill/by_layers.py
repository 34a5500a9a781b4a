"""Distillation by layers: the student is the teacher with fewer layers, which then learns the teacher's vectors.

Leaving out layers needs no torch; the remaining ones are renumbered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemel.checkpoint.files import read_object
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.write import write_checkpoint
from gemel.errors import InputError
from gemel.files.atomic import atomic_folder, write_json
from gemel.model import load
from gemel.training.distill.by_vectors import learn_vectors
from gemel.training.distill.job import DistillJob, DistillResult, read_texts
from gemel.training.distill.teacher import agreement_on_texts, split_rows
from gemel.training.run import publish


def distill_layers(job: DistillJob) -> DistillResult:
    """Leave out layers, and train if texts are given."""
    request, options = job.request, job.options
    checkpoint = job.encoder.model.checkpoint
    keep = chosen_layers(checkpoint, request.layers, request.keep)
    job.note(f"layers {', '.join(map(str, keep))} of {layer_count(checkpoint)} remain")
    start = job.folder / f"{checkpoint.folder.name}-{len(keep)}-layers"
    if not start.is_dir():
        keep_layers(checkpoint, keep, start)
    if request.data is None:
        publish(start, request.out)
        return job.finish(None, None, "", None)
    rows = read_texts(request.data, request.columns, skip_bad=options.skip_bad)
    job.note(*rows.notes)
    split = split_rows(len(rows), options.seed)
    test = agreement_on_texts(job.encoder, rows.rows, split, near_by=None, seed=options.seed)
    if request.trains:
        return learn_vectors(job, load(start), rows.rows, split, test)
    publish(start, request.out)
    return job.finish(test, None, "", None)


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
    if kind == "modernbert":
        from gemel.encoder.architectures.modernbert import layer_kinds

        if keep[0] != 0:
            raise InputError(
                f"the first layer of {checkpoint.name} belongs to its embeddings and must remain: keep=(0, ...)"
            )
        kinds = layer_kinds(config)
        patch["layer_types"] = [kinds[layer] for layer in keep]
    return patch
