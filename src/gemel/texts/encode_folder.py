"""Texts to a folder of vectors, resumable: `encode_to_folder` writes it, `read_folder` opens it.

Rows are encoded in blocks. Each block is appended and synced, then the journal is replaced: a kill before that loses
this block and no other. What a killed run wrote beyond its journal is cut off by the next one. The journal has the
hash of the input: a run resumes only with the input it began with. A finished folder accepts rows added at its end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gemel.errors import GemelError, InputError, WorkError
from gemel.files.atomic import START_AGAIN, append, finish_part, reopen_part, sha256_of, sync, write_atomic
from gemel.files.rows import Row
from gemel.options import EncodeOptions
from gemel.texts.folder_files import (
    DTYPES,
    FORMATS,
    JOURNAL,
    KIND,
    MANIFEST,
    VERSION,
    FolderPlan,
    Format,
    Journal,
    Json,
    RowBlock,
    Shape,
    Shard,
    check_file,
    load_journal,
    load_manifest,
    lock_job,
    ours,
    plan_of,
    writing,
)
from gemel.types import AnyVectors, Encoder, ShownResult

SIDE_FILES = ("ids.jsonl", "texts.jsonl")  # grow through all shards

BLOCK_CHARACTERS = (
    2_000_000  # a block ends here too: long documents neither fill memory nor delay a checkpoint
)


@dataclass(frozen=True)
class FolderProgress(ShownResult):
    """How far a run of `encode_to_folder` is."""

    rows: int
    """Rows on disk."""
    encoded_now: int
    """Rows of them that this run encoded."""


@dataclass(frozen=True)
class FolderResult(ShownResult):
    """What a run of `encode_to_folder` did; the folder is complete."""

    path: Path
    rows: int
    encoded_now: int
    resumed: int
    """Rows that earlier runs had encoded."""
    seconds: float


def encode_to_folder(  # noqa: PLR0913 - all options have a default
    model: Encoder,
    texts: Iterable[str | tuple[str, str]],
    folder: Path | str,
    *,
    options: EncodeOptions | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    format: str = "npy",
    keep_texts: bool = False,
    shard_rows: int = 50_000,
    checkpoint_rows: int = 1024,
    overwrite: bool = False,
    progress: Callable[[FolderProgress], None] | None = None,
) -> FolderResult:
    """Encode all `texts` to `folder`, or resume where an earlier run of the same job stopped or ended.

    texts: an iterable that starts at the beginning every time, as rows that are encoded already are read again and
    compared by hash. An item is a text, whose id is its position, or a pair (id, text).
    options: for a `gemel.Model`.
    fingerprint: JSON that says what computes the vectors; a folder begun with another one is refused. None: that of
    the model under these options.
    format: npy, safetensors, parquet or jsonl. shard_rows: rows per file of vectors, in formats of several files.
    checkpoint_rows: a kill loses at most this many; they do not change the bytes of the result.
    """
    started = perf_counter()
    if shard_rows < 1 or checkpoint_rows < 1:
        raise InputError(
            f"shard_rows and checkpoint_rows must be at least 1, got {shard_rows}, {checkpoint_rows}"
        )
    layout, folder = FORMATS[format], Path(folder)
    layout.check()
    if fingerprint is None:
        fingerprint = fingerprint_of(model, options)
    plan = FolderPlan(
        json.loads(json.dumps(fingerprint)), format, keep_texts, shard_rows if layout.sharded else None
    )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; the vectors need a folder. Choose another name (-o)")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_job(folder):
        source = Source(_rows(texts))
        journal = _begin(folder, plan, overwrite)
        if journal is not None:
            source.skip(journal.rows, journal.input_sha256, folder)
        elif _is_complete(folder, source):
            return FolderResult(folder, source.taken, 0, source.taken, perf_counter() - started)
        else:
            journal = _reopened(folder, plan, layout)
        configured: Encoder = model if options is None else model.with_options(options)  # type: ignore[attr-defined]
        job = _EncodeJob(configured, folder, layout, journal)
        total = job.run(source, checkpoint_rows, progress or (lambda _: None))
    return FolderResult(folder, total, total - journal.rows, journal.rows, perf_counter() - started)


def read_folder(path: Path | str) -> EncodedFolder:
    """Open a folder that `encode_to_folder` finished."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"no folder at {path}")
    manifest = load_manifest(path)
    if manifest is None or (path / JOURNAL).exists():
        unfinished = "is not finished: run the same gemel encode again"
        raise InputError(f"{path} {unfinished if (path / JOURNAL).exists() else 'has no manifest'}")
    return EncodedFolder(path, manifest)


