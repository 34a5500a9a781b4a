"""The shape of manifest.json and progress.json: every value is checked before it is used, for files get damaged.

Names of files are checked too: a folder that a stranger hands over must not lead to files outside of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gemel.encode_folder.storage import START_AGAIN, is_ours
from gemel.errors import InputError

_DTYPES = ("float32", "float16", "int8", "uint8")
_LARGEST = 2**48  # rows, numbers and bytes


def check_shape(path: Path, content: dict[str, Any]) -> None:
    """Refuse what no job can have written; the rest is up to the caller."""
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
    """A list of files of ours, each with its hash and these counts."""
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and is_ours(entry.get("file"))
        and isinstance(entry.get("sha256"), str)
        and all(_is_count(entry.get(count)) for count in counts)
        for entry in entries
    )


def _are_sizes(sizes: object) -> bool:
    return isinstance(sizes, dict) and all(is_ours(name) and _is_count(size) for name, size in sizes.items())
