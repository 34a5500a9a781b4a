"""Writes a model to a folder in the sentence-transformers layout, atomically.

The files of the network and the tokenizer are copied; the layers after it are written in float32.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import has_task_folders, key_set
from gemel.checkpoint.files import Tensors, has_safetensors, read_object_if_there
from gemel.checkpoint.folder import Checkpoint, check_layers, is_model_folder
from gemel.checkpoint.head import (
    FLOW,
    ClassificationHead,
    Dense,
    Flow,
    LayerNorm,
    dense_config,
    flow_tensors,
    pooling_config,
    write_classification_head,
)
from gemel.errors import InputError, ModelError
from gemel.files.atomic import atomic_folder, write_json

_THEIRS = "sentence_transformers.models."
TOKENIZER_FILES = key_set(
    "tokenizer*.json special_tokens_map.json added_tokens.json vocab.* merges.txt *.spm",
    "sentencepiece*.model spiece.model LICENSE* NOTICE*",
)
"""Files of the network's folder that are copied, with licenses."""
# Model cards are not copied: they describe the original model.
_NETWORK_FILES = TOKENIZER_FILES | key_set("config.json configuration*.json model.safetensors.index.json")


def write_checkpoint(
    checkpoint: Checkpoint,
    folder: Path | str,
    *,
    weights: Mapping[str, NDArray[Any]] | None = None,
    dense: Sequence[Dense] | None = None,
    normalize: bool | None = None,
    relation: ClassificationHead | None = None,
    overwrite: bool = False,
) -> Path:
    """Save the model in `folder`; `weights` (all of the network's, float32), `dense` (all layers after pooling),
    `normalize` and `relation` (the classification head) replace its own.

    Its own head is saved only if nothing else is replaced, because it would not fit the new vectors. Only a folder with
    a model is ever overwritten, and only with `overwrite`.
    """
    target = Path(folder).absolute()
    check_target(target, checkpoint, overwrite)
    if checkpoint.skip_unknown:
        raise ModelError(
            f"{checkpoint.name} is a model2vec table, whose rules about unknown tokens modules.json cannot express. "
            "Copy its folder instead, or save another model"
        )
    if checkpoint.tokenizer_file.suffix == ".gguf":
        raise ModelError(
            f"{checkpoint.name} is a GGUF file, which is not written as another format. Copy the file"
        )
    if checkpoint.query_side is not None and not checkpoint.sides_are_tasks:
        raise ModelError(
            f"{checkpoint.name} has modules of their own for queries and for documents, which cannot be saved as one "
            "model. Copy its folder instead"
        )
    layers = checkpoint.dense if dense is None else tuple(dense)
    dim = check_layers(checkpoint, layers, InputError)
    if relation is not None and dim not in (None, relation.dim):
        raise InputError(
            f"the classification head takes vectors of {relation.dim} numbers, the model's have {dim}. Train a new head"
        )
    if relation is None and weights is None and dense is None and normalize in (None, checkpoint.normalize):
        relation = checkpoint.relation
    with atomic_folder(target) as working:
        _write(checkpoint, working, layers, checkpoint.normalize if normalize is None else normalize)
        if weights is None and checkpoint.adapter is not None:
            weights = {name: checkpoint.weights.read(name) for name in checkpoint.weights}
        if weights is not None:
            _replace_weights(checkpoint, working, weights)
        if relation is not None:
            write_classification_head(relation, working)
    return Path(folder)


@dataclass(frozen=True)
class SavedModule:
    """A module after the network: its class, and what its folder holds."""

    kind: str
    """The class in the package that reads it, with its path; empty: a Router lists it, not modules.json."""
    folder: str
    """In that of the model; of a Router, the model's own ("")."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON files by name."""
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    tokenizer: bool = False
    """It has a copy of the tokenizer's files."""


