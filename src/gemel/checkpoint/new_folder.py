"""A folder that appears whole or not at all: filled under another name, then put in its place by one rename."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemel.errors import WorkError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill; it becomes `target`, in place of what was there, if no error is raised inside."""
    working = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        working.mkdir(parents=True)
        yield working
        _sync(working)
        _move(working, target)
    except OSError as error:
        raise WorkError(f"cannot save the model in {target}: {error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def write_json(path: Path, content: object) -> None:
    """A JSON file that a person can read; its folder is made if need be."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())


def _move(working: Path, target: Path) -> None:
    """`working` takes the place of `target`; what was there comes back if that fails."""
    if not target.exists():
        working.rename(target)
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    target.rename(old)
    try:
        working.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
