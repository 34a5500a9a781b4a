"""Results on disk: results.json for programs, results.md for a pull request, report.html with plots for people."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.evaluation.report.heading import heading
from gemel.evaluation.report.html import html
from gemel.evaluation.report.markdown import markdown
from gemel.evaluation.samples import NamedComparison
from gemel.evaluation.scores import Scores


def write_report(
    results: Sequence[Scores],
    comparisons: Sequence[NamedComparison],
    folder: str | Path,
    *,
    date: datetime | None = None,
) -> list[Path]:
    """Write the three files and return their paths; each is there whole or not at all.

    `date` is the moment the report carries, now if it is not given.
    """
    if not results:
        raise InputError("a report needs at least one result, got none")
    top = heading(date)
    content = {
        "date": top.date,
        "versions": list(top.versions),
        "results": [result.to_json() for result in results],
        "comparisons": [named.to_json() for named in comparisons],
    }
    texts = {
        "results.json": _json(content),
        "results.md": markdown(results, comparisons, top),
        "report.html": html(results, comparisons, top),
    }
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_write(folder / name, text) for name, text in texts.items()]
    except OSError as error:
        raise WorkError(f"cannot write the report to {folder}: {error}") from error


def _json(content: object) -> str:
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError as error:
        raise InputError(
            f"a report holds numbers that are finite, but a result does not ({error}). "
            "An undefined score is None with a note"
        ) from error
    return text + "\n"


def _write(path: Path, text: str) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n", errors="replace") as file:
            file.write(text)
        Path(name).chmod(0o644)  # mkstemp keeps others out; a report is for others
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _plain(value: Any) -> Any:  # noqa: ANN401 - a protocol holds NumPy numbers, paths and whatever else
    return value.tolist() if hasattr(value, "tolist") else str(value)
