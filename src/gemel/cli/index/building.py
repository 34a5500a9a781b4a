"""`gemel index build`: an index made, filled and tidied by one command."""

from __future__ import annotations

from pathlib import Path

import click

from gemel.cli.flags import id_column_option, json_option, progress_option, text_column_option
from gemel.cli.index.writing import add, kept_field_option, place_argument
from gemel.cli.on_cluster import On, on_option
from gemel.cli.options import model_option


@click.command(
    short_help="Make an index of a file's texts.",
    epilog="""\b
Examples:
  gemel index build notes articles.csv --text-column body --id-column id
  gemel index build tickets tickets.jsonl --field lang --field year:int --on ray""",
)
@place_argument
@click.argument("file", metavar="FILE")
@model_option
@text_column_option()
@id_column_option('"id" if there is one; else ids are made of the text')
@kept_field_option
@progress_option
@json_option()
@on_option
@click.pass_context
def build(  # noqa: PLR0913 - one argument a flag
    context: click.Context,
    *,
    place: str,
    file: str,
    model: str,
    text_column: str | None,
    id_column: str | None,
    typed: tuple[str, ...],
    progress: bool | None,
    as_json: bool,
    on: On | None,
) -> None:
    """Make the index at PLACE, add the texts of FILE to it, and build what speeds up search.

    It is `create`, `add` and `compact` in one, with their usual settings. Stopped in the middle, run it again: what is
    there is left alone.
    """
    import gemel
    from gemel.text.lines import existing_file

    if file != "-":
        existing_file(Path(file))  # before an index is made for nothing
    gemel.open_index(place, model=model).close()  # made if it is not there; one of another model is refused
    context.invoke(  # what is not said here has the default of `add`
        add,
        place=place,
        file=file,
        text_column=text_column,
        id_column=id_column,
        typed=typed,
        compact=True,
        progress=progress,
        as_json=as_json,
        on=on,
    )
