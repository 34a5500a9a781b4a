"""`gemel index compact`, `verify`, `repair`, `migrate` and `words`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gemel.cli.flags import PRECISION, json_option, progress_option, shows_progress
from gemel.cli.output import echo, echo_json
from gemel.cli.verbs.index_write import place_argument, stemming_option
from gemel.errors import WorkError

if TYPE_CHECKING:
    from gemel.options import Precision


@click.command(
    short_help="Tidy up and build what speeds up search.",
    epilog="""\b
Example:
  gemel index compact notes""",
)
@place_argument
@click.option(
    "--now", is_flag=True, help="Fail where files of old versions cannot be freed, as others have it open."
)
@json_option()
def compact(place: str, now: bool, as_json: bool) -> None:
    """Merge small pieces of the index at PLACE, drop what was deleted, build what speeds up search.

    Files of old versions are freed at once when no other process has the index open, else after an hour.
    """
    import gemel

    with gemel.open_index(place, create=False) as index:
        before = index.stats().bytes
        index.compact(now=now)
        after = index.stats()
    if as_json:
        facts = {"bytes_before": before, "bytes": after.bytes, "layout": after.layout}
        click.echo(json.dumps({"place": place, **facts}))
        return
    echo(f"{place}: {before / 1e6:,.1f} MB → {after.bytes / 1e6:,.1f} MB, {after.layout}", err=True)


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
@json_option()
def verify(place: str, sample: int, as_json: bool) -> None:
    """Check the index at PLACE: rows whole, vectors those of its model. Exit code 1 if something is wrong."""
    import gemel

    with gemel.open_index(place, create=False, read_only=True) as index:
        found = index.verify(sample=sample)
    if as_json:
        echo_json(found.to_json())
    else:
        for line in found.lines():
            echo(line)
    if not found.ok:
        raise WorkError(f"{place} is not as it should be")


@click.command(
    short_help="Make a damaged index usable again.",
    epilog="""\b
Examples:
  gemel index repair notes
  gemel index repair notes --model ./my-model""",
)
@place_argument
@click.option(
    "--table", metavar="NAME", help="The table to keep, where index.json is lost and there are several."
)
@click.option(
    "-m",
    "--model",
    metavar="NAME",
    help="A model's name, or its folder: what made the index, where its table does not say it.",
)
@json_option()
def repair(place: str, table: str | None, model: str | None, as_json: bool) -> None:
    """Rebuild a lost index.json at PLACE, give up what cannot be read, build word index and cache again.

    What can be read is kept, and nothing is deleted that could be. Close other programs that have the index open.
    """
    import gemel

    done = gemel.repair_index(place, model=model, table=table)
    if as_json:
        echo_json({"place": place, "actions": list(done.actions)})
        return
    for line in done.lines():
        echo(f"{place}: {line}", err=True)


@click.command(
    short_help="Encode everything anew with another model.",
    epilog="""\b
Examples:
  gemel index migrate notes --model ./my-model
  gemel index migrate notes --model ./my-model --passage-tokens 64""",
)
@place_argument
@click.option(
    "-m", "--model", required=True, metavar="NAME", help="A model's name, or its folder: the one to move to."
)
@click.option(
    "--passage-tokens",
    type=click.IntRange(8),
    help="Longer documents are stored as passages of at most this many tokens. Default: as the index has it.",
)
@click.option(
    "--dim", type=click.IntRange(1), help="Keep only the first DIM numbers. Default: as the index has it."
)
@click.option(
    "--precision", type=click.Choice(["float32", "int8"]), help=f"{PRECISION} Default: as the index has it."
)
@progress_option
@json_option()
def migrate(
    *,
    place: str,
    model: str,
    passage_tokens: int | None,
    dim: int | None,
    precision: Precision | None,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Encode all documents of the index at PLACE with another model, then switch to it in one step.

    The old vectors go on answering until the switch. Stopped in the middle, run it again: what is done is kept.
    """
    import gemel

    with gemel.open_index(place, create=False) as index:
        done = index.migrate(
            model,
            passage_tokens=passage_tokens,
            dim=dim,
            precision=precision,
            progress=shows_progress(progress),
        )
    if as_json:
        click.echo(json.dumps({"place": place, **asdict(done)}))
    else:
        echo(f"{place}: {done.summary()}", err=True)


@click.command(
    short_help="Cut the texts into words again.",
    epilog="""\b
Examples:
  gemel index words notes
  gemel index words notes --stemming english""",
)
@place_argument
@stemming_option
@progress_option
@json_option()
def words(place: str, stemming: str | None, progress: bool | None, as_json: bool) -> None:
    """Cut the texts of the index at PLACE into words again, by the newest rules, for hybrid search.

    An index that an older gemel made does not find parts of Chinese, Japanese or Thai text until then; `gemel index
    stats` says so. Vectors stay as they are. Searches go on meanwhile.
    """
    import gemel

    with gemel.open_index(place, create=False) as index:
        done = index.rebuild_words(stemming=stemming, progress=shows_progress(progress))
    if as_json:
        echo_json({"place": place, "documents": done, "stemming": stemming})
    else:
        said = f"{done:,} documents" if done else "nothing to do"
        echo(f"{place}: {said}, {f'stemming {stemming}' if stemming else 'no stemming'}", err=True)
