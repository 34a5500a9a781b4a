"""Weights out of safetensors files: named, memory-mapped, read only, nothing read before it is asked for.

A file is an 8-byte length, a JSON header of that length (name -> dtype, shape, span), then the bytes of the
tensors without gaps. Every number of the header is checked against the file before it is used.

The safetensors of one module's folder; pickles are refused with the command that converts them.
"""

from __future__ import annotations

import json
import mmap
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.json_file import MAX_JSON, inside, read_object
from gemel.errors import ModelError

MAX_HEADER = 100 * 2**20

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",  # the upper half of a float32; numpy has no name for it
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


@dataclass(frozen=True)
class _Span:
    """Where one tensor lies: `start` and `end` are bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Tensors(Mapping[str, NDArray[np.float32]]):
    """Names to arrays. float32 is a view of the file; half, bfloat16 and double become float32 on access.

    Tensors of whole numbers are given as they are stored. Arrays must not be written to.
    """

    def __init__(self, files: Mapping[Path, frozenset[str] | None]) -> None:
        """`files`: safetensors files, each with the names to take from it (None: all)."""
        self.files = tuple(files)
        self._places: dict[str, tuple[_File, _Span]] = {}
        self._converted: dict[str, NDArray[np.float32]] = {}
        for path, names in files.items():
            file = _File(path)
            missing = sorted((names or frozenset()) - file.spans.keys())
            if missing:
                raise ModelError(f"{path} has no tensor {missing[0]!r}, which the index file puts there")
            for name, span in file.spans.items():
                if names is None or name in names:
                    self._places[name] = (file, span)

    @classmethod
    def of_folder(cls, folder: Path) -> Tensors:
        """model.safetensors, or the shards that model.safetensors.index.json lists."""
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if single.is_file() or not index.is_file():
            return cls({single: None})
        weight_map = read_object(index, MAX_JSON).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(shard, str) for shard in weight_map.values()
        ):
            raise ModelError(f"{index} has no 'weight_map' of tensor names to file names")
        shards: dict[str, set[str]] = {}
        for name, shard in weight_map.items():
            shards.setdefault(shard, set()).add(name)
        return cls({inside(folder, shard): frozenset(names) for shard, names in sorted(shards.items())})

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name in self._converted:
            return self._converted[name]
        file, span = self._places[name]
        stored = file.array(span)
        array = _as_float32(stored, span.dtype)
        if array is not stored:
            array.flags.writeable = False
            self._converted[name] = array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places  # Mapping's own would read the tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without a look at its numbers."""
        return self._places[name][1].shape

    def metadata(self, path: Path) -> Mapping[str, str]:
        """What the header of one of the files says beside its tensors."""
        with path.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        found = header.get("__metadata__")
        return found if isinstance(found, dict) else {}

    def finite(self, name: str) -> bool:
        """Whether a tensor holds neither NaN nor infinity; it is looked at as it is stored, and nothing is kept."""
        file, span = self._places[name]
        stored = file.array(span)
        if span.dtype == "BF16":
            return not bool(((stored & 0x7F80) == 0x7F80).any())  # all bits of the exponent
        return is_finite(stored)

    def __repr__(self) -> str:
        return f"Tensors({len(self)} in {', '.join(path.name for path in self.files)})"


class _File:
    """One safetensors file, mapped."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as stream:
                start = stream.read(8)
                if len(start) < 8:
                    raise _damaged(path, "it is shorter than its first field")
                self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelError(
                f"no weights at {path}: expected a file of that name in the model folder"
            ) from None
        except OSError as error:
            raise ModelError(f"cannot read the weights {path}: {error.strerror or error}") from error
        self.spans = _header(path, self._bytes, int.from_bytes(start, "little"))

    def array(self, span: _Span) -> NDArray[Any]:
        dtype = np.dtype(_DTYPES[span.dtype])
        array: NDArray[Any] = np.ndarray(span.shape, dtype, buffer=self._bytes, offset=span.start)
        # The format does not promise aligned numbers; engines that take the pointer need them.
        return array if array.flags.aligned else array.copy()


def is_finite(array: NDArray[Any]) -> bool:
    """True if no number is NaN or infinite. One sum says it, unless that itself grows too large."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


def _header(path: Path, content: mmap.mmap, length: int) -> dict[str, _Span]:
    """The checked table of tensors, in the order of the header."""
    if length > MAX_HEADER:
        raise _damaged(path, f"its header claims {length:,} bytes, at most {MAX_HEADER:,} are allowed")
    if 8 + length > len(content):
        raise _damaged(path, f"its header claims {length:,} bytes, the file has {len(content):,}")
    try:
        header = json.loads(content[8 : 8 + length].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    spans = {
        name: _span(path, name, entry, 8 + length, len(content))
        for name, entry in header.items()
        if name != "__metadata__"
    }
    end = 8 + length
    for name, span in sorted(spans.items(), key=lambda item: (item[1].start, item[1].end)):
        if span.start != end:
            raise _damaged(path, f"tensor {name!r} does not start where the one before it ends")
        end = span.end
    if end != len(content):
        raise _damaged(path, f"its tensors end at byte {end:,}, the file at {len(content):,}")
    return spans


def _span(path: Path, name: str, entry: object, base: int, size: int) -> _Span:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not (_whole_numbers(shape) and _whole_numbers(offsets) and len(offsets) == 2):
        raise _damaged(path, f"the entry of tensor {name!r} is not a dtype, a shape and two offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelError(f"{path}: tensor {name!r} has the type {dtype!r:.60}. Known: {', '.join(_DTYPES)}")
    start, end = offsets
    if not start <= end <= size - base:
        raise _damaged(
            path,
            f"tensor {name!r} lies at bytes {base + start:,} to {base + end:,} of {size:,}; is the file cut?",
        )
    if prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - start:
        raise _damaged(
            path, f"tensor {name!r} of shape {shape} and type {dtype} does not fill {end - start:,} bytes"
        )
    return _Span(dtype, tuple(shape), base + start, base + end)


def _whole_numbers(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _as_float32(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F16", "F64"):
        return array.astype(np.float32)
    return array


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path} is not a whole safetensors file: {reason}. Fetch or copy it again")


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
