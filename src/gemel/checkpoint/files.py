"""The files of a checkpoint, which is untrusted data: JSON, and safetensors that are memory-mapped and read only.

A safetensors file is an 8-byte length, a JSON header of that length (name -> dtype, shape, span), then the bytes of the
tensors without gaps. Every number of the header is checked against the file before it is used. Pickles are refused with
the command that converts them.
"""

from __future__ import annotations

import json
import mmap
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gemel.errors import ModelError

MAX_JSON = 10 * 2**20

MAX_TOKENIZER = 200 * 2**20

MAX_NAME, MAX_PATH = 255, 1024  # bytes; systems refuse longer names with their own errors


def read_json(path: Path, limit: int = MAX_JSON) -> Any:  # noqa: ANN401 - the caller checks the shape
    """The content of a JSON file of at most `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path} has {size:,} bytes; at most {limit:,} are read. Is it the right file?")
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"no file {path}: the checkpoint is not complete. Fetch or copy it again") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is not valid JSON ({error}). Fetch or copy the checkpoint again") from error


def read_object(path: Path, limit: int = MAX_JSON) -> Mapping[str, Any]:
    """The content of a JSON file that must be an object."""
    content = read_json(path, limit)
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def read_object_if_there(path: Path) -> Mapping[str, Any]:
    """As `read_object`; a missing file is an empty object."""
    return read_object(path) if path.is_file() else {}


def inside(folder: Path, relative: str) -> Path:
    """`folder / relative`, refused when a checkpoint's path would leave the folder."""
    windows = PureWindowsPath(relative)
    parts = PurePosixPath(relative.replace("\\", "/")).parts
    if windows.drive or windows.root or ".." in parts or "\0" in relative:
        raise ModelError(
            f"{folder}: the path {relative!r} leaves the model's folder. Do not use this checkpoint"
        )
    try:
        lengths = [len(part.encode("utf-8")) for part in parts]
    except UnicodeEncodeError:
        raise ModelError(
            f"{folder}: the path {relative!r:.80} has half a character (a lone surrogate)"
        ) from None
    if sum(lengths) > MAX_PATH or max(lengths, default=0) > MAX_NAME:
        raise ModelError(
            f"{folder}: the path {relative[:60]!r}... is too long for a file: a name has at most {MAX_NAME} bytes"
        )
    return folder.joinpath(*parts)


# torch and transformers advise how to load a file with the code that is in it.
_UNSAFE = re.compile(
    r"weights_only|trust_remote_code|allow_pickle|trusted source|add_safe_globals|safe_globals", re.I
)

_GLOBAL = re.compile(r"\bGLOBAL ([\w.]+)")


def reason_of(error: Exception) -> str:
    """One line with the reason, without advice to load the file anyway."""
    text = str(error)
    if found := _GLOBAL.search(text):
        return f"it calls {found[1]}, which is code, not a tensor"
    lines = [" ".join(_safe_sentences(line)) for line in text.splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def _safe_sentences(line: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?:])\s+", line.strip()) if part and not _UNSAFE.search(part)]


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
    """The location of one tensor: `start` and `end` are bytes from the start of the file."""

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
        self._entries: dict[str, tuple[_File, _Span]] = {}
        self._converted: dict[str, NDArray[np.float32]] = {}
        for path, names in files.items():
            file = _File(path)
            missing = sorted((names or frozenset()) - file.spans.keys())
            if missing:
                raise ModelError(f"{path} has no tensor {missing[0]!r}, which the index file lists there")
            for name, span in file.spans.items():
                if names is None or name in names:
                    self._entries[name] = (file, span)

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
        file, span = self._entries[name]
        stored = file.array(span)
        array = _as_float32(stored, span.dtype)
        if array is not stored:
            array.flags.writeable = False
            self._converted[name] = array
        return array

    def read(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32, read from its file into memory of its own: large weights that are needed once."""
        file, span = self._entries[name]
        return _as_float32(file.read(span), span.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping's own would read the tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading its numbers."""
        return self._entries[name][1].shape

    def metadata(self, path: Path) -> Mapping[str, str]:
        """The metadata in the header of one of the files."""
        with path.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        metadata = header.get("__metadata__")
        return metadata if isinstance(metadata, dict) else {}

    def finite(self, name: str) -> bool:
        """Whether a tensor has neither NaN nor infinity; read as it is stored, without a converted copy."""
        file, span = self._entries[name]
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

    def read(self, span: _Span) -> NDArray[Any]:
        """A copy of a tensor; the pages of the file that it was read from do not stay in memory."""
        copied = self.array(span).copy()
        if hasattr(mmap, "MADV_DONTNEED"):
            start = span.start // mmap.PAGESIZE * mmap.PAGESIZE
            self._bytes.madvise(mmap.MADV_DONTNEED, start, span.end - start)
        return copied

    def array(self, span: _Span) -> NDArray[Any]:
        dtype = np.dtype(_DTYPES[span.dtype])
        array: NDArray[Any] = np.ndarray(span.shape, dtype, buffer=self._bytes, offset=span.start)
        # The format does not promise aligned numbers; engines that take the pointer need them.
        return array if array.flags.aligned else array.copy()


def is_finite(array: NDArray[Any]) -> bool:
    """True if no number is NaN or infinite. A finite sum is enough; each number is checked if it overflows."""
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
            f"tensor {name!r} is at bytes {base + start:,} to {base + end:,} of {size:,}; is the file cut?",
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
    return ModelError(f"{path} is not a complete safetensors file: {reason}. Fetch or copy it again")


_OTHER_FORMATS = {
    "GGUF": ("*.gguf",),
    "ONNX": ("*.onnx", "onnx/*.onnx"),
    "OpenVINO": ("openvino_model.xml", "openvino/openvino_model.xml"),
    "TensorFlow": ("tf_model.h5",),
    "Flax": ("flax_model.msgpack",),
}

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

M3_LAYERS = ("sparse_linear", "colbert_linear")
"""Files of BGE-M3 beside its network: a layer each, on every token."""


def has_safetensors(folder: Path) -> bool:
    """True if `folder` has model.safetensors or its index of shards."""
    return any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))


