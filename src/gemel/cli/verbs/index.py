"""Keep texts with their vectors; search, add and delete."""

from __future__ import annotations

import click

from gemel.cli.verbs import index_care as care
from gemel.cli.verbs import index_read as reading
from gemel.cli.verbs import index_write as building
from gemel.cli.verbs import index_write as writing

EXAMPLES = """\b
Examples:
  gemel index create notes
  gemel index add notes articles.csv --text-column body --field lang --field year:int
  gemel index search notes "oil prices" -k 5 --where "year >= 2020 and lang = 'en'"
  gemel index search "postgresql://localhost/db#notes" "oil prices" """


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Keep texts and their vectors, search and change them; the index knows its model.

    PLACE is a folder, s3://bucket/path for an index in a bucket, or postgresql://user@host/database#name for one on a
    server.
    """


for each in (
    building.build,
    writing.create,
    writing.add,
    reading.search,
    reading.get,
    writing.delete,
    reading.stats,
    care.compact,
    care.migrate,
    care.verify,
    care.repair,
    care.words,
):
    command.add_command(each)