def write_modules(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    network: str,
    weights: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    modules: Sequence[SavedModule],
    settings: Mapping[str, Any],
    network_folder: str = "",
) -> None:
    """Save a model of other modules than those of a sentence encoder, atomically; an earlier one is replaced.

    `network`: the class of the first module; with a `network_folder` of its own, a Router among `modules` lists it.
    `config` and `settings` are added to config.json and to config_sentence_transformers.json.
    """
    target = folder.absolute()
    check_target(target, checkpoint, overwrite=True)
    with atomic_folder(target) as working:
        first = working / network_folder
        _copy_network(checkpoint, first)
        _replace_weights(checkpoint, first, weights)
        write_json(first / "config.json", {**read_object_if_there(first / "config.json"), **config})
        listed = [
            each for each in (SavedModule("" if network_folder else network, ""), *modules) if each.kind
        ]
        for module in modules:
            for name, content in module.files.items():
                write_json(working / module.folder / name, dict(content))
            if module.tensors:
                _write_tensors(working / module.folder, module.tensors)
            if module.tokenizer:
                for path in [each for pattern in TOKENIZER_FILES for each in first.glob(pattern)]:
                    shutil.copyfile(path, working / module.folder / path.name)
        entries = [
            {"idx": number, "name": str(number), "path": module.folder, "type": module.kind}
            for number, module in enumerate(listed)
        ]
        write_json(working / "modules.json", entries)
        limits = {"max_seq_length": checkpoint.max_length, "do_lower_case": checkpoint.lowercase}
        write_json(first / "sentence_bert_config.json", limits)
        own = {"prompts": dict(checkpoint.prompts), "default_prompt_name": checkpoint.default_prompt_name}
        write_json(working / "config_sentence_transformers.json", {**own, **settings})


def check_target(target: Path, checkpoint: Checkpoint, overwrite: bool) -> None:
    """Refuse a folder that must not be overwritten."""
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file. Give a new folder for the model")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise InputError(
            f"{target} exists and is not empty. Give a new folder, or overwrite it (overwrite=True)"
        )
    if not is_model_folder(target) or target.resolve() in checkpoint.folder.resolve().parents:
        raise InputError(
            f"{target} is not a model, or contains more than that; it is not overwritten. Give a new folder"
        )


def _write(checkpoint: Checkpoint, folder: Path, layers: Sequence[Dense], normalize: bool) -> None:
    """All files of the model; `folder` is empty."""
    static = checkpoint.kind == "static"
    first = "0_StaticEmbedding" if static else ""
    modules = [(_THEIRS + ("StaticEmbedding" if static else "Transformer"), first)]
    _copy_network(checkpoint, folder / first)
    if not static:
        modules.append((f"{_THEIRS}Pooling", "1_Pooling"))
        width = checkpoint.width
        if width is None:
            raise ModelError(f"{checkpoint.name}: config.json does not say how wide the network is")
        write_json(folder / "1_Pooling" / "config.json", pooling_config(checkpoint.pooling, width))
    own = checkpoint.parts[len(checkpoint.weights.files) :]
    for layer in layers:
        kind = type(layer).__name__
        modules.append((FLOW if kind == "Flow" else _THEIRS + kind, f"{len(modules)}_{kind}"))
        _write_layer(layer, folder / modules[-1][1], own)
    if normalize:
        modules.append((f"{_THEIRS}Normalize", f"{len(modules)}_Normalize"))
        (folder / modules[-1][1]).mkdir()
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listed)
    _write_settings(checkpoint, folder)


