"""jsonl: lines like {"id": "7", "vector": [0.25, -1]}, with "text" when texts are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemel.encode_folder.formats.port import FORMATS, Block, Shape
from gemel.encode_folder.storage import damaged, finish_part
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
        size = path.stat().st_size if path.is_file() else 0
        if shape.rows * shape.dim > size:
            raise damaged(path, f"it has {size:,} bytes for {shape.rows:,} vectors of {shape.dim} numbers")
        vectors, count = np.empty((shape.rows, shape.dim), shape.dtype), 0
        for count, found in enumerate(json_lines(path), 1):
            vector = found.get("vector") if isinstance(found, dict) else None
            if count > shape.rows or not isinstance(vector, list) or len(vector) != shape.dim:
                raise damaged(
                    path, f"line {count} is none of its {shape.rows:,} vectors of {shape.dim} numbers"
                )
            try:
                vectors[count - 1] = vector
            except (TypeError, ValueError, OverflowError) as error:
                raise damaged(path, f"line {count} holds no vector ({error})") from error
        if count != shape.rows:
            raise damaged(path, f"it holds {count:,} vectors, and {shape.rows:,} were written")
        return vectors

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        rows = list(json_lines(folder / NAME))
        values: list[Any] = [row.get(name) if isinstance(row, dict) else None for row in rows]
        return values


FORMATS.add("jsonl")(_Jsonl())


def json_lines(path: Path) -> Iterator[Any]:
    """The value of every line."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error) from error


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
