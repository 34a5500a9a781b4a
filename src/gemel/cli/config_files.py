"""The files of settings: `gemel.toml` of the working folder and the user's own. Where they are, and their tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from gemel.errors import InputError

PROJECT_FILE = "gemel.toml"
DEFAULTS = "defaults"
VARIABLE = "GEMEL_CONFIG"


@dataclass(frozen=True)
class Place:
    """Where a file of settings is, or would be. That of a project may come from a stranger."""

    path: Path
    kind: Literal["project", "user", "chosen"]

    def is_there(self) -> bool:
        """True for a file, also for one that cannot be read."""
        return os.path.isfile(self.path)  # noqa: PTH113 - pathlib's raises where a folder on the way is closed


@dataclass(frozen=True)
class ConfigFile:
    """A file that was read; its tables have known names."""

    place: Place
    tables: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        return str(self.place.path)

    @property
    def from_project(self) -> bool:
        return self.place.kind == "project"


def user_file() -> Path | None:
    """The user's own file, in the place where this system keeps settings; None where there is no such place."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or "~/AppData/Roaming"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        folder = Path(base).expanduser()
    except RuntimeError:  # a user without a home, as in some containers
        return None
    # A relative folder would be one of the working folder, and so of whoever wrote that.
    return folder / "gemel" / "config.toml" if folder.is_absolute() else None


def places() -> list[Place]:
    """The files that count, whether or not they exist; the first wins. GEMEL_CONFIG puts one or none in their place."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "none":
        return []
    if chosen:
        return [Place(Path(chosen).expanduser(), "chosen")]
    own = user_file()
    return [Place(Path(PROJECT_FILE), "project"), *([Place(own, "user")] if own else [])]


def read_files(verbs: Iterable[str]) -> list[ConfigFile]:
    """Those that exist, in the order of `places`. One that GEMEL_CONFIG names has to exist."""
    found = []
    for place in places():
        if place.is_there():
            found.append(ConfigFile(place, _tables(place.path, verbs)))
        elif place.kind == "chosen":
            raise InputError(f"{VARIABLE} names {place.path}, which is no file. Name one, or write none")
    return found


def _tables(path: Path, verbs: Iterable[str]) -> Mapping[str, Mapping[str, Any]]:
    import tomllib

    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or lists in lists without an end
        raise InputError(f"{path} is not TOML: {error}") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: {name} stands outside of a table. Put it below [{DEFAULTS}], or below a verb such as [encode]"
            )
        check_known(name, [DEFAULTS, *verbs], f"{path}: unknown table [{name}].")
    return content


def check_known(name: str, known: Sequence[str], start: str) -> None:
    """Refuse a name that nobody knows, with the nearest one that is known."""
    if name in known:
        return
    words = name.split()
    two = len(words) > 1 and words[0] in known  # ["index add"] for [index.add]
    close = [".".join(words)] if two else get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{start}{hint} Known: {', '.join(sorted(known))}")
