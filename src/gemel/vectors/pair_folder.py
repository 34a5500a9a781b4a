"""Pairs on disk: three npy files that grow block by block, and a journal that says how much of them is valid.

A block is appended and synced, then recorded. After a kill, what was not recorded is cut off, so the finished files
have the same bytes as those of a run that was never stopped. One run writes to a folder at a time.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError  # of a header, which numpy parses as Python
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.files.atomic import sync_open, write_atomic
from gemel.files.locks import LOCK, lock_folder
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.scan.compare import ScanResult

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
                size, length = (
                    _HEADER + self.pairs * kind.itemsize,
                    path.stat().st_size if path.is_file() else 0,
                )
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
