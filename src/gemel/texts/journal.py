"""The two JSON files of an encoded folder: progress.json while a job runs, manifest.json when it is finished.

Every value is checked before it is used, as files get damaged. So are file names: a folder from somebody else must not
lead to files outside of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.files.atomic import START_AGAIN, sha256_of, write_atomic
from gemel.files.locks import lock_folder

JOURNAL = "progress.json"

MANIFEST = "manifest.json"

KIND = "gemel-vectors"

VERSION = 1

Json = dict[str, Any]  # what json.loads gives for an object

_DTYPES = ("float32", "float16", "int8", "uint8")

_LARGEST = 2**48  # rows, numbers and bytes

# Every name that a job may create, and so may remove; nothing else in the folder is ever touched.
_OURS = re.compile(
    r"(manifest\.json|progress\.json|(ids|texts)\.jsonl|vectors\.(npy|jsonl)|spool\.(vectors|rows)"
    r"|vectors-\d{5,}\.(safetensors|parquet))(\.part|\.tmp)?"
)


@dataclass(frozen=True)
class FolderPlan:
    """What the bytes of the result depend on, besides the input."""

    fingerprint: Json
    format: str
    keep_texts: bool
    shard_rows: int | None
    """None: all rows in one file."""

    def refuse_other(self, earlier: FolderPlan, folder: Path) -> None:
        """Raise if the folder was begun with another plan, naming every difference."""
        before, now = _flat(asdict(earlier)), _flat(asdict(self))
        missing = "nothing"
        differences = [
            f"{name} is {before.get(name, missing)!r} there and {now.get(name, missing)!r} here"
            for name in sorted(before.keys() | now.keys())
            if before.get(name, missing) != now.get(name, missing)
        ]
        if differences:
            raise InputError(
                f"{folder} was made with other settings: {'; '.join(differences)}. {START_AGAIN}"
            )


@dataclass(frozen=True)
class Shard:
    """A finished file of vectors."""

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Journal:
    """The state after the last block on disk, written atomically."""

    plan: FolderPlan
    rows: int = 0
    input_sha256: str = hashlib.sha256().hexdigest()
    """`InputHash` of these rows."""
    dtype: str | None = None
    """None before the first block."""
    dim: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Growing files: the valid bytes of each. What follows them is cut off."""
    shards: tuple[Shard, ...] = ()

    @property
    def shard_rows(self) -> int:
        """Rows that are not yet in a finished shard."""
        return self.rows - sum(shard.rows for shard in self.shards)

    def save(self, folder: Path) -> None:
        content = {"kind": KIND, "version": VERSION, **asdict(self)}
        write_atomic(folder / JOURNAL, content, exclusive=True)


def load_journal(folder: Path) -> Journal | None:
    """The journal of an unfinished job; None when there is none."""
    if not (folder / JOURNAL).exists():
        return None
    content = _read_json(folder / JOURNAL)
    try:
        return Journal(
            plan=FolderPlan(**content["plan"]),
            rows=content["rows"],
            input_sha256=content["input_sha256"],
            dtype=content["dtype"],
            dim=content["dim"],
            sizes=content["sizes"],
            shards=tuple(Shard(**shard) for shard in content["shards"]),
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / JOURNAL} is damaged: {error!r}. {START_AGAIN}") from error


