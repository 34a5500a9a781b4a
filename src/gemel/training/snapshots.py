"""Snapshots of a run: everything that the next step depends on, written atomically and without pickle.

step-00000120/
  network.safetensors  objective.safetensors  optimizer.safetensors
  state.json   the position of the run, and the sha256 of every other file
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemel.errors import WorkError
from gemel.files.atomic import sha256_of, sync, sync_tree

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
_NAME = re.compile(r"\w+\.safetensors")  # nothing outside of the folder is ever read


class Snapshots:
    """The snapshots of one run, in one folder; the newest `keep` stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self._keep = folder, keep

    def write(self, step: int, state: Mapping[str, Any], files: Mapping[str, Tensors]) -> Path:
        """Write a snapshot; older ones are removed once it is safely on disk."""
        target = self.folder / f"step-{step:08}"
        working = self.folder / f".{target.name}.{uuid.uuid4().hex}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            working.mkdir()
            self._fill(working, state, files)
            sync_tree(working)
            if target.exists():
                shutil.rmtree(target)
            working.rename(target)
            sync(self.folder)
        except OSError as error:
            shutil.rmtree(working, ignore_errors=True)
            older = self.newest()
            left = f"The last good snapshot is {older}" if older else "There is no earlier snapshot"
            raise WorkError(f"cannot write the snapshot {target}: {error}. {left}") from error
        for old in self.all()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def _fill(self, folder: Path, state: Mapping[str, Any], files: Mapping[str, Tensors]) -> None:
        from safetensors.torch import save_file

        hashes = {}
        for name, tensors in files.items():
            path = folder / f"{name}.safetensors"
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, path)
            hashes[path.name] = sha256_of(path)
        path = folder / "state.json"
        path.write_text(json.dumps({**state, "files": hashes}, indent=2) + "\n", encoding="utf-8")

    def all(self) -> list[Path]:
        """Complete snapshots, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if (path / "state.json").is_file())

    def newest(self) -> Path | None:
        return self.all()[-1] if self.all() else None

    def _clean(self) -> None:
        """Remove what a killed process left incomplete."""
        for path in self.folder.glob(".*.part"):
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of a snapshot."""

    state: dict[str, Any]
    files: dict[str, dict[str, torch.Tensor]]
    """File name without extension to the tensors in it."""


def read_snapshot(folder: Path) -> Snapshot:
    """The snapshot in `folder`; a damaged one is refused with advice."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    advice = f"Remove {folder} to resume from the snapshot before it, or start again without --resume"
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if not isinstance(state, dict) or not isinstance(state.get("files"), dict):
            raise WorkError(f"the snapshot {folder} is damaged: state.json does not list its files. {advice}")
        foreign = [name for name in state["files"] if not _NAME.fullmatch(name)]
        if foreign:
            raise WorkError(
                f"the snapshot {folder} is damaged: {foreign[0]!r:.60} is not a file of a snapshot. {advice}"
            )
        for name, expected in state["files"].items():
            if sha256_of(folder / name) != expected:
                raise WorkError(
                    f"the snapshot {folder} is damaged: the content of {name} has changed. {advice}"
                )
        files = {Path(name).stem: load_file(folder / name) for name in state["files"]}
        return Snapshot(state, files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise WorkError(f"the snapshot {folder} cannot be read: {error}. {advice}") from error
