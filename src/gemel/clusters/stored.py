"""Clusters on disk: a JSON file and an archive of arrays that carry the same mark, so that two runs are not mixed."""

from __future__ import annotations

import json
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError  # of a header, which numpy parses as Python
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError

# What damaged JSON, zip and npy files raise.
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    TokenError,
    SyntaxError,
)
Arrays = Mapping[str, NDArray[Any]]


def write_stored(
    folder: Path, content: Mapping[str, Any], arrays: Arrays, texts: tuple[str, ...] | None
) -> Path:
    """Each file appears whole or not at all."""
    mark = uuid.uuid4().hex
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{mark}.part"
        with part.open("wb") as stream:
            stored: dict[str, Any] = {
                **arrays,
                "mark": _bytes(mark),
                "loose_texts": _bytes(json.dumps(texts)),
            }
            np.savez(stream, **stored)
        part.replace(folder / "clusters.npz")
        text = json.dumps({**content, "mark": mark}, ensure_ascii=False, indent=2)
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(folder / "clusters.json")
    except OSError as error:
        raise WorkError(f"cannot save the clusters in {folder}: {error}") from error
    return folder


def read_stored(folder: Path) -> tuple[dict[str, Any], Arrays, tuple[str, ...] | None]:
    """What `write_stored` was given."""
    try:
        content = json.loads((folder / "clusters.json").read_text(encoding="utf-8"))
        # Opened here: numpy leaves a damaged archive open.
        with (folder / "clusters.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        mark, texts = _text(arrays.pop("mark")), json.loads(_text(arrays.pop("loose_texts")))
    except FileNotFoundError as error:
        raise InputError(
            f"no clusters in {folder}: expected clusters.json and clusters.npz, as `gemel cluster -o` writes them"
        ) from error
    except _UNREADABLE as error:
        raise InputError(f"the clusters in {folder} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.pop("mark", None) != mark:
        raise InputError(f"{folder}: clusters.json and clusters.npz are of two runs. Cluster again")
    return content, arrays, None if texts is None else tuple(texts)


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def _text(array: NDArray[Any]) -> str:
    return array.tobytes().decode("utf-8")
