"""The job: rows in, blocks encoded, written, synced and recorded, one after the other.

Order of a block: data appended and synced, then the journal replaced. A kill before the replacement costs
that block and no other; a kill after it costs nothing. What a dead run left beyond its record is cut off.

The input of a job: rows in blocks, and the hash that tells whether it is still the same input.

A complete folder whose input has grown: the state that it was in before its end, out of its manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.files.atomic import START_AGAIN, append, finish_part, reopen_part, sha256_of, sync, write_atomic
from gemel.files.lines import Row
from gemel.texts.formats import FORMATS, Format, RowBlock, Shape
from gemel.texts.journal import (
    JOURNAL,
    KIND,
    MANIFEST,
    VERSION,
    FolderPlan,
    Journal,
    Json,
    Shard,
    check_file,
    load_journal,
    load_manifest,
    lock_job,
    ours,
    plan_of,
    writing,
)
from gemel.types import AnyVectors

SIDE_FILES = ("ids.jsonl", "texts.jsonl")  # grow through all shards

OUTPUTS = ("float32", "float16", "int8", "uint8")


class BlockEncoder(Protocol):
    """All that the job asks of a model: a text's vector is the same bits in every block."""

    def encode(self, texts: list[str], /) -> AnyVectors: ...


@dataclass(frozen=True)
class FolderProgress:
    rows: int
    """Rows safe on disk."""
    encoded_now: int
    """Of them, encoded by this run."""


@dataclass(frozen=True)
class FolderResult:
    """What a run did to the folder, which is complete."""

    path: Path
    rows: int
    encoded_now: int
    resumed: int
    """Rows that earlier runs had encoded."""
    seconds: float


def encode_to_folder(  # noqa: PLR0913 - the options of one command, all with a default but the fingerprint
    encoder: BlockEncoder,
    rows: Iterable[Row],
    out: Path | str,
    *,
    fingerprint: Mapping[str, Any],
    format: str = "npy",
    keep_texts: bool = False,
    shard_rows: int = 50_000,
    checkpoint_rows: int = 1024,
    overwrite: bool = False,
    progress: Callable[[FolderProgress], None] | None = None,
) -> FolderResult:
    """Encode all `rows` to the folder `out`, or go on where an earlier run of the same job stopped or ended.

    `fingerprint` is JSON that says what computes the vectors; a folder begun with another one is refused.
    `rows` start at the beginning every time: those already encoded are read again and compared by hash.
    `checkpoint_rows` rows at most are lost by a kill; they do not change the bytes of the result.
    """
    started = perf_counter()
    if shard_rows < 1 or checkpoint_rows < 1:
        raise InputError(
            f"shard_rows and checkpoint_rows must be at least 1, got {shard_rows}, {checkpoint_rows}"
        )
    layout, folder = FORMATS[format], Path(out)
    layout.check()
    plan = FolderPlan(
        json.loads(json.dumps(fingerprint)), format, keep_texts, shard_rows if layout.sharded else None
    )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; the vectors need a folder. Choose another name (-o)")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_job(folder):
        source = Source(iter(rows))
        journal = _begin(folder, plan, overwrite)
        if journal is not None:
            source.skip(journal.rows, journal.input_sha256, folder)
        elif _is_all(folder, source):
            return FolderResult(folder, source.taken, 0, source.taken, perf_counter() - started)
        else:
            journal = _reopened(folder, plan, layout)
        job = _EncodeJob(encoder, folder, layout, journal)
        total = job.run(source, checkpoint_rows, progress or (lambda _: None))
    return FolderResult(folder, total, total - journal.rows, journal.rows, perf_counter() - started)


def _begin(folder: Path, plan: FolderPlan, overwrite: bool) -> Journal | None:
    """The state to go on from; None when the folder is complete. While a journal exists, the job is not."""
    journal, manifest = load_journal(folder), load_manifest(folder)
    found = journal.plan if journal else plan_of(manifest) if manifest else None
    # A run killed while it wrote its very first journal leaves nothing but the journal's temporary file.
    if found is None and (strange := [name for name in ours(folder) if name != f"{JOURNAL}.tmp"]):
        raise InputError(
            f"{folder} holds {', '.join(strange)} but no manifest: gemel did not make it. "
            "Choose another folder (-o)"
        )
    if found is not None and not overwrite:
        plan.refuse_other(found, folder)
        if journal is None:
            return None
    with writing(folder):
        if journal is None or overwrite:
            journal = Journal(plan)
            journal.save(folder)  # first of all: from here on everything else in the folder is left-overs
        _clear(folder, journal)
    return journal


