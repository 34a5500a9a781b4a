"""What was built for search, in a folder beside the table. It may be deleted at any time; one that is damaged or old is
ignored. A passage is known in it by its stamp, so it fits every version of the table as far as they share passages."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.lance.copies import TEXTS_A_BATCH, Base, read
from gemel.index.lance.disk import sync
from gemel.index.lance.lists import Lists, Point, build, load_faiss
from gemel.index.lance.view import View
from gemel.types import Vectors

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT = 2
_ABANDONED = 3600  # seconds after which a folder that never got its name is left by a process that died
_FILES = ("stamps.npy", "vectors.f32", "texts.arrow", "lists.faiss")


@dataclass(frozen=True, eq=False)
class Built:
    base: Base
    lists: Lists
    folder: Path | None = None
    """Where it is kept."""


def build_from(view: View, folder: Path | None, table: str) -> Built:
    """Lists of all passages that are there, read from the table. With a folder: kept in it, and mapped from there."""
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
            "stamps": hashlib.sha256(stamp.tobytes()).hexdigest(),
            "sizes": {name: (here / name).stat().st_size for name in _FILES},
            "visited": lists.visited,
            "wide": lists.wide,
            "recall": lists.recall,
            "curve": [asdict(point) for point in lists.curve],
        }
        (here / "about.json").write_text(json.dumps(about), encoding="utf-8")
        for name in (*_FILES, "about.json"):
            sync(here / name)
        built = _mapped(here, stamp, view.header.dim)
    return Built(built, lists, here.with_name(here.name.removeprefix(".")))


def load(folder: Path, table: str, dim: int) -> Built | None:
    """The newest that is whole; None: there is none."""
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


def drop_others(folder: Path, table: str, kept: Path) -> None:
    """Caches of this table other than `kept`. Processes that have mapped them keep their bytes."""
    for path in folder.glob(f"{table}-*"):
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f".{table}-*"):
        with suppress(OSError):  # another process may be about to finish it
            if time.time() - path.stat().st_mtime > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def _load(here: Path, dim: int) -> Built:
    about: dict[str, Any] = json.loads((here / "about.json").read_text(encoding="utf-8"))
    sizes = {name: (here / name).stat().st_size for name in _FILES}
    if about["format"] != _FORMAT or about["dim"] != dim or about["sizes"] != sizes:
        raise ValueError("not this table's, or not whole")
    stamp = np.load(here / "stamps.npy", allow_pickle=False)
    if hashlib.sha256(stamp.tobytes()).hexdigest() != about["stamps"]:
        raise ValueError("damaged")
    index = load_faiss().read_index(str(here / "lists.faiss"))
    if index.ntotal != len(stamp) or index.d != dim:
        raise ValueError("damaged")
    found = int(about["visited"]), float(about["recall"]), len(stamp), int(about["wide"])
    lists = Lists(index, len(stamp), *found, curve=tuple(Point(**point) for point in about["curve"]))
    return Built(_mapped(here, stamp, dim), lists, here)


def _mapped(here: Path, stamp: NDArray[np.int64], dim: int) -> Base:
    import pyarrow as pa

    mapped = np.memmap(here / "vectors.f32", dtype=np.float32, mode="r", shape=(len(stamp), dim))
    vectors = np.asarray(mapped)  # a plain array over the same file: taking rows of it is quicker
    texts = pa.ipc.open_file(pa.memory_map(str(here / "texts.arrow"))).read_all()["text"].chunks
    if sum(len(chunk) for chunk in texts) != len(stamp):
        raise ValueError("damaged")
    return Base(stamp, vectors, texts)


@contextmanager
def _new_folder(folder: Path, table: str) -> Iterator[Path]:
    """It gets its name when it is whole; until then it has one that `load` does not look at."""
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


def _in_memory(view: View, positions: NDArray[np.int64], stamp: NDArray[np.int64]) -> Built:
    vectors = np.empty((len(positions), view.header.dim), dtype=np.float32)
    texts: list[Any] = []
    batches = _Batches(lambda batch: texts.append(batch.column(0)))

    def keep(place: slice, vector: Vectors, text: pa.ChunkedArray) -> None:
        vectors[place] = vector
        batches.add(text)

    read(view, positions, keep)
    batches.end()
    return Built(Base(stamp, vectors, texts), build(vectors))


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
        while self._count >= TEXTS_A_BATCH:
            self._send(TEXTS_A_BATCH)

    def end(self) -> None:
        if self._count:
            self._send(self._count)

    def _send(self, count: int) -> None:
        import pyarrow as pa

        joined = pa.concat_arrays(self._waiting)
        first = pa.concat_arrays([joined.slice(0, count)])  # a copy, so that an offset does not stay behind
        self._out(pa.record_batch([first], names=["text"]))
        self._waiting, self._count = [joined.slice(count)], self._count - count
