"""report.html of a run: curves, vectors before and after, what the doctor found, settings. One file, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemel.encode_folder.storage import whole_file
from gemel.errors import WorkError
from gemel.training.geometry import Similarities
from gemel.training.journal import Line
from gemel.training.report.page import Content, page
from gemel.training.summary import Summary

FILE = "report.html"


def write_report(
    folder: Path | str,
    *,
    summary: Summary,
    journal: Sequence[Line],
    before: Similarities | None = None,
    after: Similarities | None = None,
    doctor: Sequence[Mapping[str, Any]] | None = None,
    date: datetime | None = None,
) -> Path:
    """Write report.html to the folder, whole or not at all, and return its path.

    `journal` is what `read_journal` gives; `before` and `after` are its first and last histograms unless given.
    `doctor` are the diagnoses of the data sets as JSON; None: the data was not examined. `date` is now unless given.
    """
    moment = (date or datetime.now(UTC)).isoformat(sep=" ", timespec="minutes")
    text = page(Content(summary, journal, moment, before, after, doctor))
    path = Path(folder) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise WorkError(f"cannot write the report to {path}: {error.strerror or error}") from error
    return path
