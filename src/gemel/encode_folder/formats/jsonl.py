"""jsonl: lines like {"id": "7", "vector": [0.25, -1]}, with "text" when texts are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gemel.encode_folder.formats.port import FORMATS, Block, Shape
from gemel.encode_folder.storage import finish_part
from gemel.types import AnyVectors

NAME = "vectors.jsonl"
_DIGITS = {"float32": "%.9g", "float16": "%.5g"}  # enough for every value to come back as the same bits


class _Jsonl:
    sharded = False

    def check(self) -> None:
        pass

    def gains(self, block: Block) -> dict[str, bytes]:
        return {NAME: b"".join(json_rows(block.ids, block.vectors, block.texts))}

    def header_bytes(self, name: str) -> int:
        return 0

    def seal(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        finish_part(folder / NAME, sizes.pop(NAME), b"")
        return NAME

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        return {file: (folder / file).stat().st_size}

    def vectors(self, path: Path, shape: Shape) -> AnyVectors:
        vectors = np.empty((shape.rows, shape.dim), shape.dtype)
        with path.open("rb") as lines:
            count = 0
            for count, line in enumerate(lines, 1):
                vectors[count - 1] = json.loads(line)["vector"]
        return vectors[:count]

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        with (folder / NAME).open("rb") as lines:
            return [json.loads(line)[name] for line in lines]


FORMATS.add("jsonl")(_Jsonl())


def json_values(values: Iterable[object]) -> bytes:
    """One JSON value a line, as UTF-8."""
    return b"".join(_json_line(value) for value in values)


def json_rows(ids: Sequence[str], vectors: AnyVectors, texts: Sequence[str] | None = None) -> Iterator[bytes]:
    """One {"id", "vector"} object a line; the numbers read back as exactly the same values."""
    template = "[" + ", ".join([_DIGITS.get(str(vectors.dtype), "%d")] * vectors.shape[1]) + "]"
    for row, name in enumerate(ids):
        numbers = template % tuple(vectors[row].tolist())
        fields = {"id": name} if texts is None else {"id": name, "text": texts[row]}
        yield _json_line(fields)[:-2] + b', "vector": ' + numbers.encode("ascii") + b"}\n"


def _json_line(value: object) -> bytes:
    try:
        return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8, but JSON can escape it
        return (json.dumps(value) + "\n").encode("ascii")
