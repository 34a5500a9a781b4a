"""parquet: shards with the columns id, text (when kept) and vector. The home of pyarrow on the writing side.

A parquet file cannot grow, so rows wait in a spool of two files until a shard is full.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gemel.encode_folder.formats.jsonl import json_values
from gemel.encode_folder.formats.port import FORMATS, Block, Shape
from gemel.encode_folder.storage import append, part, whole_file
from gemel.errors import InputError, MissingExtra
from gemel.types import AnyVectors

GROUP_ROWS = 8192  # rows written at a time, so that memory does not grow with the shard
ROWS = "spool.rows"
VECTORS = "spool.vectors"


class _Parquet:
    sharded = True

    def check(self) -> None:
        _pyarrow()

    def gains(self, block: Block) -> dict[str, bytes]:
        _refuse_surrogates(block)
        rows = (
            [[name] for name in block.ids]
            if block.texts is None
            else zip(block.ids, block.texts, strict=True)
        )
        return {VECTORS: block.vectors.tobytes(), ROWS: json_values(rows)}

    def header_bytes(self, name: str) -> int:
        return 0

    def seal(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        name = f"vectors-{shard:05d}.parquet"
        with whole_file(folder / name) as temporary:
            _write_shard(temporary, part(folder / ROWS), part(folder / VECTORS), shape)
        del sizes[ROWS], sizes[VECTORS]
        return name

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        """The spool, out of the shard."""
        sizes = {VECTORS: 0, ROWS: 0}
        with _pyarrow().parquet.ParquetFile(folder / file) as shard:
            for batch in shard.iter_batches(batch_size=GROUP_ROWS):
                texts = batch.column("text").to_pylist() if "text" in batch.schema.names else None
                flat = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
                block = Block(batch.column("id").to_pylist(), texts, flat.reshape(-1, shape.dim), shard=0)
                for name, data in self.gains(block).items():
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
            for start in range(0, shape.rows, GROUP_ROWS):
                group = np.array(numbers[start : start + GROUP_ROWS])
                columns = list(zip(*(json.loads(line) for line in islice(lines, len(group))), strict=True))
                vector = pa.FixedSizeListArray.from_arrays(pa.array(group.reshape(-1)), type=kind)
                arrays = [*(pa.array(column, pa.string()) for column in columns), vector]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _refuse_surrogates(block: Block) -> None:
    """Parquet stores UTF-8 only. Said when the row arrives, not when its shard is full."""
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