@dataclass(frozen=True, eq=False)
class EncodedFolder(ShownResult):
    """A folder of vectors with their ids and what computed them. Files are read on first use."""

    path: Path
    manifest: Json

    def __len__(self) -> int:
        return int(self.manifest["rows"])

    @property
    def dim(self) -> int:
        """Numbers per row of `vectors`."""
        return int(self.manifest["dim"])

    def blocks(self) -> Iterator[AnyVectors]:
        """The vectors file by file: bounded memory for sharded folders, a memory map for npy."""
        layout = FORMATS[self.manifest["format"]]
        for shard in self.manifest["shards"]:
            shape = Shape(shard["rows"], self.dim, self.manifest["dtype"])
            path = self.path / shard["file"]
            with _undamaged(path):
                block = layout.vectors(path, shape)
                if block.shape != (shape.rows, shape.dim):
                    raise ValueError(f"it has {block.shape}, the manifest says {(shape.rows, shape.dim)}")
            yield block

    @cached_property
    def vectors(self) -> AnyVectors:
        """(rows, dim). A memory map when all rows are in one npy or safetensors file, else in memory."""
        blocks = list(self.blocks())
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate([np.zeros((0, self.dim), self.manifest["dtype"]), *blocks])

    @cached_property
    def ids(self) -> list[str]:
        """The id of every row."""
        return self._column("id")

    @cached_property
    def texts(self) -> list[str]:
        """The text of every row; only if they were written with `keep_texts`."""
        if not self.manifest["keep_texts"]:
            raise InputError(f"{self.path} has no texts. Encode again with keep_texts (--keep-texts)")
        return self._column("text")

    def verify(self) -> None:
        """Compare every file with the hash in the manifest."""
        for entry in (*self.manifest["shards"], *self.manifest["files"]):
            check_file(self.path / entry["file"], entry["sha256"])

    def _column(self, name: str) -> list[str]:
        files = [shard["file"] for shard in self.manifest["shards"]]
        with _undamaged(self.path):
            values = FORMATS[self.manifest["format"]].column(self.path, files, name)
            if len(values) != len(self):
                raise ValueError(
                    f"it has {len(values):,} values of {name!r}, the manifest says {len(self):,}"
                )
        return values


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """Errors in this block mean that a file is not as it was written."""
    try:
        yield
    except GemelError:
        raise
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is damaged: {reason}. Encode again with overwrite (--overwrite)") from error


def fingerprint_of(model: Encoder, options: EncodeOptions | None) -> dict[str, Any]:
    """What the vectors depend on, to the bit: engines agree closely, but not in the last digit."""
    try:
        of_model = model.fingerprint_for(options or EncodeOptions())  # type: ignore[attr-defined] # of gemel.Model
        return {**of_model.to_json(), "engine": model.kernel}  # type: ignore[attr-defined]
    except AttributeError as error:
        raise InputError(
            "this encoder has no fingerprint: pass fingerprint=, JSON that says what it is"
        ) from error


def _rows(texts: Iterable[str | tuple[str, str]]) -> Iterator[Row]:
    for position, item in enumerate(texts):
        yield Row(str(position), item) if isinstance(item, str) else Row(*item)


