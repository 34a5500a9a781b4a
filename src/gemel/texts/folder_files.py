"""The files of an encoded folder: vectors in one of four formats, progress.json and manifest.json.

progress.json (the journal) exists while a job runs, manifest.json when it is finished. Every value of both is checked
before it is used, as files get damaged. So are file names: a folder from somebody else must not lead to files outside
of it.

npy and safetensors are raw rows behind a header of fixed length, which is written at the end, with ids and texts in
files of JSON lines. jsonl has one {"id", "text", "vector"} per line. A parquet file cannot grow, so its rows wait in a
spool of two files until a shard is full.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.files.atomic import (
    START_AGAIN,
    append,
    atomic_file,
    finish_part,
    lock_folder,
    part,
    sha256_of,
    write_atomic,
)
from gemel.registry import Registry
from gemel.terminal import printable_json
from gemel.types import AnyVectors

JOURNAL = "progress.json"

MANIFEST = "manifest.json"

KIND = "gemel-vectors"

VERSION = 1

Json = dict[str, Any]  # what json.loads gives for an object

DTYPES = ("float32", "float16", "int8", "uint8")

_LARGEST = 2**48  # rows, numbers and bytes

# Every name that a job may create, and so may remove; nothing else in the folder is ever touched.
_OURS = re.compile(
    r"(manifest\.json|progress\.json|(ids|texts)\.jsonl|vectors\.(npy|jsonl)|spool\.(vectors|rows)"
    r"|vectors-\d{5,}\.(safetensors|parquet))(\.part|\.tmp)?"
)

_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}

_COLUMNS = {"id": "ids.jsonl", "text": "texts.jsonl"}

_JSONL = "vectors.jsonl"

_GROUP_ROWS = 8192  # rows of parquet written at a time, so that memory does not grow with the shard

_SPOOL_ROWS, _SPOOL_VECTORS = "spool.rows", "spool.vectors"

_DIGITS = {"float32": "%.9g", "float16": "%.5g"}  # enough for every value to come back as the same bits


@dataclass(frozen=True)
class FolderPlan:
    """What the bytes of the result depend on, besides the input."""

    fingerprint: Json
    format: str
    keep_texts: bool
    shard_rows: int | None
    """None: all rows in one file."""

    def refuse_other(self, earlier: FolderPlan, folder: Path) -> None:
        """Raise if the folder was begun with another plan, naming every difference."""
        before, now = _flat(asdict(earlier)), _flat(asdict(self))
        missing = "nothing"
        differences = [
            f"{name} is {before.get(name, missing)!r} there and {now.get(name, missing)!r} here"
            for name in sorted(before.keys() | now.keys())
            if before.get(name, missing) != now.get(name, missing)
        ]
        if differences:
            raise InputError(
                f"{folder} was made with other settings: {'; '.join(differences)}. {START_AGAIN}",
                code="GEM-308",
            )


@dataclass(frozen=True)
class Shard:
    """A finished file of vectors."""

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Journal:
    """The state after the last block on disk, written atomically."""

    plan: FolderPlan
    rows: int = 0
    input_sha256: str = hashlib.sha256().hexdigest()
    """`InputHash` of these rows."""
    dtype: str | None = None
    """None before the first block."""
    dim: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Growing files: the valid bytes of each. What follows them is cut off."""
    shards: tuple[Shard, ...] = ()

    @property
    def shard_rows(self) -> int:
        """Rows that are not yet in a finished shard."""
        return self.rows - sum(shard.rows for shard in self.shards)

    def save(self, folder: Path) -> None:
        content = {"kind": KIND, "version": VERSION, **asdict(self)}
        write_atomic(folder / JOURNAL, content, exclusive=True)


def load_journal(folder: Path) -> Journal | None:
    """The journal of an unfinished job; None when there is none."""
    if not (folder / JOURNAL).exists():
        return None
    content = _read_json(folder / JOURNAL)
    try:
        values = {each.name: content[each.name] for each in fields(Journal)}
        values["plan"] = FolderPlan(**values["plan"])
        values["shards"] = tuple(Shard(**shard) for shard in values["shards"])
        return Journal(**values)
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / JOURNAL} is damaged: {error!r}. {START_AGAIN}") from error


def load_manifest(folder: Path) -> Json | None:
    """The manifest of a finished job; None when there is none."""
    return _read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else None


def plan_of(manifest: Json) -> FolderPlan:
    """The plan that a manifest was written under."""
    return FolderPlan(
        **{name: manifest[name] for name in ("fingerprint", "format", "keep_texts", "shard_rows")}
    )


