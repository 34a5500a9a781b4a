"""Write small files to try things out on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json, echo_path
from gemel.errors import InputError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

EXAMPLES = """\b
Examples:
  gemel example-data
  gemel example-data bugs
  gemel example-data tickets -o try-out/"""


@dataclass(frozen=True)
class ExampleSet:
    about: str
    names: tuple[str, ...]
    """Files and folders below the package data."""


SETS = {
    "tickets": ExampleSet("64 support tickets of a shop, each problem in four wordings", ("tickets.csv",)),
    "labeled-pairs": ExampleSet("96 pairs of tickets, labeled 1 (same problem) or 0", ("labeled-pairs.tsv",)),
    "bugs": ExampleSet("48 bug reports, and which repeat which", ("bugs.csv", "known-duplicates.tsv")),
    "documents": ExampleSet("six short documents of a company", ("documents",)),
    "training": ExampleSet("pairs of tickets to train on, scored pairs to test on", ("train.tsv", "dev.tsv")),
    "translations": ExampleSet("24 tickets in English and German", ("en-de.tsv",)),
}
"""What the how-to guides use; written for gemel, under its license."""


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False, metavar="[NAME]", type=click.Choice(list(SETS)))
@flags.out_option("A folder for the files. Default: this one.", metavar="FOLDER")
@flags.overwrite_option("files that have another content")
@flags.json_option("lines", more="Of the list without NAME.")
def command(name: str | None, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Write the small files that the how-to guides use, and print their paths; without NAME, list them.

    The texts were written for gemel and have its license.
    """
    if name is None:
        for known, entry in SETS.items():
            if as_json:
                echo_json({"name": known, "about": entry.about, "files": entry.names})
            else:
                echo(f"{known + ':':15} {entry.about} ({', '.join(entry.names)})")
        return
    folder = out or Path()
    targets = [(source, folder / path) for source, path in _sources(SETS[name].names)]
    for source, path in targets:
        if not overwrite and path.exists() and (path.is_dir() or path.read_bytes() != source.read_bytes()):
            raise InputError(
                f"{path} exists with another content. Choose another folder with -o, or replace it with --overwrite"
            )
    for source, path in targets:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.read_bytes())
        echo_path(path)


def _sources(names: tuple[str, ...]) -> list[tuple[Traversable, str]]:
    """The packaged files with their paths; a folder stands for its files."""
    result: list[tuple[Traversable, str]] = []
    for name in names:
        entry = files("gemel.cli") / "example_data" / name
        inner = sorted(entry.iterdir(), key=lambda file: file.name) if entry.is_dir() else []
        result += [(file, f"{name}/{file.name}") for file in inner] or [(entry, name)]
    return result