def _clear(folder: Path, journal: Journal) -> None:
    """Remove or take back what a dead run left beyond its journal."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in journal.sizes:
        reopen_part(folder / name)
    shards = {shard.file for shard in journal.shards}
    known = {f"{name}.part" for name in journal.sizes} | shards
    refuse_missing(folder, known)
    _remove_all_but(folder, known | {JOURNAL})


def _remove_all_but(folder: Path, known: set[str]) -> None:
    for name in ours(folder):
        if name not in known:
            (folder / name).unlink()
    sync(folder)


def _is_all(folder: Path, source: Source) -> bool:
    """Whether the complete folder holds the whole input; False: rows have come to its end since."""
    manifest = load_manifest(folder) or {}
    source.skip(manifest["rows"], manifest["input"]["sha256"], folder)
    if not source.ended():
        return False
    for entry in (*manifest["shards"], *manifest["files"]):  # complete means that every byte is there
        check_file(folder / entry["file"], entry["sha256"])
    with writing(folder):
        _remove_all_but(folder, _files_of(manifest))  # a spool, if the run died while clearing up
    return True


def _reopened(folder: Path, plan: FolderPlan, layout: Format) -> Journal:
    """A complete folder turned back to what it was before its end, so that rows can be added.

    Killed before the journal is there, it is still complete; after that it is as a run leaves it that died at its end.
    """
    with writing(folder):
        journal = before_the_end(folder, plan, layout)
        journal.save(folder)
        _clear(folder, journal)
    return journal


def _files_of(manifest: Json) -> set[str]:
    return {MANIFEST, *(entry["file"] for entry in (*manifest["shards"], *manifest["files"]))}


class _EncodeJob:
    """The journal and the files it speaks of, moving on together."""

    def __init__(self, encoder: BlockEncoder, folder: Path, layout: Format, journal: Journal) -> None:
        self.encoder = encoder
        self.folder = folder
        self.layout = layout
        self.journal = journal

    def run(self, source: Source, checkpoint_rows: int, progress: Callable[[FolderProgress], None]) -> int:
        """Encode what is left and finish the folder; the number of rows."""
        resumed = self.journal.rows
        with writing(self.folder):
            self._seal_if_full()  # a run may have died between filling a shard and sealing it
        while block := source.take(self._room(checkpoint_rows)):
            vectors = self._encode([row.text for row in block])
            with writing(self.folder):
                self._record(block, vectors, source.hash.hexdigest())
                self._seal_if_full()
            progress(FolderProgress(self.journal.rows, self.journal.rows - resumed))
        if not self.journal.rows:
            nothing = self._encode([])  # still has a dim and a dtype
            with writing(self.folder):
                self._record([], nothing, self.journal.input_sha256)
        with writing(self.folder):
            self._finish()
        return self.journal.rows

    def _room(self, checkpoint_rows: int) -> int:
        if self.journal.plan.shard_rows is None:
            return checkpoint_rows
        return min(checkpoint_rows, self.journal.plan.shard_rows - self.journal.shard_rows)

    def _encode(self, texts: list[str]) -> AnyVectors:
        try:
            vectors = np.asarray(self.encoder.encode(texts))
        except InputError as error:
            raise InputError(
                f"{error} (positions count from row {self.journal.rows} of the input)"
            ) from error
        vectors = np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("<"))
        dtype, dim = self.journal.dtype or vectors.dtype.name, self.journal.dim or vectors.shape[-1]
        if vectors.shape != (len(texts), dim) or vectors.dtype.name != dtype or dtype not in OUTPUTS:
            raise WorkError(
                f"the encoder gave {vectors.dtype} {vectors.shape} for {len(texts)} texts; "
                f"expected {dtype} ({len(texts)}, {dim}), and one of {', '.join(OUTPUTS)}"
            )
        if vectors.dtype.kind == "f" and not np.isfinite(vectors).all():
            row = self.journal.rows + int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise WorkError(f"the encoder gave a vector with NaN or infinity for row {row}")
        return vectors

    def _record(self, rows: list[Row], vectors: AnyVectors, input_sha256: str) -> None:
        texts = [row.text for row in rows] if self.journal.plan.keep_texts else None
        block = RowBlock([row.id for row in rows], texts, vectors, shard=len(self.journal.shards))
        sizes = dict(self.journal.sizes)
        for name, data in self.layout.gains(block).items():
            room = b"" if name in sizes else bytes(self.layout.header_bytes(name))
            sizes[name] = append(self.folder / name, sizes.get(name, 0), room + data)
        self.journal = replace(
            self.journal,
            rows=self.journal.rows + len(rows),
            input_sha256=input_sha256,
            dtype=vectors.dtype.name,
            dim=vectors.shape[1],
            sizes=sizes,
        )
        self.journal.save(self.folder)

    def _seal_if_full(self) -> None:
        if self.journal.shard_rows == self.journal.plan.shard_rows:
            self.journal = self._sealed()
            self.journal.save(self.folder)

    def _sealed(self) -> Journal:
        """The journal as it is once the rows of the open shard are in a file of their own."""
        assert self.journal.dim is not None and self.journal.dtype is not None
        shape = Shape(self.journal.shard_rows, self.journal.dim, self.journal.dtype)
        sizes = dict(self.journal.sizes)
        try:
            name = self.layout.seal(self.folder, len(self.journal.shards), shape, sizes)
        except KeyError as error:
            damaged = f"{self.folder / JOURNAL} is damaged: it does not say how long {error.args[0]} is"
            raise InputError(f"{damaged}. Start again with overwrite (--overwrite)") from error
        shard = Shard(name, shape.rows, sha256_of(self.folder / name))
        return replace(self.journal, sizes=sizes, shards=(*self.journal.shards, shard))

    def _finish(self) -> None:
        """Final names, then the manifest, then no journal. Up to there a new run can take all of it back."""
        open_rows = self.journal.shard_rows or not self.layout.sharded
        final = self._sealed() if open_rows else self.journal
        final = replace(final, sizes={name: final.sizes[name] for name in SIDE_FILES if name in final.sizes})
        for name, size in final.sizes.items():
            finish_part(self.folder / name, size, b"")
        manifest = _manifest(self.folder, final)
        write_atomic(self.folder / MANIFEST, manifest, exclusive=True)
        (self.folder / JOURNAL).unlink()
        sync(self.folder)
        _remove_all_but(self.folder, _files_of(manifest))


def _manifest(folder: Path, final: Journal) -> Json:
    """Nothing about this run: neither times nor paths, so that the same job gives the same bytes."""
    return {
        "kind": KIND,
        "version": VERSION,
        "complete": True,
        "rows": final.rows,
        "dim": final.dim,
        "dtype": final.dtype,
        "format": final.plan.format,
        "keep_texts": final.plan.keep_texts,
        "shard_rows": final.plan.shard_rows,
        "input": {"rows": final.rows, "sha256": final.input_sha256},
        "fingerprint": final.plan.fingerprint,
        "shards": [
            {"file": shard.file, "rows": shard.rows, "sha256": shard.sha256} for shard in final.shards
        ],
        "files": [{"file": name, "sha256": sha256_of(folder / name)} for name in sorted(final.sizes)],
    }


# A block ends here too, so that long documents neither fill memory nor delay a checkpoint.
BLOCK_CHARS = 2_000_000


def take(rows: Iterator[Row], limit: int) -> list[Row]:
    """The next `limit` rows; fewer when they are long or the input ends, none when it has ended."""
    block: list[Row] = []
    chars = 0
    while len(block) < limit and chars < BLOCK_CHARS and (row := next(rows, None)) is not None:
        block.append(row)
        chars += len(row.text)
    return block


class Source:
    """The input, with the hash of all that was taken from it."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self.taken = 0
        self.hash = InputHash()

    def take(self, limit: int) -> list[Row]:
        """The next block, counted and hashed."""
        block = take(self._rows, limit)
        for row in block:
            self.hash.add(row)
        self.taken += len(block)
        return block

    def skip(self, rows: int, sha256: str, folder: Path) -> None:
        """Pass over the rows that are done, and make sure that they are the rows that were done."""
        for row in islice(self._rows, rows):
            self.hash.add(row)
            self.taken += 1
        if self.taken < rows or self.hash.hexdigest() != sha256:
            raise InputError(changed(folder, rows))

    def ended(self) -> bool:
        """Whether no row is left to take."""
        ahead = list(islice(self._rows, 1))
        self._rows = chain(ahead, self._rows)
        return not ahead


