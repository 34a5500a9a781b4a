"""The model of a run takes its place in the output folder, beside the run's own files.

Every file appears whole, and `modules.json`, which makes a folder a model, appears last.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gemel.errors import WorkError

_LAST = ("config.json", "modules.json")


def publish(model: Path, out: Path) -> None:
    """All files of `model` in `out`; what an earlier model left there and this one does not have goes."""
    files = sorted(path.relative_to(model) for path in model.rglob("*") if path.is_file())
    files.sort(key=lambda path: _LAST.index(str(path)) if str(path) in _LAST else -1)
    try:
        (out / "modules.json").unlink(missing_ok=True)
        for relation in [out / "relation"]:
            shutil.rmtree(relation, ignore_errors=True)
        for folder in sorted(path.relative_to(model) for path in model.rglob("*") if path.is_dir()):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            part = out / f"{file}.part"
            shutil.copyfile(model / file, part)
            with part.open("rb+") as stream:
                os.fsync(stream.fileno())
            part.replace(out / file)
    except OSError as error:
        raise WorkError(f"cannot put the model into {out}: {error}. It is whole in {model}") from error
