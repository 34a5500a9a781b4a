"""The safetensors of one module's folder; pickles are refused with the command that converts them."""

from __future__ import annotations

import shlex
from pathlib import Path

from gemel.checkpoint.tensors import Tensors
from gemel.errors import ModelError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def has_safetensors(folder: Path) -> bool:
    """True if `folder` holds model.safetensors or its index of shards."""
    return any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))


def pickles(folder: Path) -> list[Path]:
    """Files of `folder` that look like weights in Python's pickle format."""
    found = (path for pattern in PICKLES for path in folder.glob(pattern) if path.is_file())
    return sorted(path for path in found if path.name != "training_args.bin")


def module_weights(model: Path, folder: Path) -> Tensors:
    """The tensors of `folder`, which is the checkpoint `model` itself or a part of it."""
    if has_safetensors(folder):
        return Tensors.of_folder(folder)
    unsafe = pickles(folder)
    if unsafe:
        raise ModelError(
            f"{unsafe[0]} is a pickle, which can run any code when it is read; gemel reads safetensors only. "
            f"Convert the checkpoint once with: gemel models convert {shlex.quote(str(model))}"
        )
    raise ModelError(f"no weights in {folder}: expected a file named model.safetensors")