def load_manifest(folder: Path) -> Json | None:
    """The manifest of a finished job; None when there is none."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = _read_json(folder / MANIFEST)
    try:
        plan_of(manifest)
        for entry in manifest["shards"]:
            Shard(**entry)
        files = [(entry["file"], entry["sha256"]) for entry in manifest["files"]]
        facts = manifest["rows"], manifest["dim"], manifest["dtype"], manifest["input"]["sha256"]
        if not all(isinstance(each, int) for each in facts[:2]) or not isinstance(files, list):
            raise TypeError(f"rows and dim are {facts[:2]}")
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / MANIFEST} is damaged: {error!r}. {START_AGAIN}") from error
    return manifest


def plan_of(manifest: Json) -> FolderPlan:
    """The plan that a manifest was written under."""
    return FolderPlan(
        **{name: manifest[name] for name in ("fingerprint", "format", "keep_texts", "shard_rows")}
    )


def _read_json(path: Path) -> Json:
    """The object that a job of this version wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: not made by gemel, or damaged. Choose another folder"
        ) from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(f"{path} was not made by gemel. Choose another folder")
    if content.get("version") != VERSION:
        raise InputError(
            f"{path} has version {content.get('version')!r}; this gemel reads version {VERSION}. "
            "Use the gemel that made it, or choose another folder"
        )
    _check_values(path, content)
    return content


def _flat(content: Mapping[str, Any], prefix: str = "") -> Json:
    flat: Json = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _check_values(path: Path, content: Json) -> None:
    """Raise at a value that no job can have written; whether they fit together is for the caller to check."""
    plan = content.get("plan", content)
    begun = content.get("dtype") is not None
    checks = {
        "fingerprint": isinstance(plan, dict) and isinstance(plan.get("fingerprint"), dict),
        "format": isinstance(plan, dict) and isinstance(plan.get("format"), str),
        "keep_texts": isinstance(plan, dict) and isinstance(plan.get("keep_texts"), bool),
        "shard_rows": isinstance(plan, dict) and _is_shard(plan.get("shard_rows")),
        "rows": _is_count(content.get("rows")) and (begun or not content["rows"]),
        "dtype": not begun or content["dtype"] in _DTYPES,
        "dim": (not begun and content.get("dim") is None)
        or (_is_count(content.get("dim")) and content["dim"] > 0),
        "shards": _are_files(content.get("shards"), "rows"),
        "files": "files" not in content or _are_files(content["files"]),
        "sizes": "sizes" not in content or _are_sizes(content["sizes"]),
        "input": "input" not in content or isinstance(content["input"], dict),
    }
    wrong = [name for name, right in checks.items() if not right]
    if not wrong and sum(shard["rows"] for shard in content["shards"]) > content["rows"]:
        wrong = ["shards"]
    if wrong:
        raise InputError(f"{path} is damaged: {wrong[0]!r} is not what gemel writes there. {START_AGAIN}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_shard(value: object) -> bool:
    return value is None or (_is_count(value) and value != 0)


def _are_files(entries: object, *counts: str) -> bool:
    """Whether this is a list of files that a job creates, each with its hash and these counts."""
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and is_ours(entry.get("file"))
        and isinstance(entry.get("sha256"), str)
        and all(_is_count(entry.get(count)) for count in counts)
        for entry in entries
    )


def _are_sizes(sizes: object) -> bool:
    return isinstance(sizes, dict) and all(is_ours(name) and _is_count(size) for name, size in sizes.items())


def is_ours(name: object) -> bool:
    """Whether a job could have created a file of this name; False for a name with a path in it."""
    return isinstance(name, str) and _OURS.fullmatch(name) is not None


def ours(folder: Path) -> list[str]:
    """Names in the folder that a job could have created."""
    return sorted(entry.name for entry in folder.iterdir() if is_ours(entry.name))


def check_file(path: Path, sha256: str) -> None:
    """Raise unless a finished file is what was written."""
    if not path.is_file() or sha256_of(path) != sha256:
        raise InputError(
            f"{path} is missing or has changed since it was written: it is damaged. {START_AGAIN}"
        )


def lock_job(folder: Path) -> AbstractContextManager[None]:
    """A lock that allows one job per folder."""
    return lock_folder(
        folder, f"another process is encoding to {folder}. Wait for it, or choose another folder (-o)"
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns a full disk, a read-only folder and the like into a WorkError that says how to resume."""
    try:
        yield
    except OSError as error:
        raise WorkError(
            f"cannot write to {folder}: {error.strerror or error}. All rows recorded so far are safe: "
            "make room or fix the folder, then run the same command again"
        ) from error
