"""All commands of the program, and the lines of their examples."""

from __future__ import annotations

from collections.abc import Iterator

import click

from gemel.cli.main import cli


def commands() -> Iterator[tuple[str, click.Command]]:
    """Each command that is not a group, by its words: "encode", "index add"."""
    yield from ((words, each) for words, each in everything() if not isinstance(each, click.Group))


def everything() -> Iterator[tuple[str, click.Command]]:
    """Groups too, and the program itself as ""."""
    yield "", cli
    yield from _below(cli, ())


def _below(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*words, name)), command
        if isinstance(command, click.Group):
            yield from _below(command, (*words, name))


def options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def examples(command: click.Command) -> list[str]:
    """The lines below "Examples:"; indented continuation lines are joined."""
    lines = (command.epilog or "").partition("Example")[2].splitlines()[1:]
    result: list[str] = []
    for line in lines:
        if line.startswith("    ") and result:
            result[-1] = f"{result[-1]} {line.strip()}"
        elif line.strip():
            result.append(line.strip())
    return result
