"""The door to the compiled tiles: structures and functions of native/scan.cpp, loaded with ctypes."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from gemel.errors import InputError

LEVELS = {3: "avx512vnni", 2: "avx512", 1: "avx2", 0: "baseline"}
VARIABLE = "GEMEL_SCAN"  # forces a level, or numpy

_pointer, _number = ctypes.c_void_p, ctypes.c_int64


class RowsView(ctypes.Structure):
    """A set of rows; see rows.h."""

    _fields_ = (
        ("values", _pointer),
        ("chosen", _pointer),
        ("inverse", _pointer),
        ("centre", _pointer),
        ("factor", ctypes.c_double),
        ("dim", _number),
    )


class BoundsView(ctypes.Structure):
    """How a floor becomes a limit for sums; see block.h."""

    _fields_ = (
        ("kind", _number),
        ("form", _number),
        ("scale", ctypes.c_double),
        ("slack", ctypes.c_double),
        ("relative", ctypes.c_double),
    )


class BlockView(ctypes.Structure):
    """Packed rows; see block.h."""

    _fields_ = (
        ("rows", ctypes.POINTER(RowsView)),
        ("begin", _number),
        ("count", _number),
        ("packed", _pointer),
        ("own", _pointer),
        ("step", _pointer),
        ("start", _pointer),
        ("widest", _pointer),
    )


class FoundView(ctypes.Structure):
    """Room for pairs; see scan.cpp."""

    _fields_ = (("left", _pointer), ("right", _pointer), ("score", _pointer), ("room", _number))


class HeapsView(ctypes.Structure):
    """The best so far of every lane; see scan.cpp."""

    _fields_ = (
        ("score", _pointer),
        ("index", _pointer),
        ("filled", _pointer),
        ("bias", _pointer),
        ("k", _number),
        ("exact", _number),
    )


def levels() -> list[str]:
    """What can scan here, best first; `numpy` is always the last."""
    compiled: list[str] = []
    if _path("baseline"):
        most = _processor_level()
        compiled = [name for rank, name in LEVELS.items() if rank <= most and _path(name)]
    return [*compiled, "numpy"]


@cache
def _processor_level() -> int:
    return int(library("baseline").gemel_processor_level())


def chosen_level() -> str:
    """The best level, or the one that the environment variable GEMEL_SCAN names."""
    known, asked = levels(), os.environ.get(VARIABLE)
    if asked and asked not in known:
        raise InputError(
            f"{VARIABLE} is {asked!r}, which this machine does not have. Known: {', '.join(known)}"
        )
    return asked or known[0]


@cache  # what was installed stays so; a search asks for it each time
def _path(level: str) -> Path | None:
    folder = Path(__file__).parent / "native"
    paths = (folder / f"_{level}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


@cache
def library(level: str) -> ctypes.CDLL:
    """The compiled tiles of one level."""
    loaded = ctypes.CDLL(str(_path(level)))
    rows, bounds = ctypes.POINTER(RowsView), ctypes.POINTER(BoundsView)
    block, found, heaps = (ctypes.POINTER(view) for view in (BlockView, FoundView, HeapsView))
    loaded.gemel_lane_step.restype = loaded.gemel_least_room.restype = _number
    loaded.gemel_pack.argtypes = (block, bounds, ctypes.c_int)
    loaded.gemel_squares.argtypes = (rows, _number, _number, _pointer)
    loaded.gemel_exact.argtypes = (ctypes.c_int, rows, rows, _pointer, _pointer, _number, _pointer)
    loaded.gemel_scan_pairs.restype = _number
    loaded.gemel_scan_pairs.argtypes = (
        *(block, rows, bounds, _number, ctypes.c_float, ctypes.c_int, found),
        _pointer,
    )
    loaded.gemel_scan_nearest.argtypes = (block, rows, bounds, _number, heaps, _pointer)
    return loaded