def _copy_network(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the first module. Weights may be shards in sub-folders; the tokenizer may be in a parent folder."""
    folder.mkdir(exist_ok=True)
    source = _common_folder(checkpoint)
    for pattern in _NETWORK_FILES:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    for path in checkpoint.weights.files:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    if checkpoint.tokenizer_file.parent != source:
        shutil.copyfile(checkpoint.tokenizer_file, folder / checkpoint.tokenizer_file.name)
        settings = checkpoint.tokenizer_file.with_name("tokenizer_config.json")
        if checkpoint.adapter is not None and settings.is_file():
            shutil.copyfile(settings, folder / settings.name)
    if has_task_folders(checkpoint.config):
        from gemel.checkpoint.adapter import config_without_tasks

        write_json(folder / "config.json", config_without_tasks(checkpoint.config))
    elif checkpoint.config.get("default_task") is not None:  # which the caller of `load` may have chosen
        config = {**read_object_if_there(folder / "config.json"), "default_task": checkpoint.task}
        write_json(folder / "config.json", config)


def _replace_weights(checkpoint: Checkpoint, folder: Path, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write other weights of the network, in one file, instead of the copied ones."""
    from safetensors.numpy import save_file

    network = folder / ("0_StaticEmbedding" if checkpoint.kind == "static" else "")
    for path in [*network.glob("*.safetensors"), *network.glob("*.safetensors.index.json")]:
        path.unlink()
    ready = {name: np.array(weight, dtype=np.float32, order="C") for name, weight in weights.items()}
    save_file(ready, network / "model.safetensors", metadata={"format": "pt"})
    config = read_object_if_there(network / "config.json")
    dtypes = {key: "float32" for key in ("dtype", "torch_dtype") if key in config}
    if dtypes:
        write_json(network / "config.json", {**config, **dtypes})


def _common_folder(checkpoint: Checkpoint) -> Path:
    """The folder of model.safetensors or its index."""
    parents = checkpoint.weights.files[0].parents
    return next((path for path in parents if has_safetensors(path)), parents[0])


def _write_layer(layer: Dense, folder: Path, own: Sequence[Path]) -> None:
    """`own`: the files of the model's layers; one with this layer is copied, so that its hash stays the same."""
    folder.mkdir()
    if isinstance(layer, Flow):
        config: dict[str, Any] = {"dim": layer.weight.shape[0], "couplings": len(layer.couplings)}
        tensors = flow_tensors(layer)
    elif isinstance(layer, LayerNorm):
        assert layer.bias is not None, "sentence-transformers has no layer norm without a bias"
        config, tensors = {"dimension": layer.inputs}, {"norm.weight": layer.weight, "norm.bias": layer.bias}
    else:
        config, tensors = dense_config(layer), {"linear.weight": layer.weight}
        if layer.bias is not None:
            tensors["linear.bias"] = layer.bias
    write_json(folder / "config.json", config)
    source = next((path for path in own if _holds(path, tensors)), None)
    if source is not None:
        shutil.copyfile(source, folder / "model.safetensors")
        return
    _write_tensors(folder, tensors)


def _write_tensors(folder: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    ready = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
    save_file(ready, folder / "model.safetensors", metadata={"format": "pt"})


def _holds(path: Path, tensors: Mapping[str, NDArray[Any]]) -> bool:
    stored = Tensors({path: None})
    return set(stored) == set(tensors) and all(np.array_equal(stored[name], tensors[name]) for name in stored)


def _write_settings(checkpoint: Checkpoint, folder: Path) -> None:
    """Write lengths, prompts and the similarity."""
    if checkpoint.kind == "transformer":
        theirs = read_object_if_there(_common_folder(checkpoint) / "sentence_bert_config.json")
        ours = {"max_seq_length": checkpoint.max_length, "do_lower_case": checkpoint.lowercase}
        write_json(folder / "sentence_bert_config.json", {**theirs, **ours})
    theirs = read_object_if_there(checkpoint.folder / "config_sentence_transformers.json")
    # With both sides of a search there is no prompt for a text without a side.
    own = None if checkpoint.sides_are_tasks and checkpoint.task is None else checkpoint.plain
    settings = {
        "prompts": dict(checkpoint.prompts),
        "default_prompt_name": None if own is None else own.default_prompt_name,
        "similarity_fn_name": checkpoint.similarity,
    }
    write_json(folder / "config_sentence_transformers.json", {**theirs, **settings})
