"""List the training objectives and the columns they need."""

from __future__ import annotations

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json


@click.command(epilog="\b\nExamples:\n  gemel objectives\n  gemel objectives --json")
@flags.json_option("lines")
def command(as_json: bool) -> None:
    """List the training objectives with the columns that each needs."""
    from gemel.training.objectives.base import list_objectives

    for row in list_objectives():
        if as_json:
            echo_json(row.to_json())
            continue
        settings = [f"--{name} {' | '.join(values)}" for name, values in row.when.items()]
        label = f"; label: {row.needs.label}" if row.needs.label else ""
        echo(f"{' '.join([row.name, *settings])}: {row.columns}{label}")
        if not row.when:
            echo(f"    {row.about}")
