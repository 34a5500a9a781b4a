"""`gemel index compact`, `verify` and `migrate`."""

from __future__ import annotations

import json
import sys

import click

from gemel.cli.index.writing import place_argument
from gemel.errors import WorkError


@click.command(
    short_help="Tidy up and build what speeds up search.",
    epilog="""\b
Example:
  gemel index compact notes""",
)
@place_argument
def compact(place: str) -> None:
    """Merge small pieces of the index at PLACE, drop what was deleted, build what speeds up search."""
    import gemel

    with gemel.open_index(place, create=False) as index:
        before = index.stats().bytes
        index.compact()
        after = index.stats()
    click.echo(f"{place}: {before / 1e6:,.1f} MB → {after.bytes / 1e6:,.1f} MB, {after.layout}", err=True)


@click.command(
    short_help="Is it whole, and of this model?",
    epilog="""\b
Example:
  gemel index verify notes --sample 500""",
)
@place_argument
@click.option(
    "--sample", type=click.IntRange(1), default=100, show_default=True, help="Documents encoded again."
)
@click.option("--json", "as_json", is_flag=True, help="What was checked, as JSON.")
def verify(place: str, sample: int, as_json: bool) -> None:
    """Check the index at PLACE: rows whole, vectors those of its model. Exit code 1 if something is wrong."""
    import gemel

    with gemel.open_index(place, create=False, read_only=True) as index:
        found = index.verify(sample=sample)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        for line in found.lines():
            click.echo(line)
    if not found.ok:
        raise WorkError(f"{place} is not as it should be")


@click.command(
    short_help="Encode everything anew with another model.",
    epilog="""\b
Example:
  gemel index migrate notes --to ./my-model""",
)
@place_argument
@click.option("--to", required=True, metavar="MODEL", help="A model's name, or its folder.")
@click.option("--progress/--no-progress", default=None, help="Default: when standard error is a terminal.")
def migrate(place: str, to: str, progress: bool | None) -> None:
    """Encode all documents of the index at PLACE with another model, then switch to it in one step.

    The old vectors go on answering until the switch. Stopped in the middle, run it again: what is done is kept.
    """
    import gemel

    with gemel.open_index(place, create=False) as index:
        done = index.migrate(to, progress=sys.stderr.isatty() if progress is None else progress)
    click.echo(f"{place}: {done.summary()}", err=True)
