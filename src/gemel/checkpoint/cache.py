"""The local cache of models: complete folders `models/NAME/`.

A model is written to a working folder and then renamed, so that a kill at any moment leaves no partial model; of two
processes the second uses the folder of the first.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from gemel.errors import ModelError, WorkError
from gemel.files.atomic import sync, sync_tree

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_WORKING = ".part"
_PRIVATE = 0o700
_DAY = 24 * 60 * 60  # seconds; no pull takes that long


def cache_root() -> Path:
    """$GEMEL_CACHE, or "gemel" in the cache folder of this system."""
    chosen = os.environ.get("GEMEL_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "gemel"


def models_folder() -> Path:
    """The folder with one sub-folder per model; it may not exist yet."""
    return cache_root() / "models"


def make_folder(path: Path) -> None:
    """Make a folder of the cache, and those above it in the cache, private to this user; refuse one of another user."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    for folder in reversed([path, *(each for each in path.parents if root in each.parents)]):
        folder.mkdir(exist_ok=True, mode=_PRIVATE)
    check_owner(path)


def check_owner(path: Path) -> None:
    """Refuse a folder of another user where everybody can write, such as /tmp.

    A cache of another user elsewhere was set up by an administrator, and may be shared on purpose.
    """
    root = cache_root()
    for folder in (root, *(each for each in reversed(path.parents) if root in each.parents), path):
        if _is_planted(folder) or _is_planted(folder.resolve()):
            raise WorkError(
                f"{folder} belongs to another user and is where everybody can write, so its models are not used. "
                "Set GEMEL_CACHE to a folder of your own, or delete this one"
            )


def _is_planted(path: Path) -> bool:
    if not hasattr(os, "geteuid"):
        return False  # Windows: the cache folder belongs to the user
    try:
        owner = path.lstat().st_uid
        open_to_all = any(each.stat().st_mode & stat.S_IWOTH for each in path.absolute().parents)
    except OSError:
        return False  # missing or unreadable, so nothing is read from it
    return owner not in (os.geteuid(), 0) and open_to_all


def find(name: str) -> Path | None:
    """The cached folder of `name`; None: it is not in the cache."""
    folder = location(name)
    if not folder.is_dir():
        return None
    check_owner(folder)
    return folder


def is_name(name: str) -> bool:
    """True for `name` or `org/name` that is safe as a folder of the cache: no "..", no hidden files."""
    parts = name.split("/")
    return len(parts) <= 2 and "--" not in name and all(_is_part(part) for part in parts)


def _is_part(part: str) -> bool:
    return _NAME.fullmatch(part) is not None and ".." not in part and not part.endswith(".")


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a model."""
    if not is_name(name):
        raise ModelError(
            f"{name!r} is not the name of a model. Names look like 'all-MiniLM-L6-v2' or 'org/name'"
        )


def location(name: str) -> Path:
    """The folder of the model `name` in the cache, which may not exist; "org/name" is the folder "org--name"."""
    check_name(name)
    return models_folder() / name.replace("/", "--")


def cached_folders() -> dict[str, Path]:
    """Name -> folder of each model in the cache, by name."""
    home = models_folder()
    paths = sorted(home.iterdir()) if home.is_dir() else []
    names = {path.name.replace("--", "/", 1): path for path in paths if path.is_dir()}
    return {name: path for name, path in names.items() if is_name(name)}


def install(name: str, fill: Callable[[Path, Path], None]) -> Path:
    """The cached folder of `name`, created with `fill(folder, scratch)` if it does not exist.

    `fill` writes the model into `folder`; `scratch` is deleted afterwards.
    """
    if cached := find(name):
        return cached
    target = location(name)
    working = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_WORKING}")
    folder, scratch = working / "model", working / "scratch"
    try:
        make_folder(target.parent)
        clean_leftovers()
        folder.mkdir(parents=True)
        scratch.mkdir()
        fill(folder, scratch)
        sync_tree(folder)
        _move(folder, target)
    except OSError as error:
        raise WorkError(f"cannot put {name!r} into the cache {target.parent}: {error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return target


def remove(name: str) -> Path:
    """Delete the cached model `name`: it is renamed first, so that no partial model remains."""
    target = location(name)
    if not target.is_dir():
        raise ModelError(f"{name!r} is not in the cache {target.parent}. See: gemel models list")
    working = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_WORKING}")
    try:
        target.rename(working)
        shutil.rmtree(working)
    except OSError as error:
        raise WorkError(f"cannot remove {target}: {error}") from error
    return target


def clean_leftovers(*, older_than: float = _DAY) -> None:
    """Delete working folders of pulls that were killed; younger ones may belong to a running process."""
    for path in models_folder().glob(f".*{_WORKING}"):
        try:
            if time.time() - path.stat().st_mtime >= older_than:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue  # another process cleaned it, or finished


def _move(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        return  # another process was first
    sync(target.parent)
