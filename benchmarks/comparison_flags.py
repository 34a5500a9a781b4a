"""The flags that all comparisons share; each script adds its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from environments import Environments

HERE = Path(__file__).parent
WORK = HERE / ".environments"
"""Environments of peers, and a folder `work` for intermediate files."""
DATA = HERE.parent.parent / "shared" / "data"


def comparison(
    about: str | None, results: str, *, data: str = "", rounds: int = 0
) -> argparse.ArgumentParser:
    """A parser: `results` is the file's name, `data` names the data folders, `rounds` is the default."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    if data:
        add("--data", type=Path, default=DATA, help=f"folder with {data}")
    if rounds:
        add("--rounds", type=int, default=rounds, help="measurements, in turns; the best counts")
    add("--threads", type=int, default=2)
    add("--environments", type=Path, help="use the environments in this folder, change nothing in them")
    add("--quick", action="store_true", help="does everything work? little of everything, no results file")
    add("--out", type=Path, help=f"where the results go; default results/{results}, nowhere with --quick")
    made.set_defaults(results=HERE / "results" / results)
    return made


def environments_of(options: argparse.Namespace) -> Environments:
    return Environments(options.environments or WORK, install=options.environments is None)


def result_file(options: argparse.Namespace) -> Path | None:
    """The file for the results; None: they are not written."""
    result: Path | None = options.out or (None if options.quick else options.results)
    return result
