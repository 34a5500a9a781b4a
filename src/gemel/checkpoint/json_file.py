"""JSON files and sub-folders of a checkpoint, read with care: a checkpoint is data from a stranger.

The reason in an error of another package, without its advice to switch a safety off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from gemel.errors import ModelError

MAX_JSON = 10 * 2**20

MAX_TOKENIZER = 200 * 2**20

MAX_NAME, MAX_PATH = 255, 1024  # bytes; the system refuses longer names with an error of its own


def read_json(path: Path, limit: int = MAX_JSON) -> Any:  # noqa: ANN401 - the caller checks the shape
    """The content of a JSON file of at most `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path} has {size:,} bytes; at most {limit:,} are read. Is it the right file?")
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"no file {path}: the checkpoint is not complete. Fetch or copy it again") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is not valid JSON ({error}). Fetch or copy the checkpoint again") from error


def read_object(path: Path, limit: int = MAX_JSON) -> Mapping[str, Any]:
    """The content of a JSON file that must hold an object."""
    content = read_json(path, limit)
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def read_object_if_there(path: Path) -> Mapping[str, Any]:
    """As `read_object`; an absent file is an empty object."""
    return read_object(path) if path.is_file() else {}


def inside(folder: Path, relative: str) -> Path:
    """`folder / relative`, refused when a checkpoint's path would leave the folder."""
    windows = PureWindowsPath(relative)
    parts = PurePosixPath(relative.replace("\\", "/")).parts
    if windows.drive or windows.root or ".." in parts or "\0" in relative:
        raise ModelError(
            f"{folder}: the path {relative!r} leaves the model's folder. Do not use this checkpoint"
        )
    try:
        lengths = [len(part.encode("utf-8")) for part in parts]
    except UnicodeEncodeError:
        raise ModelError(
            f"{folder}: the path {relative!r:.80} has half a character, as no file's name has"
        ) from None
    if sum(lengths) > MAX_PATH or max(lengths, default=0) > MAX_NAME:
        raise ModelError(
            f"{folder}: the path {relative[:60]!r}... is too long for a file: a name has at most {MAX_NAME} bytes"
        )
    return folder.joinpath(*parts)


# torch and transformers say how to load a file with the code that is in it.
_UNSAFE = re.compile(
    r"weights_only|trust_remote_code|allow_pickle|trusted source|add_safe_globals|safe_globals", re.I
)

_GLOBAL = re.compile(r"\bGLOBAL ([\w.]+)")


def reason_of(error: Exception) -> str:
    """One line that says why, never how to load the file nevertheless."""
    text = str(error)
    if found := _GLOBAL.search(text):
        return f"it calls {found[1]}, which is code and no tensor"
    lines = [" ".join(_safe_sentences(line)) for line in text.splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def _safe_sentences(line: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?:])\s+", line.strip()) if part and not _UNSAFE.search(part)]