def _begin(folder: Path, plan: FolderPlan, overwrite: bool) -> Journal | None:
    """The state to resume from; None: the folder is complete. While there is a journal, it is not."""
    journal, manifest = load_journal(folder), load_manifest(folder)
    earlier = journal.plan if journal else plan_of(manifest) if manifest else None
    # A run killed while it wrote its very first journal leaves nothing but the journal's temporary file.
    if earlier is None and (strange := [name for name in ours(folder) if name != f"{JOURNAL}.tmp"]):
        raise InputError(
            f"{folder} holds {', '.join(strange)} but no manifest: gemel did not make it. "
            "Choose another folder (-o)"
        )
    if earlier is not None and not overwrite:
        plan.refuse_other(earlier, folder)
        if journal is None:
            return None
    with writing(folder):
        if journal is None or overwrite:
            journal = Journal(plan)
            journal.save(folder)  # first: from here on everything else in the folder is left-over
        _clear(folder, journal)
    return journal


def _clear(folder: Path, journal: Journal) -> None:
    """Remove or reopen what a killed run left beyond its journal."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in journal.sizes:
        reopen_part(folder / name)
    shards = {shard.file for shard in journal.shards}
    expected = {f"{name}.part" for name in journal.sizes} | shards
    refuse_missing(folder, expected)
    _remove_all_but(folder, expected | {JOURNAL})


def _remove_all_but(folder: Path, keep: set[str]) -> None:
    for name in ours(folder):
        if name not in keep:
            (folder / name).unlink()
    sync(folder)


def _is_complete(folder: Path, source: Source) -> bool:
    """Whether the finished folder has the whole input; False: rows were added at its end since."""
    manifest = load_manifest(folder) or {}
    source.skip(manifest["rows"], manifest["input"]["sha256"], folder)
    if not source.ended():
        return False
    for entry in (*manifest["shards"], *manifest["files"]):  # complete: every byte is there
        check_file(folder / entry["file"], entry["sha256"])
    with writing(folder):
        _remove_all_but(folder, _files_of(manifest))  # a spool, if the run died while removing it
    return True


def _reopened(folder: Path, plan: FolderPlan, layout: Format) -> Journal:
    """The journal of a finished folder before its end, so that rows can be added.

    Killed before the journal is saved, the folder is still complete; later it is like one whose run died at its end.
    """
    with writing(folder):
        journal = _before_the_end(folder, plan, layout)
        journal.save(folder)
        _clear(folder, journal)
    return journal


def _files_of(manifest: Json) -> set[str]:
    return {MANIFEST, *(entry["file"] for entry in (*manifest["shards"], *manifest["files"]))}


class _EncodeJob:
    """The journal and the files that it describes."""

    def __init__(self, model: Encoder, folder: Path, layout: Format, journal: Journal) -> None:
        self.model = model
        self.folder = folder
        self.layout = layout
        self.journal = journal

    def run(self, source: Source, checkpoint_rows: int, progress: Callable[[FolderProgress], None]) -> int:
        """Encode the rest and finish the folder; returns the number of rows."""
        resumed = self.journal.rows
        with writing(self.folder):
            self._close_full_shard()  # a run may have died between filling a shard and closing it
        while block := source.take(self._room(checkpoint_rows)):
            vectors = self._encode([row.text for row in block])
            with writing(self.folder):
                self._record(block, vectors, source.hash.hexdigest())
                self._close_full_shard()
            progress(FolderProgress(self.journal.rows, self.journal.rows - resumed))
        if not self.journal.rows:
            empty = self._encode([])  # has a dim and a dtype
            with writing(self.folder):
                self._record([], empty, self.journal.input_sha256)
        with writing(self.folder):
            self._finish()
        return self.journal.rows

    def _room(self, checkpoint_rows: int) -> int:
        if self.journal.plan.shard_rows is None:
            return checkpoint_rows
        return min(checkpoint_rows, self.journal.plan.shard_rows - self.journal.shard_rows)

    def _encode(self, texts: list[str]) -> AnyVectors:
        try:
            vectors = np.asarray(self.model.encode(texts))
        except InputError as error:
            raise InputError(
                f"{error} (positions count from row {self.journal.rows} of the input)"
            ) from error
        vectors = np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("<"))
        dtype, dim = self.journal.dtype or vectors.dtype.name, self.journal.dim or vectors.shape[-1]
        if vectors.shape != (len(texts), dim) or vectors.dtype.name != dtype or dtype not in DTYPES:
            raise WorkError(
                f"the encoder gave {vectors.dtype} {vectors.shape} for {len(texts)} texts; "
                f"expected {dtype} ({len(texts)}, {dim}), and one of {', '.join(DTYPES)}"
            )
        if vectors.dtype.kind == "f" and not np.isfinite(vectors).all():
            row = self.journal.rows + int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise WorkError(f"the encoder gave a vector with NaN or infinity for row {row}")
        return vectors

    def _record(self, rows: list[Row], vectors: AnyVectors, input_sha256: str) -> None:
        texts = [row.text for row in rows] if self.journal.plan.keep_texts else None
        block = RowBlock([row.id for row in rows], texts, vectors, shard=len(self.journal.shards))
        sizes = dict(self.journal.sizes)
        for name, data in self.layout.added(block).items():
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

    def _close_full_shard(self) -> None:
        if self.journal.shard_rows == self.journal.plan.shard_rows:
            self.journal = self._with_closed_shard()
            self.journal.save(self.folder)

    def _with_closed_shard(self) -> Journal:
        """The journal after the rows of the open shard went to a file of their own."""
        assert self.journal.dim is not None and self.journal.dtype is not None
        shape = Shape(self.journal.shard_rows, self.journal.dim, self.journal.dtype)
        sizes = dict(self.journal.sizes)
        try:
            name = self.layout.close(self.folder, len(self.journal.shards), shape, sizes)
        except KeyError as error:
            damaged = f"{self.folder / JOURNAL} is damaged: it does not say how long {error.args[0]} is"
            raise InputError(f"{damaged}. Start again with overwrite (--overwrite)") from error
        shard = Shard(name, shape.rows, sha256_of(self.folder / name))
        return replace(self.journal, sizes=sizes, shards=(*self.journal.shards, shard))

    def _finish(self) -> None:
        """Give final names, write the manifest, then remove the journal; until then a new run can undo it."""
        open_rows = self.journal.shard_rows or not self.layout.sharded
        final = self._with_closed_shard() if open_rows else self.journal
        final = replace(final, sizes={name: final.sizes[name] for name in SIDE_FILES if name in final.sizes})
        for name, size in final.sizes.items():
            finish_part(self.folder / name, size, b"")
        manifest = _manifest(self.folder, final)
        write_atomic(self.folder / MANIFEST, manifest, exclusive=True)
        (self.folder / JOURNAL).unlink()
        sync(self.folder)
        _remove_all_but(self.folder, _files_of(manifest))


def _manifest(folder: Path, final: Journal) -> Json:
    """Without times and paths, so that the same job gives the same bytes."""
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
        "shards": [asdict(shard) for shard in final.shards],
        "files": [{"file": name, "sha256": sha256_of(folder / name)} for name in sorted(final.sizes)],
    }


def take(rows: Iterator[Row], limit: int) -> list[Row]:
    """The next `limit` rows; fewer when they are long or the input ends, none when it has ended."""
    block: list[Row] = []
    characters = 0
    while len(block) < limit and characters < BLOCK_CHARACTERS and (row := next(rows, None)) is not None:
        block.append(row)
        characters += len(row.text)
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
        """Skip the rows that are encoded, and check by hash that they are the same."""
        for row in islice(self._rows, rows):
            self.hash.add(row)
            self.taken += 1
        if self.taken < rows or self.hash.hexdigest() != sha256:
            raise InputError(
                f"the input has changed since {folder} was begun: it does not have the {rows:,} rows encoded there. "
                f"Give the same input. {START_AGAIN}",
                code="GEM-308",
            )

    def ended(self) -> bool:
        """Whether no row is left."""
        ahead = list(islice(self._rows, 1))
        self._rows = chain(ahead, self._rows)
        return not ahead


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


def _before_the_end(folder: Path, plan: FolderPlan, layout: Format) -> Journal:
    """The journal of the last block. Files that will grow again must be as they were written."""
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


def refuse_missing(folder: Path, expected: set[str]) -> None:
    """Raise unless all of these files are there."""
    if missing := expected - set(ours(folder)):
        raise InputError(f"{folder} is damaged: {', '.join(sorted(missing))} is missing. {START_AGAIN}")
