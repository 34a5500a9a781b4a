"""The formats of an encoded folder: npy, safetensors, jsonl and parquet. One class each, registered in `FORMATS`.

npy and safetensors are raw rows behind a header of fixed length, which is written at the end, with ids and texts in
files of JSON lines. jsonl has one {"id", "text", "vector"} per line. A parquet file cannot grow, so its rows wait in a
spool of two files until a shard is full.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gemel.errors import InputError, MissingExtra
from gemel.files.atomic import append, atomic_file, finish_part, part
from gemel.registry import Registry
from gemel.terminal import printable_json
from gemel.types import AnyVectors


@dataclass(frozen=True)
class RowBlock:
    """Rows that are written and recorded together, all of one shard."""

    ids: Sequence[str]
    texts: Sequence[str] | None
    """None: texts are not stored."""
    vectors: AnyVectors
    shard: int


@dataclass(frozen=True)
class Shape:
    """Shape and type of the vectors in one file."""

    rows: int
    dim: int
    dtype: str


class Format(Protocol):
    """How rows are stored. Growing files are named as they will be in the end."""

    @property
    def sharded(self) -> bool:
        """Whether rows are spread over files of a fixed number of rows."""
        ...

    def check(self) -> None:
        """Raise when a package that the format needs is missing, before any work."""
        ...

    def added(self, block: RowBlock) -> dict[str, bytes]:
        """The bytes that the block adds to each growing file."""
        ...

    def header_bytes(self, name: str) -> int:
        """Bytes to leave free at the start of a growing file."""
        ...

    def close(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        """Make the file of a full shard from the growing ones, which are removed from `sizes`; returns its name.

        Doing it twice gives the same bytes.
        """
        ...

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        """The growing files that `close` made the file of, created again where missing, and their sizes."""
        ...

    def vectors(self, path: Path, shape: Shape) -> AnyVectors:
        """The vectors of a finished file, memory-mapped where the format allows it."""
        ...

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        """All values of "id" or "text", in order of the rows."""
        ...


FORMATS: Registry[Format] = Registry("format")

_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}

_COLUMNS = {"id": "ids.jsonl", "text": "texts.jsonl"}

_JSONL = "vectors.jsonl"

_GROUP_ROWS = 8192  # rows of parquet written at a time, so that memory does not grow with the shard

_SPOOL_ROWS, _SPOOL_VECTORS = "spool.rows", "spool.vectors"

_DIGITS = {"float32": "%.9g", "float16": "%.5g"}  # enough for every value to come back as the same bits


class _Raw:
    """Rows as they are in memory, behind a header."""

    def __init__(self, pattern: str, header_bytes: int, *, sharded: bool) -> None:
        self.pattern = pattern
        self.header_size = header_bytes
        self.sharded = sharded

    def check(self) -> None:
        pass

    def added(self, block: RowBlock) -> dict[str, bytes]:
        added = {
            self.pattern.format(block.shard): block.vectors.tobytes(),
            "ids.jsonl": json_values(block.ids),
        }
        if block.texts is not None:
            added["texts.jsonl"] = json_values(block.texts)
        return added

    def header_bytes(self, name: str) -> int:
        return 0 if name in _COLUMNS.values() else self.header_size

    def close(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
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
            if file.read(self.header_size) != self.header(shape):
                raise ValueError("its header is not the one that was written")
        return np.memmap(path, shape.dtype, "r", offset=self.header_size, shape=(shape.rows, shape.dim))

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        with (folder / _COLUMNS[name]).open("rb") as lines:
            return [json.loads(line) for line in lines]


class _Npy(_Raw):
    """One array file that `numpy.load(…, mmap_mode="r")` opens."""

    def header(self, shape: Shape) -> bytes:
        # Format 1.0 of numpy.lib.format: magic, version, length of the text, the text, spaces, a newline.
        descr = np.lib.format.dtype_to_descr(np.dtype(shape.dtype))
        text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({shape.rows}, {shape.dim}), }}"
        length = self.header_size - 10
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
        length = self.header_size - 8
        text = json.dumps({"vectors": tensor}, separators=(",", ":"))
        return length.to_bytes(8, "little") + text.encode("ascii").ljust(length)


FORMATS.add("npy")(_Npy("vectors.npy", 128, sharded=False))

FORMATS.add("safetensors")(_Safetensors("vectors-{:05d}.safetensors", 256, sharded=True))


class _Jsonl:
    sharded = False

    def check(self) -> None:
        pass

    def added(self, block: RowBlock) -> dict[str, bytes]:
        return {_JSONL: b"".join(json_rows(block.ids, block.vectors, block.texts))}

    def header_bytes(self, name: str) -> int:
        return 0

    def close(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        finish_part(folder / _JSONL, sizes.pop(_JSONL), b"")
        return _JSONL

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
        with (folder / _JSONL).open("rb") as lines:
            return [json.loads(line)[name] for line in lines]


FORMATS.add("jsonl")(_Jsonl())


def json_values(values: Iterable[object]) -> bytes:
    """One JSON value per line, as UTF-8."""
    return b"".join(_json_line(value) for value in values)


def json_rows(ids: Sequence[str], vectors: AnyVectors, texts: Sequence[str] | None = None) -> Iterator[bytes]:
    """One {"id", "vector"} object per line; the numbers read back as exactly the same values."""
    template = "[" + ", ".join([_DIGITS.get(str(vectors.dtype), "%d")] * vectors.shape[1]) + "]"
    for row, name in enumerate(ids):
        numbers = template % tuple(vectors[row].tolist())
        fields = {"id": name} if texts is None else {"id": name, "text": texts[row]}
        yield _json_line(fields)[:-2] + b', "vector": ' + numbers.encode("ascii") + b"}\n"


def _json_line(value: object) -> bytes:
    # Lone surrogates, which have no UTF-8, and control characters of terminals are escaped.
    return (printable_json(value) + "\n").encode("utf-8")


class _Parquet:
    sharded = True

    def check(self) -> None:
        _pyarrow()

    def added(self, block: RowBlock) -> dict[str, bytes]:
        _refuse_surrogates(block)
        rows = (
            [[name] for name in block.ids]
            if block.texts is None
            else zip(block.ids, block.texts, strict=True)
        )
        return {_SPOOL_VECTORS: block.vectors.tobytes(), _SPOOL_ROWS: json_values(rows)}

    def header_bytes(self, name: str) -> int:
        return 0

    def close(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        name = f"vectors-{shard:05d}.parquet"
        with atomic_file(folder / name, exclusive=True) as temporary:
            _write_shard(temporary, part(folder / _SPOOL_ROWS), part(folder / _SPOOL_VECTORS), shape)
        del sizes[_SPOOL_ROWS], sizes[_SPOOL_VECTORS]
        return name

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        """The spool, made from the shard."""
        sizes = {_SPOOL_VECTORS: 0, _SPOOL_ROWS: 0}
        with _pyarrow().parquet.ParquetFile(folder / file) as shard:
            for batch in shard.iter_batches(batch_size=_GROUP_ROWS):
                texts = batch.column("text").to_pylist() if "text" in batch.schema.names else None
                flat = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
                block = RowBlock(batch.column("id").to_pylist(), texts, flat.reshape(-1, shape.dim), shard=0)
                for name, data in self.added(block).items():
                    sizes[name] = append(folder / name, sizes[name], data)
        return sizes

    def vectors(self, path: Path, shape: Shape) -> AnyVectors:
        column = _pyarrow().parquet.read_table(path, columns=["vector"])["vector"].combine_chunks()
        flat: AnyVectors = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(shape.rows, shape.dim)

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        values: list[str] = []
        for file in files:
            values += _pyarrow().parquet.read_table(folder / file, columns=[name])[name].to_pylist()
        return values


FORMATS.add("parquet")(_Parquet())


def _pyarrow() -> Any:  # noqa: ANN401 - the module; it has no stubs
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("the format parquet", "pyarrow", "parquet") from error
    return pyarrow


def _write_shard(path: Path, rows: Path, vectors: Path, shape: Shape) -> None:
    pa = _pyarrow()
    numbers = np.memmap(vectors, shape.dtype, "r", shape=(shape.rows, shape.dim))
    with rows.open("rb") as lines:
        names = ["id", "text"][: len(json.loads(lines.readline()))]
        lines.seek(0)
        kind = pa.list_(pa.from_numpy_dtype(numbers.dtype), shape.dim)
        schema = pa.schema([*((name, pa.string()) for name in names), ("vector", kind)])
        settings = {"compression": "zstd", "use_dictionary": False, "write_statistics": names}
        with pa.parquet.ParquetWriter(path, schema, **settings) as writer:
            for start in range(0, shape.rows, _GROUP_ROWS):
                group = np.array(numbers[start : start + _GROUP_ROWS])
                columns = list(zip(*(json.loads(line) for line in islice(lines, len(group))), strict=True))
                vector = pa.FixedSizeListArray.from_arrays(pa.array(group.reshape(-1)), type=kind)
                arrays = [*(pa.array(column, pa.string()) for column in columns), vector]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _refuse_surrogates(block: RowBlock) -> None:
    """Parquet stores UTF-8 only. Raised when the row arrives, not when its shard is full."""
    for row, name in enumerate(block.ids):
        try:
            name.encode("utf-8")
            if block.texts is not None:
                block.texts[row].encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"the row with id {name!r} holds half a surrogate pair, which parquet cannot store. "
                "Use another format"
            ) from error