def changed(folder: Path, rows: int) -> str:
    """The message for an input that is not the one the folder was made from."""
    return (
        f"the input has changed since {folder} was begun: it does not hold the {rows:,} rows encoded there. "
        f"Give the same input. {START_AGAIN}"
    )


class InputHash:
    """sha256 over id and text of every row, each as a netstring (`length:bytes,`)."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, row: Row) -> None:
        for value in (row.id, row.text):
            data = value.encode("utf-8", "surrogatepass")
            self._digest.update(b"%d:%b," % (len(data), data))

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def before_the_end(folder: Path, plan: FolderPlan, layout: Format) -> Journal:
    """The journal of the last block. Files that grow again must be as they were written; the others stay."""
    manifest = load_manifest(folder) or {}
    if not manifest["rows"]:
        return Journal(plan)
    dim, dtype = manifest["dim"], manifest["dtype"]
    shards = [Shard(**entry) for entry in manifest["shards"]]
    refuse_missing(folder, {shard.file for shard in shards})
    sizes: dict[str, int] = {}
    if shards[-1].rows != plan.shard_rows:
        last = shards.pop()
        check_file(folder / last.file, last.sha256)
        sizes |= layout.reopen(folder, last.file, Shape(last.rows, dim, dtype))
    for entry in manifest["files"]:
        check_file(folder / entry["file"], entry["sha256"])
        sizes[entry["file"]] = (folder / entry["file"]).stat().st_size
    return Journal(plan, manifest["rows"], manifest["input"]["sha256"], dtype, dim, sizes, tuple(shards))


def refuse_missing(folder: Path, known: set[str]) -> None:
    """Refuse a folder without all of these files."""
    if missing := known - set(ours(folder)):
        raise InputError(f"{folder} is damaged: {', '.join(sorted(missing))} is gone. {START_AGAIN}")
