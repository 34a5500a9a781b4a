"""A complete folder whose input has grown: the state that it was in before its end, out of its manifest."""

from __future__ import annotations

from pathlib import Path

from gemel.encode_folder.formats import Format, Shape
from gemel.encode_folder.journal import Journal, Plan, Shard, load_manifest
from gemel.encode_folder.storage import START_AGAIN, check_file, ours
from gemel.errors import InputError


def before_the_end(folder: Path, plan: Plan, layout: Format) -> Journal:
    """The journal of the last block. Files that grow again must be as they were written; the others stay."""
    manifest = load_manifest(folder) or {}
    if not manifest["rows"]:
        return Journal(plan)
    dim, dtype = manifest["dim"], manifest["dtype"]
    shards = [Shard(**entry) for entry in manifest["shards"]]
    refuse_missing(folder, {shard.file for shard in shards})
    sizes: dict[str, int] = {}
    if shards[-1].rows != plan.shard_rows:
        last = shards.pop()
        check_file(folder / last.file, last.sha256)
        sizes |= layout.reopen(folder, last.file, Shape(last.rows, dim, dtype))
    for entry in manifest["files"]:
        check_file(folder / entry["file"], entry["sha256"])
        sizes[entry["file"]] = (folder / entry["file"]).stat().st_size
    return Journal(plan, manifest["rows"], manifest["input"]["sha256"], dtype, dim, sizes, tuple(shards))


def refuse_missing(folder: Path, known: set[str]) -> None:
    """Refuse a folder without all of these files."""
    if missing := known - set(ours(folder)):
        raise InputError(f"{folder} is damaged: {', '.join(sorted(missing))} is gone. {START_AGAIN}")
