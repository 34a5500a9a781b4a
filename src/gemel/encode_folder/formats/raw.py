"""npy and safetensors: raw rows behind a header of fixed length; ids and texts in files of JSON lines.

The header has room for any number of rows, so it is filled in at the end and no row ever moves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemel.encode_folder.formats.jsonl import json_values
from gemel.encode_folder.formats.port import FORMATS, Block, Shape
from gemel.encode_folder.storage import finish_part
from gemel.types import AnyVectors

_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
_COLUMNS = {"id": "ids.jsonl", "text": "texts.jsonl"}


class _Raw:
    def __init__(self, pattern: str, header_bytes: int, *, sharded: bool) -> None:
        self.pattern = pattern
        self.room = header_bytes
        self.sharded = sharded

    def check(self) -> None:
        pass

    def gains(self, block: Block) -> dict[str, bytes]:
        gained = {
            self.pattern.format(block.shard): block.vectors.tobytes(),
            "ids.jsonl": json_values(block.ids),
        }
        if block.texts is not None:
            gained["texts.jsonl"] = json_values(block.texts)
        return gained

    def header_bytes(self, name: str) -> int:
        return 0 if name in _COLUMNS.values() else self.room

    def seal(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        name = self.pattern.format(shard)
        finish_part(folder / name, sizes.pop(name), self.header(shape))
        return name

    def header(self, shape: Shape) -> bytes:
        raise NotImplementedError

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        return {file: (folder / file).stat().st_size}

    def vectors(self, path: Path, shape: Shape) -> AnyVectors:
        if not shape.rows:
            return np.zeros((0, shape.dim), shape.dtype)
        with path.open("rb") as file:
            if file.read(self.room) != self.header(shape):
                raise ValueError("it does not begin as it should")
        return np.memmap(path, shape.dtype, "r", offset=self.room, shape=(shape.rows, shape.dim))

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        with (folder / _COLUMNS[name]).open("rb") as lines:
            return [json.loads(line) for line in lines]


class _Npy(_Raw):
    """One array file that `numpy.load(…, mmap_mode="r")` opens."""

    def header(self, shape: Shape) -> bytes:
        # Format 1.0 of numpy.lib.format: magic, version, length of the text, the text, spaces, a newline.
        descr = np.lib.format.dtype_to_descr(np.dtype(shape.dtype))
        text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({shape.rows}, {shape.dim}), }}"
        length = self.room - 10
        start = b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little")
        return start + text.encode("ascii").ljust(length - 1) + b"\n"


class _Safetensors(_Raw):
    """Shards with one tensor called `vectors`."""

    def header(self, shape: Shape) -> bytes:
        tensor = {
            "dtype": _SAFETENSORS_NAMES[shape.dtype],
            "shape": [shape.rows, shape.dim],
            "data_offsets": [0, shape.rows * shape.dim * np.dtype(shape.dtype).itemsize],
        }
        length = self.room - 8
        text = json.dumps({"vectors": tensor}, separators=(",", ":"))
        return length.to_bytes(8, "little") + text.encode("ascii").ljust(length)


FORMATS.add("npy")(_Npy("vectors.npy", 128, sharded=False))
FORMATS.add("safetensors")(_Safetensors("vectors-{:05d}.safetensors", 256, sharded=True))
