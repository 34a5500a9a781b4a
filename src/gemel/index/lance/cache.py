"""The cache of a table: lists, vectors and texts in a folder beside it, mapped into memory (`Base`, `Copies`).

It may be deleted at any time; a damaged or old one is ignored. Passages are identified by their stamps, so it fits
every version of the table as far as they share passages. Each vector and text has a number, its slot: the first slots
are those of the cache, the others were added by this process. about.json has the sha256 of every file; they are
compared when a cache is first loaded, and again when size, time or inode of a file has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import WorkError
from gemel.files.atomic import lock, sync
from gemel.index.lance.ann import Lists, RecallPoint, build, load_faiss
from gemel.index.lance.columns import indices, matrix
from gemel.index.lance.view import Positions, View
from gemel.types import Vectors
from gemel.vectors.scan.scanner import dot_scores

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT = 3  # of about.json; a cache of another format is built again

_CHECKED = "checked.json"

_FILES = ("stamps.npy", "vectors.f32", "texts.arrow", "lists.faiss")


@dataclass(frozen=True, eq=False)
class BuiltCache:
    base: Base
    lists: Lists
    folder: Path | None = None
    """Where it is saved; None: in memory only."""


def build_from(view: View, folder: Path | None, table: str) -> BuiltCache:
    """Lists of all passages, read from the table; with a folder: saved in it, and mapped from there."""
    positions = np.flatnonzero(view.live)
    stamp = view.stamp[positions]
    if folder is None:
        return _in_memory(view, positions, stamp)
    with _new_folder(folder, table) as here:
        vectors = _streamed(view, positions, here)
        lists = build(vectors)
        np.save(here / "stamps.npy", stamp)
        load_faiss().write_index(lists.index, str(here / "lists.faiss"))
        about = {
            "format": _FORMAT,
            "dim": view.header.dim,
            "rows": len(stamp),
            "sha256": {name: sha256(here / name) for name in _FILES},
            "visited": lists.visited,
            "wide": lists.wide,
            "recall": lists.recall,
            "edges": lists.edges,
            "curve": [asdict(point) for point in lists.curve],
        }
        (here / "about.json").write_text(json.dumps(about), encoding="utf-8")
        note_checked(here, about)
        for name in (*_FILES, "about.json", _CHECKED):
            sync(here / name)
        built = _mapped(here, stamp, view.header.dim)
    return BuiltCache(built, lists, here.with_name(here.name.removeprefix(".")))


def load(folder: Path, table: str, dim: int) -> BuiltCache | None:
    """The newest undamaged one; None: there is none."""
    try:
        found = sorted(
            folder.glob(f"{table}-*/about.json"), key=lambda path: path.stat().st_mtime, reverse=True
        )
    except OSError:
        return None
    for path in found:
        try:
            return _load(path.parent, dim)
        except (OSError, ValueError, KeyError, RuntimeError, TypeError):  # RuntimeError: what faiss raises
            continue
    return None


def building(folder: Path, *, wait: bool = True) -> AbstractContextManager[bool]:
    """A lock of the one process that builds a cache in this folder; False: another is building, without waiting.

    OSError or WorkError where the folder cannot be written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return lock(folder.with_name(f"{folder.name}.lock"), wait=wait)


def drop_others(folder: Path, table: str, kept: Path | None) -> None:
    """Caches of this table other than `kept`. Processes that have mapped them keep their bytes."""
    for path in folder.glob(f"{table}-*"):
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path, table: str) -> None:
    """Delete unfinished caches of processes that died, unless another process is building one now."""
    with suppress(OSError, WorkError):
        if any(folder.glob(f".{table}-*")):
            with building(folder, wait=False) as alone:
                if alone:
                    drop_unfinished(folder, table)


def drop_unfinished(folder: Path, table: str) -> None:
    """Delete unfinished caches; only with the lock of `building`."""
    for path in folder.glob(f".{table}-*"):
        shutil.rmtree(path, ignore_errors=True)


