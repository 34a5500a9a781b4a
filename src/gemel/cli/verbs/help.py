"""Explain an error code; without one, show what people do with gemel."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

import click

from gemel.cli.output import echo
from gemel.errors import InputError, did_you_mean

START = """\
gemel {version}: sentence embeddings on a CPU, without torch

  gemel demo                                        try it on sample sentences
  gemel encode texts.txt -o vectors/                a vector for each line
  gemel search notes.txt "how do I get a refund?"   the best answers in a file
  gemel pairs tickets.csv --text-column body        the most similar pairs
  gemel cluster reviews.csv -o clusters/            groups, names and a map
  gemel train rows.csv -m all-MiniLM-L6-v2 --objective triplet -o new/
                                                    a model for your texts
  gemel serve                                       an HTTP API and a web page

No file at hand: gemel example-data.  All verbs: gemel --help.
One verb: gemel encode --help.  An error code: gemel help GEM-301."""

WIDTH = 80


@click.command(
    epilog="\b\nExamples:\n  gemel help GEM-301\n  gemel help errors\n  gemel help encode\n  gemel help index search"
)
@click.argument("topic", nargs=-1)
def command(topic: tuple[str, ...]) -> None:
    """Explain an error code (GEM-301), list all codes (errors), or show the help of a verb.

    Without TOPIC: what people do with gemel, one line each. Needs no network.
    """
    if not topic:
        from gemel import __version__

        echo(_fitted(START.format(version=__version__)))
    elif topic == ("errors",):
        echo("\n".join(f"{entry.code}  {entry.title}" for entry in error_help().values()))
    elif len(topic) == 1 and (topic[0].isdigit() or topic[0].upper().startswith("GEM")):
        echo(_explained(topic[0]))
    else:
        echo(_verb_help(topic))


def _fitted(text: str) -> str:
    """For a terminal of fewer than 80 columns: what a command does stands below it, and sentences are wrapped."""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    if columns >= WIDTH:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        command, gap, about = line.partition("   ") if line.startswith("  gemel") else (line, "", "")
        if line.startswith("   "):
            command, gap, about = "", " ", line
        indent = "    " if line.startswith(" ") else ""
        lines += textwrap.wrap(command, columns, subsequent_indent=indent) if command.strip() else []
        lines += [f"      {about.strip()}"] if gap else [""] * (not line)
    return "\n".join(lines)


@dataclass(frozen=True)
class ErrorHelp:
    """What a code stands for, as errors.toml says it."""

    code: str
    title: str
    when: str
    do: str
    page: str
    """The page of the documentation, below docs."""


def error_help() -> dict[str, ErrorHelp]:
    """All codes with their explanations, in order."""
    import tomllib
    from importlib.resources import files

    table = tomllib.loads(files("gemel.cli").joinpath("errors.toml").read_text(encoding="utf-8"))
    return {code: ErrorHelp(code, **entry) for code, entry in table.items()}


def _explained(given: str) -> str:
    """The entry of a code, also written as gem301 or 301."""
    table = error_help()
    code = f"GEM-{given.upper().removeprefix('GEM').lstrip('-')}"
    if code not in table:
        raise InputError(
            f"there is no error code {given!r}.{did_you_mean(code, table)} All: gemel help errors"
        )
    entry = table[code]
    parts = [
        f"{code}: {entry.title}",
        textwrap.fill(entry.when, WIDTH),
        textwrap.fill(f"What to do: {entry.do}", WIDTH, break_long_words=False, break_on_hyphens=False),
        f"Documentation: docs/{entry.page}",
    ]
    return "\n\n".join(parts)


def _verb_help(path: tuple[str, ...]) -> str:
    context = click.get_current_context().find_root()
    inner = context.command
    for word in path:
        found = inner.get_command(context, word) if isinstance(inner, click.Group) else None
        if found is None:
            raise InputError(
                f"{context.command_path} has no verb {word!r}. See: {context.command_path} --help"
            )
        inner, context = found, click.Context(found, info_name=word, parent=context, **found.context_settings)
    return inner.get_help(context)
