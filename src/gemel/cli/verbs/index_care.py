"""The commands that maintain an index: compact, verify, repair, migrate, words."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gemel.cli.flags import PRECISION, json_option, progress_option, shows_progress
from gemel.cli.output import echo, echo_json
from gemel.cli.verbs.index_write import location_argument, stemming_option
from gemel.errors import WorkError

if TYPE_CHECKING:
    from gemel.options import Precision


@click.command(
    short_help="Merge small files and build the search structures.",
    epilog="""\b
Example:
  gemel index compact notes""",
)
@location_argument
@click.option(
    "--now",
    is_flag=True,
    help="Fail if files of old versions cannot be deleted because another process has the index open.",
)
@json_option()
def compact(location: str, now: bool, as_json: bool) -> None:
    """Merge small files of the index at LOCATION, drop deleted rows, build the search structures.

    Files of old versions are deleted at once if no other process has the index open, else after an hour.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        before = index.stats().bytes
        index.compact(now=now)
        after = index.stats()
    if as_json:
        facts = {"bytes_before": before, "bytes": after.bytes, "layout": after.layout}
        click.echo(json.dumps({"place": location, **facts}))
        return
    echo(f"{location}: {before / 1e6:,.1f} MB → {after.bytes / 1e6:,.1f} MB, {after.layout}", err=True)


@click.command(
    short_help="Check an index.",
    epilog="""\b
Example:
  gemel index verify notes --sample 500""",
)
@location_argument
@click.option(
    "--sample", type=click.IntRange(1), default=100, show_default=True, help="Documents encoded again."
)
@json_option()
def verify(location: str, sample: int, as_json: bool) -> None:
    """Check the index at LOCATION: no damaged rows, vectors of its model. Exit code 1 if something is wrong."""
    import gemel

    with gemel.open_index(location, create=False, read_only=True) as index:
        found = index.verify(sample=sample)
    if as_json:
        echo_json(found.to_json())
    else:
        for line in found.lines():
            echo(line)
    if not found.ok:
        raise WorkError(f"{location} has errors")


@click.command(
    short_help="Make a damaged index usable again.",
    epilog="""\b
Examples:
  gemel index repair notes
  gemel index repair notes --model ./my-model""",
)
@location_argument
@click.option(
    "--table", metavar="NAME", help="The table to keep, if index.json is lost and there are several."
)
@click.option(
    "-m",
    "--model",
    metavar="NAME",
    help="A model's name, or its folder: the one that created the index, if its table does not record it.",
)
@json_option()
def repair(location: str, table: str | None, model: str | None, as_json: bool) -> None:
    """Rebuild a lost index.json at LOCATION, drop what cannot be read, build word index and cache again.

    Everything that can be read is kept. Close other programs that have the index open.
    """
    import gemel

    done = gemel.repair_index(location, model=model, table=table)
    if as_json:
        echo_json({"place": location, "actions": list(done.actions)})
        return
    for line in done.lines():
        echo(f"{location}: {line}", err=True)


@click.command(
    short_help="Encode everything again with another model.",
    epilog="""\b
Examples:
  gemel index migrate notes --model ./my-model
  gemel index migrate notes --model ./my-model --passage-tokens 64""",
)
@location_argument
@click.option(
    "-m", "--model", required=True, metavar="NAME", help="A model's name, or its folder: the one to move to."
)
@click.option(
    "--passage-tokens",
    type=click.IntRange(8),
    help="Longer documents are stored as passages of at most this many tokens. Default: as in the index.",
)
@click.option(
    "--dim", type=click.IntRange(1), help="Keep only the first DIM numbers. Default: as in the index."
)
@click.option(
    "--precision", type=click.Choice(["float32", "int8"]), help=f"{PRECISION} Default: as in the index."
)
@progress_option
@json_option()
def migrate(
    *,
    location: str,
    model: str,
    passage_tokens: int | None,
    dim: int | None,
    precision: Precision | None,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Encode all documents of the index at LOCATION with another model, then switch to it in one step.

    Searches use the old vectors until the switch. If it is stopped, run it again to resume.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        done = index.migrate(
            model,
            passage_tokens=passage_tokens,
            dim=dim,
            precision=precision,
            progress=shows_progress(progress),
        )
    if as_json:
        click.echo(json.dumps({"place": location, **asdict(done)}))
    else:
        echo(f"{location}: {done.summary()}", err=True)


@click.command(
    short_help="Build the word index again.",
    epilog="""\b
Examples:
  gemel index words notes
  gemel index words notes --stemming english""",
)
@location_argument
@stemming_option
@progress_option
@json_option()
def words(location: str, stemming: str | None, progress: bool | None, as_json: bool) -> None:
    """Split the texts of the index at LOCATION into words again, by the newest rules, for hybrid search.

    An index that was created by an older gemel does not find parts of Chinese, Japanese or Thai text until then;
    `gemel index stats` reports it. Vectors do not change. Searches continue meanwhile.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        done = index.rebuild_words(stemming=stemming, progress=shows_progress(progress))
    if as_json:
        echo_json({"place": location, "documents": done, "stemming": stemming})
    else:
        count = f"{done:,} documents" if done else "nothing to do"
        echo(f"{location}: {count}, {f'stemming {stemming}' if stemming else 'no stemming'}", err=True)
