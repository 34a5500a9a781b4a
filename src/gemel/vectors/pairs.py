"""The most similar pairs of rows, within one array or between two: `similar_pairs`, exact and complete.

Pairs are collected in memory, or in a folder that a killed run resumes: three npy files that grow block by block, and
a journal that says how much of them is valid. A block is appended and synced, then recorded. After a kill, what was not
recorded is cut off, so the finished files have the same bytes as those of a run that was never stopped. One run writes
to a folder at a time.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from tokenize import TokenError  # of a header, which numpy parses as Python
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.files.atomic import LOCK, lock_folder, sync_open, write_atomic
from gemel.vectors.pair_scan import (
    Best,
    Every,
    PairRequest,
    Pairs,
    Walk,
    by_position,
    in_order,
    too_many,
)
from gemel.vectors.scan.compare import ScanResult, thread_count
from gemel.vectors.scan.scanner import scan

__all__ = ["PairFolder", "Pairs", "similar_pairs"]

_SAVE_EVERY = 5.0  # seconds between two saved states of the best k

JOURNAL, RESULT = "progress.json", "pairs.json"

COLUMNS: dict[str, np.dtype[Any]] = {
    "score": np.dtype("<f4"),
    "left": np.dtype("<i8"),
    "right": np.dtype("<i8"),
}

_FRESH = ".tmp"  # a file that is being written

_HEADER = 128  # bytes of an npy header here, whatever the length it names

_KEPT = np.dtype([("score", "<f4"), ("left", "<i4"), ("right", "<i4")])

Json = dict[str, Any]  # what json.loads gives for an object


def similar_pairs(  # noqa: PLR0913 - one question, and how to work on it
    vectors: ArrayLike,
    *,
    k: int | None = None,
    min_score: float | None = None,
    other: ArrayLike | None = None,
    metric: str = "cosine",
    memory: int | str = "1GB",
    threads: int | None = None,
    out: str | Path | None = None,
    prune: bool = True,
    progress: bool = False,
) -> Pairs:
    """The `k` best pairs, or all with a score of at least `min_score`, or the best `k` of those.

    Within `vectors` every pair is compared once and no row with itself; with `other`, each row of `vectors` (left)
    with each of `other` (right). The result is exact, and its scores do not depend on any other option.

    memory: for blocks and collected pairs, besides the arrays given; a threshold that matches more needs `out`.
    out: a folder to stream the pairs to, as score.npy, left.npy, right.npy. The same call resumes a run that was
    killed. With `min_score` alone they are sorted by position, not best first.
    prune: rule pairs out by 8-bit bounds first, where the processor supports them. The result is the same.
    """
    request = PairRequest.of(
        vectors,
        other,
        k=k,
        min_score=min_score,
        metric=metric,
        memory=memory,
        threads=thread_count(threads),
        prune=prune,
        progress=progress,
        out=out,
    )
    if request.out is None:
        return _compare(request, None)
    with PairFolder(request.out, request.plan) as folder:
        return folder.result() if folder.finished else _compare(request, folder)


def _compare(request: PairRequest, folder: PairFolder | None) -> Pairs:
    ready = scan(
        request.left,
        request.right,
        request.metric,
        threads=request.threads,
        int8=request.prune,
        names=("vectors", "other"),
    )
    walk = Walk(ready, request)
    try:
        if folder is not None:
            _into_folder(walk, request, folder)
            return folder.result()
        if walk.total == 0:
            return as_pairs(ScanResult(np.empty(0, np.float32), *np.empty((2, 0), np.int32)), 0)
        return _into_memory(walk, request)
    finally:
        walk.close()


def _into_memory(walk: Walk, request: PairRequest) -> Pairs:
    """All pairs of the request, best first."""

    def full() -> None:
        raise too_many(request)

    collector: Best | Every = (
        Every(request.floor, request.most_pairs, full)
        if request.k is None
        else Best(request.k, request.floor, walk.rights)
    )
    for begin in range(0, walk.lefts, walk.block_rows):
        end = min(begin + walk.block_rows, walk.lefts)
        walk.block(begin, end, collector)
        walk.done(begin, end)
    return as_pairs(in_order(collector.result(), walk.rights), walk.total)


def _into_folder(walk: Walk, request: PairRequest, folder: PairFolder) -> None:
    """Resume where the folder ends, and finish it."""
    if request.k is not None:
        _best_into(walk, request, request.k, folder)
    else:
        _every_into(walk, request, folder)
    folder.finish(walk.total)


def _best_into(walk: Walk, request: PairRequest, k: int, folder: PairFolder) -> None:
    best = Best(k, request.floor, walk.rights, kept=folder.kept())
    walk.done(0, folder.next_row)
    saved = monotonic()
    for begin in range(folder.next_row, walk.lefts, walk.block_rows):
        end = min(begin + walk.block_rows, walk.lefts)
        walk.block(begin, end, best)
        walk.done(begin, end)
        if monotonic() - saved >= _SAVE_EVERY:
            folder.keep(best.result(), end)
            saved = monotonic()
    folder.append(best.result(), walk.lefts)


def _every_into(walk: Walk, request: PairRequest, folder: PairFolder) -> None:
    """Sorted by position. A block with more pairs than fit is tried again with half its rows; the files are equal."""

    def full() -> None:
        if rows > 1:
            raise _Full

    rows = walk.block_rows
    walk.done(0, folder.next_row)
    while folder.next_row < walk.lefts:
        begin, end = folder.next_row, min(folder.next_row + rows, walk.lefts)
        rows = end - begin
        every = Every(request.floor, request.most_pairs, full)
        try:
            walk.block(begin, end, every)
        except _Full:
            rows = max(1, rows // 2)
            continue
        folder.append(by_position(every.result(), walk.rights), end)
        walk.done(begin, end)
        rows = min(2 * rows, walk.block_rows)


class _Full(Exception):
    """A block has more pairs than fit."""


def as_pairs(pairs: ScanResult, compared: int) -> Pairs:
    """The complete result of `compared` pairs."""
    left, right = pairs.left.astype(np.int64), pairs.right.astype(np.int64)
    return Pairs(pairs.score, left, right, compared=compared, complete=True)


class PairFolder:
    """A folder that is being written, or is finished. It is locked while it is written; `with` unlocks it."""

    def __init__(self, path: Path, plan: Json) -> None:
        """`plan`: all that the bytes depend on. A folder begun with another one is refused."""
        self._path, self._plan = path, plan
        self.finished, self.next_row, self.pairs = False, 0, 0
        self._kept_file: str | None = None
        self._lock = ExitStack()
        path.mkdir(parents=True, exist_ok=True)
        self._read_state()  # a folder that is not ours, or that is finished, gets no lock
        if self.finished:
            self._clean_up()
            return
        busy = f"another run is writing pairs to {path}. Wait for it, or name another folder"
        self._lock.enter_context(lock_folder(path, busy))
        try:
            self._read_state()  # again: another run may have written until it unlocked
            if self.finished:
                self.close()
            else:
                self._cut()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PairFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the folder; another run may resume it."""
        self._lock.close()

    def append(self, pairs: ScanResult, next_row: int) -> None:
        """Add pairs: those of all left rows before `next_row` are in the files now."""
        for name, kind in COLUMNS.items():
            with (self._path / f"{name}.npy").open("ab") as file:
                file.write(np.ascontiguousarray(getattr(pairs, name), dtype=kind).data)
                sync_open(file)
        self.pairs += len(pairs)
        self._record(next_row, None)

    def keep(self, pairs: ScanResult, next_row: int) -> None:
        """Save the best pairs of the left rows before `next_row`, for a run that resumes."""
        name = f"kept-{next_row}.npy"
        rows = np.empty(len(pairs), dtype=_KEPT)
        rows["score"], rows["left"], rows["right"] = pairs.score, pairs.left, pairs.right
        with (self._path / name).open("wb") as file:
            np.save(file, rows)
            sync_open(file)
        self._record(next_row, name)

    def kept(self) -> ScanResult | None:
        """The pairs that `keep` saved last."""
        if self._kept_file is None:
            return None
        rows = self._array(self._kept_file, _KEPT)
        return ScanResult(rows["score"].copy(), rows["left"].copy(), rows["right"].copy())

    def finish(self, compared: int) -> None:
        """Write the final headers and the result, remove the journal."""
        for name, kind in COLUMNS.items():
            with (self._path / f"{name}.npy").open("r+b") as file:
                file.write(_header(kind, self.pairs))
                sync_open(file)
        self._write(RESULT, {**self._state(None), "compared": compared, "complete": True})
        self._clean_up()
        self.finished = True
        self.close()

    def result(self) -> Pairs:
        """The pairs, memory-mapped."""
        state = self._read(RESULT)
        assert state is not None, "only a finished folder has a result"
        columns: dict[str, Any] = {name: self._array(f"{name}.npy", kind) for name, kind in COLUMNS.items()}
        if any(len(column) != self.pairs for column in columns.values()):
            raise self._damaged(
                RESULT, f"it says {self.pairs:,} pairs, and the other files have more or fewer"
            )
        if not _is_count(state.get("compared")):
            raise self._damaged(RESULT, "it does not say how many pairs were compared")
        return Pairs(**columns, compared=int(state["compared"]), complete=bool(state.get("complete")))

    def _array(self, name: str, kind: np.dtype[Any]) -> NDArray[Any]:
        """One of our files, memory-mapped."""
        try:
            array: NDArray[Any] = np.load(self._path / name, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError, TokenError, SyntaxError) as error:
            raise self._damaged(name, error) from error
        if array.ndim != 1 or array.dtype != kind:
            raise self._damaged(name, f"it has {array.dtype} in the shape {array.shape}")
        return array

    def _damaged(self, name: str, reason: object) -> InputError:
        return InputError(
            f"{self._path / name} is damaged: {reason}. Remove the folder and run again, or name another folder"
        )

    def _read_state(self) -> None:
        """Read how far the folder is.

        Another run may be writing. It writes the journal before any file of pairs, and the result before it removes
        the journal: read in this order, one of the two is seen if there are files.
        """
        others = [
            file for file in self._path.iterdir() if file.name != LOCK and not file.name.endswith(_FRESH)
        ]
        journal, result = self._read(JOURNAL), self._read(RESULT)
        state = result or journal
        if state is None and others:
            raise InputError(
                f"{self._path} is not empty and has no pairs of gemel. Name an empty or a new folder"
            )
        self.finished = result is not None
        if state is not None:
            name, kept = RESULT if self.finished else JOURNAL, state.get("kept")
            if not all(_is_count(state.get(key)) for key in ("next_row", "pairs")):
                raise self._damaged(name, "it does not say how many rows and pairs are done")
            if kept is not None and not (isinstance(kept, str) and re.fullmatch(r"kept-\d+\.npy", kept)):
                raise self._damaged(name, f"{kept!r:.60} is not a file of gemel")
            self.next_row, self.pairs, self._kept_file = state["next_row"], state["pairs"], kept

    def _record(self, next_row: int, kept: str | None) -> None:
        self.next_row = next_row
        self._write(JOURNAL, self._state(kept))
        self._drop_kept(kept)

    def _state(self, kept: str | None) -> Json:
        return {"plan": self._plan, "next_row": self.next_row, "pairs": self.pairs, "kept": kept}

    def _clean_up(self) -> None:
        """Remove everything but the result from a finished folder."""
        for name in (JOURNAL, LOCK):
            (self._path / name).unlink(missing_ok=True)
        self._drop_kept(None)

    def _drop_kept(self, but: str | None) -> None:
        for old in self._path.glob("kept-*.npy"):
            if old.name != but:
                old.unlink(missing_ok=True)

    def _cut(self) -> None:
        """Cut the files to the recorded pairs. The journal comes first: it says that the folder is ours."""
        if self.next_row == 0:
            self._write(JOURNAL, self._state(None))
        for name, kind in COLUMNS.items():
            path = self._path / f"{name}.npy"
            if self.pairs == 0:
                path.write_bytes(_header(kind, 0))
            else:
                size = _HEADER + self.pairs * kind.itemsize
                length = path.stat().st_size if path.is_file() else 0
                if length < size:  # truncating would fill it with zeros
                    raise self._damaged(path.name, f"it has {length:,} bytes, and {size:,} were written")
                os.truncate(path, size)

    def _read(self, name: str) -> Json | None:
        try:
            state: Json = json.loads((self._path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(name, error) from error
        if not isinstance(state, dict) or not isinstance(state.get("plan"), dict):
            raise self._damaged(name, "it does not say what was requested")
        if state.get("plan") != self._plan:
            earlier = state.get("plan", {})
            other = [key for key in self._plan if earlier.get(key) != self._plan[key]]
            raise InputError(
                f"{self._path} has pairs of another request: {', '.join(other)} differ. Name another folder, "
                "or remove this one"
            )
        return state

    def _write(self, name: str, state: Json) -> None:
        write_atomic(self._path / name, state, exclusive=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def _header(kind: np.dtype[Any], length: int) -> bytes:
    """An npy header of fixed size, so that it can be overwritten when the length is known."""
    text = f"{{'descr': '{kind.str}', 'fortran_order': False, 'shape': ({length},), }}"
    size = _HEADER - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1).encode() + b"\n"
