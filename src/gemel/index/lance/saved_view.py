"""What the first search of a process needs, in one file of the cache: a view, and the copies that no list cache holds.

A process that finds it answers without Lance, whose import takes a quarter of a second. It is used only where the
newest manifest has the bytes it had when the snapshot was saved, and where every file that this version names has the
same size, time and inode, and ends as it should. Everything else is read from the table. The sha256 at its start covers
the rest, so that a torn or damaged snapshot is ignored, and saving one needs no fsync.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.index.lance.columns import column_of, header_of, numbers
from gemel.index.lance.recovery import READ_ERRORS, manifest_of, open_dataset, torn_files, versions_in
from gemel.index.lance.view import FragmentRows, View
from gemel.types import Vectors

if TYPE_CHECKING:
    import pyarrow as pa

    from gemel.index.lance.snapshot import Snapshot

_FORMAT = 1

_DIGEST = 32  # bytes of a sha256

_MOST_COPIES = 20_000  # passages outside the lists; of 384 numbers each they take 30 MB

_MOST_BYTES = 1 << 28

_DAMAGED = (*READ_ERRORS, TypeError, InputError)


@dataclass(frozen=True, eq=False)
class SavedView:
    view: View
    stamp: NDArray[np.int64]
    """Of the passages whose copies follow."""
    vector: Vectors
    text: list[str]
    cache: str | None
    """Name of the list cache whose vectors were compared with the table."""


def snapshot_file(folder: Path, table: str) -> Path:
    """`folder`: that of the caches."""
    return folder / f"{table}.snapshot"


def load(folder: Path, uri: str, place: str) -> SavedView | None:
    """None: there is none, or not of the newest version, or something is not as it was."""
    try:
        raw = memoryview(snapshot_file(folder, Path(uri).stem).read_bytes())
        if hashlib.sha256(raw[_DIGEST:]).digest() != raw[:_DIGEST]:
            return None
        return _parsed(raw[_DIGEST:], uri, place)
    except _DAMAGED:
        return None


def save(folder: Path, uri: str, sight: Snapshot) -> None:
    """Nothing is saved where that would be too large, or where there is a newer version by now; nor where the folder
    cannot be written, which is no error."""
    view, base = sight.view, sight.copies.base
    grown = len(base.stamp) + np.flatnonzero(sight.alive[len(base.stamp) :])
    if len(grown) > _MOST_COPIES or not view.pieces or _bytes(view) > _MOST_BYTES:
        return
    if len(base.stamp) and sight.copies.cache is None:  # lists that are in memory only
        return
    with suppress(*READ_ERRORS):
        if versions_in(Path(uri))[:1] != [view.version]:
            return
        body = _body(view, uri, sight, grown)
        path = snapshot_file(folder, Path(uri).stem)
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{path.name}.*"):  # of a process that died; one that is alive gives up
            left.unlink(missing_ok=True)
        beside = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
        try:
            with beside.open("wb") as file:
                file.write(hashlib.sha256(body).digest())
                file.write(body)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def drop(folder: Path, table: str) -> None:
    path = snapshot_file(folder, table)
    for each in (path, *folder.glob(f"{path.name}.*")):
        each.unlink(missing_ok=True)


def _bytes(view: View) -> int:
    return sum(
        each.ids.nbytes + sum(values.nbytes for values in each.fields.values()) for each in view.pieces
    )


def _body(view: View, uri: str, sight: Snapshot, grown: NDArray[np.int64]) -> memoryview:
    import pyarrow as pa

    pieces = []
    for fragment in view.dataset.get_fragments():
        files = [[str(file.path), file.file_size_bytes] for file in fragment.metadata.files]
        pieces.append(
            {"fragment": fragment.fragment_id, "files": files, "deletions": fragment.deletion_file()}
        )
    manifest = manifest_of(uri, view.version)
    about = {
        "format": _FORMAT,
        "version": view.version,
        "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "schema": base64.b64encode(view.dataset.schema.serialize()).decode("ascii"),
        "pieces": pieces,
        "files": _seen(uri, manifest, pieces),
        "cache": sight.copies.cache,
    }
    dim = view.header.dim
    vectors = np.ascontiguousarray(sight.copies.vectors(grown)).reshape(-1)
    copies = pa.record_batch(
        {
            "stamp": pa.array(sight.copies.stamps()[grown]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), dim),
            "text": pa.array(sight.copies.texts(grown), pa.large_string()),
        }
    )
    out = pa.BufferOutputStream()
    rows = [_batch(piece, view) for piece in view.pieces]
    with pa.ipc.new_stream(out, rows[0].schema.with_metadata({"about": json.dumps(about)})) as stream:
        for batch in rows:
            stream.write_batch(batch)
    with pa.ipc.new_stream(out, copies.schema) as stream:
        stream.write_batch(copies)
    return memoryview(out.getvalue())


def _batch(piece: FragmentRows, view: View) -> pa.RecordBatch:
    import pyarrow as pa

    columns = {"id": piece.ids, "part": piece.part, "stamp": piece.stamp, "live": piece.live.view(np.uint8)}
    columns |= {column_of(name): piece.fields[name] for name in view.header.fields}
    return pa.record_batch(
        [pa.array(each) if isinstance(each, np.ndarray) else each for each in columns.values()],
        names=list(columns),
    )


def _parsed(body: memoryview, uri: str, place: str) -> SavedView | None:
    import pyarrow as pa

    source = pa.BufferReader(pa.py_buffer(body))
    stream = pa.ipc.open_stream(source)
    about = json.loads(stream.schema.metadata[b"about"])
    if about["format"] != _FORMAT or not _is_current(about, uri):
        return None
    version = int(about["version"])
    header = header_of(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"]))), place)
    pieces = tuple(
        FragmentRows(
            fragment=piece["fragment"],
            files=tuple(path for path, _ in piece["files"]),
            deletions=piece["deletions"],
            rows=batch.num_rows,
            ids=batch["id"],
            part=numbers(batch["part"], np.int32),
            stamp=numbers(batch["stamp"], np.int64),
            fields={name: batch[column_of(name)] for name in header.fields},
            live=numbers(batch["live"], np.uint8).view(np.bool_),
        )
        for piece, batch in zip(about["pieces"], stream, strict=True)
    )
    copies = pa.ipc.open_stream(source).read_next_batch()
    return SavedView(
        view=View(version, header, pieces, lambda: open_dataset(uri, None, version)),
        stamp=numbers(copies["stamp"], np.int64),
        vector=numbers(copies["vector"].flatten(), np.float32).reshape(-1, header.dim),
        text=copies["text"].to_pylist(),
        cache=about["cache"],
    )


def _is_current(about: dict[str, Any], uri: str) -> bool:
    """The version is the newest, and its files are as they were and not torn."""
    version, pieces = int(about["version"]), about["pieces"]
    if versions_in(Path(uri))[:1] != [version]:
        return False
    manifest = manifest_of(uri, version)
    if hashlib.sha256(manifest.read_bytes()).hexdigest() != about["manifest"]:
        return False
    if _seen(uri, manifest, pieces) != about["files"]:
        return False
    return not any(torn_files(uri, piece["files"], piece["deletions"]) for piece in pieces)


def _seen(uri: str, manifest: Path, pieces: list[dict[str, Any]]) -> list[list[int]]:
    """What changes when a file is written again or copied."""
    table = Path(uri)
    paths = [manifest]
    for piece in pieces:
        paths += [table / "data" / path for path, _ in piece["files"]]
        if piece["deletions"] is not None:
            paths.append(table / "_deletions" / Path(piece["deletions"]).name)
    return [[each.st_size, each.st_mtime_ns, each.st_ino] for each in (path.stat() for path in paths)]