def is_adapter(folder: Path) -> bool:
    """True if `folder` has an adapter and no weights of its own."""
    return (folder / "adapter_config.json").is_file() and not has_safetensors(folder)


def pickles(folder: Path) -> list[Path]:
    """Files of `folder` that look like weights in Python's pickle format; not those of layers beside the network."""
    paths = (path for pattern in PICKLES for path in folder.glob(pattern) if path.is_file())
    return sorted(path for path in paths if path.name != "training_args.bin" and path.stem not in M3_LAYERS)


def module_weights(model: Path, folder: Path) -> Tensors:
    """The tensors of `folder`, which is the checkpoint `model` itself or a part of it."""
    if has_safetensors(folder):
        return Tensors.of_folder(folder)
    unsafe = pickles(folder)
    if unsafe:
        raise ModelError(
            f"{unsafe[0]} is a pickle, which can run any code when it is read; gemel reads safetensors only. "
            f"Convert the checkpoint once with: gemel models convert {shlex.quote(str(model))}",
            code="GEM-204",
        )
    other = other_format(folder)
    if other is not None:
        raise ModelError(f"{folder} has no weights that gemel reads: {other}", code="GEM-202")
    raise ModelError(f"no weights in {folder}: expected a file named model.safetensors", code="GEM-202")


def has_m3_layers(folder: Path) -> bool:
    """True for BGE-M3: beside the network, `folder` has a layer for weights of tokens and one for their vectors."""
    return all(
        any((folder / f"{name}{end}").is_file() for end in (".safetensors", ".pt")) for name in M3_LAYERS
    )


def m3_layer(folder: Path, name: str) -> Tensors:
    """The tensors `weight` and `bias` of a layer of BGE-M3, which has this name."""
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        raise ModelError(
            f"{folder / f'{name}.pt'} is a pickle, which can run any code when it is read; gemel reads safetensors "
            f"only. Convert the checkpoint once with: gemel models convert {shlex.quote(str(folder))}",
            code="GEM-204",
        )
    tensors = Tensors({path: None})
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is None or weight.ndim != 2 or bias is None or bias.shape != weight.shape[:1]:
        raise ModelError(f"{path}: expected a matrix 'weight' and its 'bias', found {', '.join(tensors)}")
    if not is_finite(weight) or not is_finite(bias):
        raise ModelError(f"{path} holds NaN or infinite values. Fetch or save the model again")
    return tensors


def other_format(folder: Path) -> str | None:
    """What a folder without safetensors holds instead, and what to do about it; None if nobody knows."""
    for kind, patterns in _OTHER_FORMATS.items():
        found = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
        if found:
            return (
                f"{found[0].relative_to(folder)} holds the model in the format {kind}, and gemel reads safetensors. "
                "Fetch the safetensors of the same model"
            )
    return None