def faults(folder: Path, table: str) -> list[str]:
    """What is wrong with the caches of a table; every byte is read."""
    out = []
    for path in sorted(folder.glob(f"{table}-*")):
        try:
            check_files(path, json.loads((path / "about.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            out.append(f"cache/{path.name} is damaged ({error})")
    return out


def repair(folder: Path, table: str) -> list[str]:
    """Delete damaged and unfinished caches; the next search builds one."""
    with building(folder):
        drop_unfinished(folder, table)
        wrong = faults(folder, table)
        if wrong:
            drop_others(folder, table, None)
    return [f"dropped what was built for search: {each}" for each in wrong[:1]]


def check_files(here: Path, about: Mapping[str, Any]) -> None:
    """ValueError if a file that about.json lists has other bytes than were written."""
    for name, digest in about["sha256"].items():
        if sha256(here / name) != digest:
            raise ValueError(f"{name} has other bytes than were written")


def check_files_once(here: Path, about: Mapping[str, Any]) -> None:
    """`check_files`, unless these very files were checked before."""
    if not _was_checked(here, about):
        check_files(here, about)
        note_checked(here, about)


def sha256(path: Path) -> str:
    """Of the bytes of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seen(here: Path, about: Mapping[str, Any]) -> dict[str, list[int]]:
    """What changes when a file of the cache is written again or copied."""
    return {name: file_state(here / name) for name in (*about["sha256"], "about.json")}


def file_state(path: Path) -> list[int]:
    """Size, time and inode."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def note_checked(here: Path, about: Mapping[str, Any]) -> None:
    """The files are as they were written."""
    with suppress(OSError):  # a folder that may not be written: it is checked each time
        (here / _CHECKED).write_text(json.dumps(_seen(here, about)), encoding="utf-8")


def _was_checked(here: Path, about: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads((here / _CHECKED).read_text(encoding="utf-8")) == _seen(here, about))
    except (OSError, ValueError):
        return False


def _load(here: Path, dim: int) -> BuiltCache:
    about: dict[str, Any] = json.loads((here / "about.json").read_text(encoding="utf-8"))
    if about["format"] != _FORMAT or about["dim"] != dim:
        raise ValueError("not this table's")
    check_files_once(here, about)
    stamp = np.load(here / "stamps.npy", allow_pickle=False)
    index = load_faiss().read_index(str(here / "lists.faiss"))
    if index.ntotal != len(stamp) or index.d != dim:
        raise ValueError("damaged")
    found = int(about["visited"]), float(about["recall"]), len(stamp), int(about["wide"])
    curve = tuple(RecallPoint(**point) for point in about["curve"])
    usual, careful = (float(edge) for edge in about["edges"])
    lists = Lists(index, len(stamp), *found, curve=curve, edges=(usual, careful))
    return BuiltCache(_mapped(here, stamp, dim), lists, here)


def _mapped(here: Path, stamp: NDArray[np.int64], dim: int) -> Base:
    import pyarrow as pa

    mapped = np.memmap(here / "vectors.f32", dtype=np.float32, mode="r", shape=(len(stamp), dim))
    vectors = np.asarray(mapped)  # a plain array over the same file: taking rows of it is faster
    texts = pa.ipc.open_file(pa.memory_map(str(here / "texts.arrow"))).read_all()["text"].chunks
    if sum(len(chunk) for chunk in texts) != len(stamp):
        raise ValueError("damaged")
    return Base(stamp, vectors, texts)


@contextmanager
def _new_folder(folder: Path, table: str) -> Iterator[Path]:
    """A new folder that `load` ignores until the block has ended without error."""
    name = f"{table}-{os.urandom(4).hex()}"
    here = folder / f".{name}"
    here.mkdir(parents=True)
    try:
        yield here
        here.rename(folder / name)
    except BaseException:
        shutil.rmtree(here, ignore_errors=True)
        raise


def _streamed(view: View, positions: NDArray[np.int64], here: Path) -> Vectors:
    """Vectors and texts to their files, block by block; the vectors mapped."""
    import pyarrow as pa

    schema = pa.schema([("text", pa.large_string())])
    with (
        (here / "vectors.f32").open("wb") as vectors,
        pa.OSFile(str(here / "texts.arrow"), "wb") as texts,
        pa.ipc.new_file(texts, schema) as out,
    ):
        batches = _Batches(out.write_batch)

        def keep(_: slice, vector: Vectors, text: pa.ChunkedArray) -> None:
            vector.tofile(vectors)
            batches.add(text)

        read(view, positions, keep)
        batches.end()
    return np.memmap(here / "vectors.f32", np.float32, "r", shape=(len(positions), view.header.dim))


def _in_memory(view: View, positions: NDArray[np.int64], stamp: NDArray[np.int64]) -> BuiltCache:
    vectors = np.empty((len(positions), view.header.dim), dtype=np.float32)
    texts: list[Any] = []
    batches = _Batches(lambda batch: texts.append(batch.column(0)))

    def keep(rows: slice, vector: Vectors, text: pa.ChunkedArray) -> None:
        vectors[rows] = vector
        batches.add(text)

    read(view, positions, keep)
    batches.end()
    return BuiltCache(Base(stamp, vectors, texts), build(vectors))


class _Batches:
    """Texts as they come, out in batches of one size, so that a text is found by its number."""

    def __init__(self, out: Any) -> None:  # noqa: ANN401 - a function that takes a pyarrow.RecordBatch
        self._out = out
        self._waiting: list[Any] = []
        self._count = 0

    def add(self, texts: pa.ChunkedArray | pa.Array) -> None:
        import pyarrow as pa

        chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        self._waiting += [chunk.cast(pa.large_string()) for chunk in chunks]
        self._count += len(texts)
        while self._count >= TEXTS_PER_BATCH:
            self._send(TEXTS_PER_BATCH)

    def end(self) -> None:
        if self._count:
            self._send(self._count)

    def _send(self, count: int) -> None:
        import pyarrow as pa

        joined = pa.concat_arrays(self._waiting)
        first = pa.concat_arrays([joined.slice(0, count)])  # a copy, so that an offset does not stay behind
        self._out(pa.record_batch([first], names=["text"]))
        self._waiting, self._count = [joined.slice(count)], self._count - count


TEXTS_PER_BATCH = 65_536

_CELLS = 32  # so many texts are read one by one; more are taken at once

_BLOCK = 16_384  # rows that are read at once: 16,384 x 384 x 4 bytes = 25 MB


@dataclass(frozen=True, eq=False)
class Base:
    """Slots from 0 on, as they were when the search structure was built."""

    stamp: NDArray[np.int64]
    vector: Vectors
    """(n, dim); a file mapped into memory, or an array."""
    text: Sequence[pa.Array]
    """Batches of `TEXTS_PER_BATCH`, the last one shorter."""

    def text_at(self, slot: int) -> str:
        return str(self.text[slot // TEXTS_PER_BATCH][slot % TEXTS_PER_BATCH].as_py())

    def texts_at(self, slots: NDArray[np.int64]) -> list[str]:
        """The same of many, batch by batch."""
        batch, rows = np.divmod(slots, TEXTS_PER_BATCH)
        out: list[str] = [""] * len(slots)
        for number in np.flatnonzero(np.bincount(batch)).tolist():
            at = np.flatnonzero(batch == number)
            texts = self.text[number].take(indices(rows[at])).to_pylist()
            for n, text in zip(at.tolist(), texts, strict=True):
                out[n] = text
        return out


class Copies:
    """Grows at its end only, so whoever holds a count may read below it while others add."""

    def __init__(self, base: Base, cache: str | None = None) -> None:
        """`cache`: name of the list cache that the base is mapped from; None: it is in memory."""
        self.base, self.cache = base, cache
        self._lock = threading.Lock()
        self._first = len(base.stamp)
        self._count = self._first
        self._stamp = np.empty(256, dtype=np.int64)
        self._vector = np.empty((256, base.vector.shape[1]), dtype=np.float32)
        self._text: list[str] = []

    def __len__(self) -> int:
        return self._count

    @property
    def grown(self) -> int:
        """Slots that are not in the base."""
        return self._count - self._first

    def add(self, stamp: NDArray[np.int64], vector: Vectors, text: Sequence[str]) -> NDArray[np.int64]:
        """The slots that these passages got."""
        with self._lock:
            start = self._count - self._first
            end = start + len(stamp)
            if end > len(self._stamp):
                self._stamp = _larger(self._stamp, end)
                self._vector = _larger(self._vector, end)
            self._stamp[start:end] = stamp
            self._vector[start:end] = vector
            self._text.extend(text)
            self._count += len(stamp)
            return np.arange(self._first + start, self._first + end, dtype=np.int64)

    def stamps(self) -> NDArray[np.int64]:
        return np.concatenate([self.base.stamp, self._stamp[: self.grown]])

    def vectors(self, slots: NDArray[np.int64]) -> Vectors:
        """(n, dim)"""
        old = slots < self._first
        if old.all():
            return np.asarray(self.base.vector[slots])
        if not old.any():
            return self._vector[slots - self._first]
        out = np.empty((len(slots), self._vector.shape[1]), dtype=np.float32)
        out[old] = self.base.vector[slots[old]]
        out[~old] = self._vector[slots[~old] - self._first]
        return out

    def run(self, start: int, end: int) -> Vectors:
        """The vectors of slots start to end, without a copy where they lie together."""
        if end <= self._first:
            return self.base.vector[start:end]
        if start >= self._first:
            return self._vector[start - self._first : end - self._first]
        return np.concatenate([self.base.vector[start:], self._vector[: end - self._first]])

    def scores(self, queries: Vectors, i: NDArray[np.int64], slots: NDArray[np.int64]) -> Vectors:
        """(n,) exact scores of queries[i] and the vectors of these slots, read where they are."""
        old = slots < self._first
        if old.all():
            return dot_scores(queries, self.base.vector, i, slots)
        out = np.empty(len(slots), dtype=np.float32)
        out[old] = dot_scores(queries, self.base.vector, i[old], slots[old])
        out[~old] = dot_scores(queries, self._vector, i[~old], slots[~old] - self._first)
        return out

    def blocks(self, count: int) -> Iterator[tuple[int, Vectors]]:
        """The vectors of the slots below `count`, in arrays that lie together, each with its first slot."""
        if self._first:
            yield 0, self.base.vector[:count]
        if count > self._first:
            yield self._first, self._vector[: count - self._first]

    def texts(self, slots: NDArray[np.int64]) -> list[str]:
        if len(slots) > _CELLS and int(slots.max()) < self._first:
            return self.base.texts_at(slots)
        return [
            self.base.text_at(slot) if slot < self._first else self._text[slot - self._first]
            for slot in slots.tolist()
        ]


def read(view: View, positions: Positions, use: Callable[[slice, Vectors, pa.ChunkedArray], None]) -> None:
    """Vectors and texts of these rows, ascending, from the table; `use` gets them block by block, each with its slice
    of `positions`."""
    if len(positions) * 4 >= view.passages:  # one scan of all rows is faster than many reads
        wanted = np.zeros(len(view.live), dtype=np.bool_)
        wanted[positions] = True
        _walk(view, wanted, use)
        return
    for start in range(0, len(positions), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(positions)))
        table = view.take(positions[rows], ["vector", "text"])
        use(rows, matrix(table["vector"]), table["text"])


def _walk(
    view: View, wanted: NDArray[np.bool_], use: Callable[[slice, Vectors, pa.ChunkedArray], None]
) -> None:
    import pyarrow as pa

    done = 0
    scanner: Any = view.dataset.scanner(
        columns=["vector", "text"], with_row_address=True, scan_in_order=True, batch_size=_BLOCK
    )
    for batch in scanner.to_batches():
        keep = wanted[view.positions(batch["_rowaddr"].to_numpy())]
        if not keep.all():
            batch = batch.filter(pa.array(keep))  # noqa: PLW2901 - only the live rows are used
        count = batch.num_rows
        if count:
            use(slice(done, done + count), matrix(batch["vector"]), batch["text"])
            done += count


def _larger(array: NDArray[Any], least: int) -> NDArray[Any]:
    out = np.empty((max(least, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    out[: len(array)] = array
    return out
