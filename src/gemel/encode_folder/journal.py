"""What a job knows about itself: the plan that two runs must share, and how far the work is safe on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemel.encode_folder.storage import START_AGAIN, damaged, is_ours, whole_file
from gemel.errors import InputError

JOURNAL = "progress.json"
MANIFEST = "manifest.json"
KIND = "gemel-vectors"
VERSION = 1
OUTPUTS = ("float32", "float16", "int8", "uint8")

_PLAN = ("fingerprint", "format", "keep_texts", "shard_rows")

Json = dict[str, Any]  # what json.loads gives for an object


@dataclass(frozen=True)
class Plan:
    """What decides the bytes of the result, besides the input."""

    fingerprint: Json
    format: str
    keep_texts: bool
    shard_rows: int | None
    """None: all rows in one file."""

    def refuse_other(self, found: Plan, folder: Path) -> None:
        """Raise when the folder was begun with another plan, naming every difference."""
        before, now = _flat(asdict(found)), _flat(asdict(self))
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
    """The state after the last block that is safe on disk. Replaced as a whole: never half-written."""

    plan: Plan
    rows: int = 0
    input_sha256: str = hashlib.sha256().hexdigest()
    """Of all rows up to here; see source.py."""
    dtype: str | None = None
    """Known from the first block on."""
    dim: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Growing files: the bytes of each that count. Anything behind them is to be cut off."""
    shards: tuple[Shard, ...] = ()

    @property
    def shard_rows(self) -> int:
        """Rows that are not yet in a finished shard."""
        return self.rows - sum(shard.rows for shard in self.shards)

    def save(self, folder: Path) -> None:
        write_json(folder / JOURNAL, {"kind": KIND, "version": VERSION, **asdict(self)})


def load_journal(folder: Path) -> Journal | None:
    """The journal of an unfinished job; None when there is none."""
    if not (folder / JOURNAL).exists():
        return None
    found = _Checked(folder / JOURNAL)
    plan, sizes = found.object("plan"), found.object("sizes")
    if not all(is_ours(name) and _is_count(size) for name, size in sizes.items()):
        raise found.wrong("sizes")
    begun = found.content.get("dtype") is not None
    journal = Journal(
        plan=found.plan(plan),
        rows=found.count("rows"),
        input_sha256=found.text("input_sha256"),
        dtype=found.dtype() if begun else None,
        dim=found.count("dim") if begun else None,
        sizes=sizes,
        shards=tuple(Shard(**shard) for shard in found.files("shards", "rows")),
    )
    if journal.shard_rows < 0 or (journal.rows and not begun):
        raise found.wrong("rows")
    return journal


def load_manifest(folder: Path) -> Json | None:
    """The manifest of a finished job; None when there is none."""
    if not (folder / MANIFEST).exists():
        return None
    found = _Checked(folder / MANIFEST)
    found.plan(found.content)
    found.dtype()
    found.files("files")
    if found.count("dim") < 1:
        raise found.wrong("dim")
    if sum(shard["rows"] for shard in found.files("shards", "rows")) != found.count("rows"):
        raise found.wrong("rows")
    if not isinstance(found.object("input").get("sha256"), str):
        raise found.wrong("input")
    return found.content


class _Checked:
    """A JSON file of a job; every part is checked before it is used, for files are cut off and changed."""

    def __init__(self, path: Path) -> None:
        self.path, self.content = path, read_json(path)

    def wrong(self, name: str) -> InputError:
        return damaged(self.path, f"{name!r} cannot be {self.content.get(name)!r:.60}")

    def count(self, name: str) -> int:
        value: Any = self.content.get(name)
        if not _is_count(value):
            raise self.wrong(name)
        return int(value)

    def text(self, name: str) -> str:
        value = self.content.get(name)
        if not isinstance(value, str):
            raise self.wrong(name)
        return value

    def object(self, name: str) -> Json:
        value = self.content.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name)
        return value

    def dtype(self) -> str:
        if self.content.get("dtype") not in OUTPUTS:
            raise self.wrong("dtype")
        return self.text("dtype")

    def plan(self, said: Json) -> Plan:
        plan = plan_of(said)
        rows = plan.shard_rows
        right = isinstance(plan.fingerprint, dict) and isinstance(plan.format, str)
        if (
            not right
            or not isinstance(plan.keep_texts, bool)
            or not (rows is None or (_is_count(rows) and rows))
        ):
            raise damaged(self.path, "what it says of the job is not whole")
        return plan

    def files(self, name: str, *counts: str) -> list[Json]:
        """Entries with a file of ours, its hash and these counts."""
        entries = self.content.get(name)
        for entry in entries if isinstance(entries, list) else [None]:
            if not isinstance(entry, dict) or set(entry) != {"file", "sha256", *counts}:
                raise self.wrong(name)
            if not is_ours(entry["file"]) or not isinstance(entry["sha256"], str):
                raise self.wrong(name)
            if not all(_is_count(entry[count]) for count in counts):
                raise self.wrong(name)
        return list(entries or [])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def plan_of(manifest: Json) -> Plan:
    return Plan(*(manifest.get(name) for name in _PLAN))  # type: ignore[arg-type]


def write_json(path: Path, content: Json) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")


def read_json(path: Path) -> Json:
    """An object that a job of this version wrote."""
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
            f"{path} has version {content.get('version')!r}; this gemel knows version {VERSION}. "
            "Use the gemel that made it, or choose another folder"
        )
    return content


def _flat(content: Mapping[str, Any], prefix: str = "") -> Json:
    flat: Json = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
