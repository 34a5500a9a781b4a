"""The safetensors of one module's folder; pickles are refused with the command that converts them."""

from __future__ import annotations

import shlex
from pathlib import Path

from gemel.checkpoint.json_file import read_object
from gemel.checkpoint.tensors import Tensors
from gemel.errors import ModelError

_OTHER_FORMATS = {
    "GGUF": ("*.gguf",),
    "ONNX": ("*.onnx", "onnx/*.onnx"),
    "OpenVINO": ("openvino_model.xml", "openvino/openvino_model.xml"),
    "TensorFlow": ("tf_model.h5",),
    "Flax": ("flax_model.msgpack",),
}
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
    other = other_format(folder)
    if other is not None:
        raise ModelError(f"{folder} has no weights that gemel reads: {other}")
    raise ModelError(f"no weights in {folder}: expected a file named model.safetensors")


def other_format(folder: Path) -> str | None:
    """What a folder without safetensors holds instead, and what to do about it; None if nobody knows."""
    if (folder / "adapter_config.json").is_file():
        named = read_object(folder / "adapter_config.json").get("base_model_name_or_path")
        base = f"the model {named!r}" if isinstance(named, str) and named else "a model it does not name"
        return (
            f"it is an adapter only (LoRA and the like), to be added to {base}. Merge the two with peft "
            "(merge_and_unload) and save the result"
        )
    for kind, patterns in _OTHER_FORMATS.items():
        found = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
        if found:
            return (
                f"{found[0].relative_to(folder)} holds the model in the format {kind}, and gemel reads safetensors. "
                "Fetch the safetensors of the same model"
            )
    return None