def _read_json(path: Path) -> Json:
    """The object that a job of this version wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: not made by gemel, or damaged. Choose another folder"
        ) from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(f"{path} was not made by gemel. Choose another folder")
    if content.get("version") != VERSION:
        raise InputError(
            f"{path} has version {content.get('version')!r}; this gemel reads version {VERSION}. "
            "Use the gemel that made it, or choose another folder"
        )
    _check_values(path, content)
    return content


def _flat(content: Mapping[str, Any], prefix: str = "") -> Json:
    flat: Json = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _check_values(path: Path, content: Json) -> None:
    """Raise at a value that no job can have written; whether they fit together is for the caller to check."""
    finished = path.name == MANIFEST
    plan = content if finished else content.get("plan")
    plan = plan if isinstance(plan, dict) else {}
    begun = finished or content.get("dtype") is not None
    source = content.get("input")
    checks = {
        "fingerprint": isinstance(plan.get("fingerprint"), dict),
        "format": isinstance(plan.get("format"), str),
        "keep_texts": isinstance(plan.get("keep_texts"), bool),
        "shard_rows": "shard_rows" in plan
        and (plan["shard_rows"] is None or _is_count(plan["shard_rows"], 1)),
        "rows": _is_count(content.get("rows")) and (begun or not content["rows"]),
        "dtype": not begun or content.get("dtype") in DTYPES,
        "dim": _is_count(content.get("dim"), 1) if begun else content.get("dim") is None,
        "shards": _are_files(content.get("shards"), "rows"),
        "files": not finished or _are_files(content.get("files")),
        "sizes": finished or _are_sizes(content.get("sizes")),
        "input": not finished or (isinstance(source, dict) and isinstance(source.get("sha256"), str)),
    }
    wrong = [name for name, right in checks.items() if not right]
    if not wrong and sum(shard["rows"] for shard in content["shards"]) > content["rows"]:
        wrong = ["shards"]
    if wrong:
        raise InputError(f"{path} is damaged: {wrong[0]!r} is not what gemel writes there. {START_AGAIN}")


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _LARGEST


def _are_files(entries: object, *counts: str) -> bool:
    """Whether this is a list of files that a job creates, each with its hash and these counts, and nothing else."""
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and entry.keys() == {"file", "sha256", *counts}
        and is_ours(entry["file"])
        and isinstance(entry["sha256"], str)
        and all(_is_count(entry[count]) for count in counts)
        for entry in entries
    )


def _are_sizes(sizes: object) -> bool:
    return isinstance(sizes, dict) and all(is_ours(name) and _is_count(size) for name, size in sizes.items())


def is_ours(name: object) -> bool:
    """Whether a job could have created a file of this name; False for a name with a path in it."""
    return isinstance(name, str) and _OURS.fullmatch(name) is not None


def ours(folder: Path) -> list[str]:
    """Names in the folder that a job could have created."""
    return sorted(entry.name for entry in folder.iterdir() if is_ours(entry.name))


def check_file(path: Path, sha256: str) -> None:
    """Raise unless a finished file is what was written."""
    if not path.is_file() or sha256_of(path) != sha256:
        raise InputError(
            f"{path} is missing or has changed since it was written: it is damaged. {START_AGAIN}"
        )


def lock_job(folder: Path) -> AbstractContextManager[None]:
    """A lock that allows one job per folder."""
    return lock_folder(
        folder, f"another process is encoding to {folder}. Wait for it, or choose another folder (-o)"
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns a full disk, a read-only folder and the like into a WorkError that says how to resume."""
    try:
        yield
    except OSError as error:
        raise WorkError(
            f"cannot write to {folder}: {error.strerror or error}. All rows recorded so far are safe: "
            "make room or fix the folder, then run the same command again"
        ) from error


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


class Format:
    """How rows are stored. Growing files are named as they will be in the end."""

    sharded = False
    """Whether rows are spread over files of a fixed number of rows."""

    def check(self) -> None:
        """Raise when a package that the format needs is missing, before any work."""

    def added(self, block: RowBlock) -> dict[str, bytes]:
        """The bytes that the block adds to each growing file."""
        raise NotImplementedError

    def header_bytes(self, name: str) -> int:
        """Bytes to leave free at the start of a growing file."""
        return 0

    def close(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        """Make the file of a full shard from the growing ones, which are removed from `sizes`; returns its name.

        Doing it twice gives the same bytes.
        """
        raise NotImplementedError

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        """The growing files that `close` made the file of, created again where missing, and their sizes."""
        return {file: (folder / file).stat().st_size}

    def vectors(self, path: Path, shape: Shape) -> AnyVectors:
        """The vectors of a finished file, memory-mapped where the format allows it."""
        raise NotImplementedError

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        """All values of "id" or "text", in order of the rows."""
        raise NotImplementedError


FORMATS: Registry[Format] = Registry("format")


class _Raw(Format):
    """Rows as they are in memory, behind a header."""

    def __init__(self, pattern: str, header_bytes: int, *, sharded: bool) -> None:
        self.pattern = pattern
        self.header_size = header_bytes
        self.sharded = sharded

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


class _Jsonl(Format):
    def added(self, block: RowBlock) -> dict[str, bytes]:
        return {_JSONL: b"".join(json_rows(block.ids, block.vectors, block.texts))}

    def close(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        finish_part(folder / _JSONL, sizes.pop(_JSONL), b"")
        return _JSONL

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


def json_values(values: Iterable[object]) -> bytes:
    """One JSON value per line, as UTF-8."""
    return b"".join(_json_line(value) for value in values)


def json_rows(
    ids: Sequence[str], vectors: AnyVectors, texts: Sequence[str] | None = None, *, numbered: bool = False
) -> Iterator[bytes]:
    """One {"id", "vector"} object per line; the numbers read back as exactly the same values.

    `numbered`: the ids are row numbers, which are then in "row" as well.
    """
    template = "[" + ", ".join([_DIGITS.get(str(vectors.dtype), "%d")] * vectors.shape[1]) + "]"
    for row, name in enumerate(ids):
        numbers = template % tuple(vectors[row].tolist())
        fields: dict[str, object] = {"id": name, **({"row": int(name)} if numbered else {})}
        if texts is not None:
            fields["text"] = texts[row]
        yield _json_line(fields)[:-2] + b', "vector": ' + numbers.encode("ascii") + b"}\n"


def _json_line(value: object) -> bytes:
    # Lone surrogates, which have no UTF-8, and control characters of terminals are escaped.
    return (printable_json(value) + "\n").encode("utf-8")


class _Parquet(Format):
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


FORMATS.add("npy")(_Npy("vectors.npy", 128, sharded=False))
FORMATS.add("safetensors")(_Safetensors("vectors-{:05d}.safetensors", 256, sharded=True))
FORMATS.add("jsonl")(_Jsonl())
FORMATS.add("parquet")(_Parquet())
