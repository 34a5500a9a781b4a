"""Converts pickled weights to safetensors, with torch's weights-only reader: no code of the checkpoint is run.

Also writes tokenizer.json where there is only an older tokenizer format. Needs the `train` extra.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemel.checkpoint.files import (
    M3_LAYERS,
    PICKLES,
    has_safetensors,
    inside,
    pickles,
    read_json,
    read_object,
    reason_of,
)
from gemel.checkpoint.folder import sentencepiece_file
from gemel.checkpoint.tokenizer import has_wordpiece_vocabulary
from gemel.errors import InputError, MissingExtra, ModelError
from gemel.files.atomic import atomic_file
from gemel.files.machine import disable_usage_reports

_SAFE_TORCH = "2.10"
"""Earlier versions can be made to run code when they read weights: CVE-2025-32434 (before 2.6), CVE-2026-24747 (before
2.10)."""


@dataclass(frozen=True)
class ConvertResult:
    """What a conversion wrote."""

    folder: Path
    written: tuple[Path, ...]


def convert(folder: Path, out: Path | None = None) -> ConvertResult:
    """Write model.safetensors next to every pickle of the checkpoint, or a copy without pickles in `out`.

    Old files stay; existing safetensors are not written again.
    """
    if not folder.is_dir():
        raise ModelError(f"no model folder {folder}. Give the folder of a checkpoint")
    if out is None:
        return ConvertResult(folder, tuple(_convert_here(folder)))
    if out.exists():
        raise InputError(f"{out} exists already. Give a new folder, or none to convert in place")
    working = out.with_name(f".{out.name}.{uuid.uuid4().hex}.part")
    try:
        _refuse_outside_links(folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        # Pickles are not copied: they may have gigabytes.
        shutil.copytree(folder, working, ignore=shutil.ignore_patterns(*PICKLES, "*.bin.index.json"))
        written = _convert_here(folder, working)
        working.rename(out)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return ConvertResult(out, tuple(out / path.relative_to(working) for path in written))


def _refuse_outside_links(folder: Path) -> None:
    """Refuse links to files outside the model: a copy follows them, and could contain private files of the user.

    The Hub's cache links from models--NAME/snapshots/REVISION to models--NAME/blobs.
    """
    real = folder.resolve()
    root = real.parent.parent if real.parent.name == "snapshots" else real
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise ModelError(
                f"{path} is a link to a file outside the model. Put the file itself there, or remove the link"
            )


def _convert_here(folder: Path, out: Path | None = None) -> list[Path]:
    """Convert every module of `folder` into the same sub-folder of `out`."""
    out = out or folder
    written: list[Path] = []
    parts = _module_folders(folder)
    for part in parts:
        if not has_safetensors(part) and pickles(part):
            target = out / part.relative_to(folder) / "model.safetensors"
            _write_weights(_load_pickles(part), target)
            written.append(target)
    for name in M3_LAYERS:
        source, target = folder / f"{name}.pt", out / f"{name}.safetensors"
        if source.is_file() and not (folder / target.name).is_file():
            _write_weights(_load_pickle(source), target)
            written.append(target)
    first = parts[0]
    if _needs_tokenizer(first):
        target = out / first.relative_to(folder) / "tokenizer.json"
        _write_tokenizer(first, target)
        written.append(target)
    return written


def _module_folders(folder: Path) -> list[Path]:
    """The folder of each module, the transformer's first."""
    if not (folder / "modules.json").is_file():
        return [folder]
    listed = read_json(folder / "modules.json")
    entries = listed if isinstance(listed, list) else []
    parts = [inside(folder, str(entry.get("path", ""))) for entry in entries if isinstance(entry, dict)]
    return list(dict.fromkeys(parts)) or [folder]


def _load_pickles(folder: Path) -> dict[str, Any]:  # Any: torch tensors; torch is an extra
    """All tensors of one module, from one file or from the shards that an index lists."""
    index = folder / "pytorch_model.bin.index.json"
    if index.is_file():
        shards = sorted(set(read_object(index).get("weight_map", {}).values()))
        paths = [inside(folder, str(shard)) for shard in shards]
    else:
        preferred = folder / "pytorch_model.bin"
        paths = [preferred] if preferred.is_file() else pickles(folder)[:1]
    tensors: dict[str, Any] = {}
    for path in paths:
        tensors.update(_load_pickle(path))
    return tensors


def _load_pickle(path: Path) -> dict[str, Any]:
    torch = _torch()
    _check_reader(torch.__version__, path)
    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files from before torch 1.6 cannot be mapped
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its unpickler raises many kinds of errors
        raise ModelError(
            f"cannot read {path} as plain weights: {reason_of(error).rstrip('.')}. Do not use this checkpoint"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    tensors = content if isinstance(content, dict) else {}
    tensors = {_new_name(str(name)): value for name, value in tensors.items() if torch.is_tensor(value)}
    if not tensors:
        raise ModelError(f"{path} has no table of tensors. Give the checkpoint of a model")
    return tensors


def _check_reader(version: str, path: Path) -> None:
    """Refuse a torch whose weights-only reader has known vulnerabilities."""
    from torch.torch_version import TorchVersion

    if TorchVersion(version) < _SAFE_TORCH:
        raise ModelError(
            f"{path} is not read: a pickle can run code in torch {version}, even as plain weights, which was "
            f"fixed in {_SAFE_TORCH}. Upgrade: pip install 'torch>={_SAFE_TORCH}'"
        )


def _new_name(name: str) -> str:
    """Checkpoints converted from TensorFlow have old names of the parts of a layer norm."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _write_weights(tensors: dict[str, Any], target: Path) -> None:
    from safetensors.torch import save_file

    # clone: safetensors refuses tensors that share memory (tied weights, views); each gets its own bytes.
    layout = _torch().contiguous_format
    separate = {name: tensor.detach().clone(memory_format=layout) for name, tensor in tensors.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as temporary:
        save_file(separate, temporary, metadata={"format": "pt"})


def _needs_tokenizer(folder: Path) -> bool:
    if (folder / "tokenizer.json").is_file() or not (folder / "config.json").is_file():
        return False
    kind = read_object(folder / "config.json").get("model_type")
    return not (has_wordpiece_vocabulary(kind) and (folder / "vocab.txt").is_file())


def _write_tokenizer(folder: Path, target: Path) -> None:
    disable_usage_reports("huggingface_hub")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtra("converting a tokenizer", "transformers", "train") from error
    pieces = sentencepiece_file(folder)
    if pieces is not None and find_spec("sentencepiece") is None:
        raise ModelError(
            f"{pieces} is a SentencePiece model, and making tokenizer.json of it needs the package 'sentencepiece'. "
            "Install it with: pip install sentencepiece protobuf"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), use_fast=True, trust_remote_code=False, local_files_only=True
        )
        fast = tokenizer.backend_tokenizer
    except Exception as error:  # any kind of error
        raise ModelError(f"cannot make tokenizer.json for {folder}: {reason_of(error)}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as temporary:
        fast.save(str(temporary))


def _torch() -> Any:  # noqa: ANN401 - the module
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("converting a pickle checkpoint", "torch", "train") from error
    return torch
