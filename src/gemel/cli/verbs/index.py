"""Store texts with their vectors; search, add and delete."""

from __future__ import annotations

import click

from gemel.cli.verbs import index_care, index_read, index_write

EXAMPLES = """\b
Examples:
  gemel index create notes
  gemel index add notes articles.csv --text-column body --field lang --field year:int
  gemel index search notes "oil prices" -k 5 --where "year >= 2020 and lang = 'en'"
  gemel index search "postgresql://localhost/db#notes" "oil prices" """


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Store texts with their vectors; search, add, change and delete them. The index records its model.

    LOCATION is a folder, s3://bucket/path for a bucket, or postgresql://user@host/database#name for a server.
    """


for each in (
    index_write.build,
    index_write.create,
    index_write.add,
    index_read.search,
    index_read.get,
    index_write.delete,
    index_read.stats,
    index_care.compact,
    index_care.migrate,
    index_care.verify,
    index_care.repair,
    index_care.words,
):
    command.add_command(each)
