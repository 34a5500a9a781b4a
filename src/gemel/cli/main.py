"""The command `gemel`: verbs that are imported when used, and the error policy of the program.

Exit codes: 0 done, 1 the work failed, 2 the request was wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from gemel.cli.output import echo, in_flags, printable_warnings
from gemel.errors import GemelError, InputError, ModelError, WorkError
from gemel.registry import Registry

VERBS: Registry[click.Command] = Registry("verb", package="gemel.cli.verbs", attribute="command")
"""One file each, with a click command named `command`; the first line of the file is its line in `gemel --help`."""

# These verbs work with a wrong file of settings; `info` reports what is wrong.
TOLERANT = ("info", "completion", "help")

# click 8.1 shows the help of a bare group itself and exits; 8.2 raises this.
_BARE_GROUP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class LazyGroup(click.Group):
    """A group whose commands are the entries of `VERBS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from gemel.cli.config import set_variables

        command = VERBS[cmd_name]
        set_variables(command, (cmd_name,))
        if ctx.resilient_parsing:  # for completion in a shell
            from gemel.cli.verbs.completion import set_names

            set_names(command)
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever a command returns
        try:
            return super().invoke(ctx)
        except (InputError, ModelError, click.UsageError) as error:
            from gemel.cli.config import note_origin

            note_origin(ctx, error)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        wants_help = any(word in ctx.help_option_names for word in rest)
        if name and command and not ctx.resilient_parsing and not wants_help:
            from gemel.cli.config import use_files

            use_files(ctx, command, [name, *rest], verbs=list(VERBS), tolerant=name in TOLERANT)
        return name, command, rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        # click would import every verb for its line of help.
        names = (name for name in VERBS if name.startswith(incomplete))
        return [CompletionItem(name, help=VERBS.about(name)) for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS.about(name)) for name in VERBS])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from gemel import __version__

        click.echo(f"gemel {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    subcommand_metavar="VERB [ARGUMENTS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  gemel demo\n  gemel encode texts.txt -o vectors/\n  gemel help encode",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    callback=_show_version,
    expose_value=False,
    help="Show the version and exit.",
)
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show the traceback of an error; may be anywhere on the line.",
)
def cli() -> None:
    """Sentence embeddings: encode, compare and search texts, without torch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if instruction := os.environ.get("_GEMEL_COMPLETE"):
        from gemel.cli.verbs.completion import complete

        return complete(cli, instruction)
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with printable_warnings():
            return _run(given)
    except click.ClickException as error:
        message = f"{error.format_message().rstrip('.')}{_hint(error)}{_notes(error)}"
        message = f"{message}{'' if message.endswith('?') else '.'} See: {_verb(given)} --help"
        return _fail(_verb(given), message, error.exit_code, debug)
    except GemelError as error:
        message = in_flags(f"{error}{_notes(error)}", _path(given)[1])
        return _fail(_verb(given), message, 1 if isinstance(error, WorkError) else 2, debug, error.code)
    except BrokenPipeError:  # `gemel ... | head` is not a failure
        # The interpreter flushes standard output once more when it exits; send that to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, click.Abort):
        return _fail(_verb(given), "interrupted", 130, debug)


def _run(arguments: list[str]) -> int:
    # Not `cli.main()`: click's own would turn a broken pipe into exit 1 and Ctrl-C into "Aborted!".
    try:
        with cli.make_context("gemel", arguments or ["help"]) as context:
            cli.invoke(context)
    except _BARE_GROUP as bare:
        click.echo(bare.ctx.get_help())
    except click.exceptions.Exit as end:
        sys.stdout.flush()
        return end.exit_code
    sys.stdout.flush()
    return 0


def _verb(arguments: Sequence[str]) -> str:
    """`gemel index add` of a command line, as far as it names verbs."""
    return " ".join(_path(arguments)[0])


def _path(arguments: Sequence[str]) -> tuple[list[str], click.Command]:
    """The verbs that a command line names, and the command of the last; options before a verb take no values."""
    command: click.Command = cli
    path = ["gemel"]
    for word in [word for word in arguments if not word.startswith("-")]:
        if not isinstance(command, click.Group) or word not in command.list_commands(click.Context(command)):
            break
        inner = command.get_command(click.Context(command), word)
        if inner is None:
            break
        command = inner
        path.append(word)
    return path, command


def _hint(error: click.ClickException) -> str:
    """Where the result goes, for who wrote `--output FILE`: that flag is the type of the numbers, or none."""
    name = error.option_name if isinstance(error, click.NoSuchOption) else None
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = next(iter(error.param.opts), None)
    return ". A file or folder for the result is named with -o" if name == "--output" else ""


def _notes(error: Exception) -> str:
    """Where the settings that the error names come from."""
    return "".join(f" ({note})" for note in getattr(error, "__notes__", ()))


def _fail(name: str, message: str, exit_code: int, debug: bool, error_code: str | None = None) -> int:
    if debug:
        echo(traceback.format_exc().rstrip(), err=True)
    echo(f"{name}: {' '.join(message.splitlines())}{f' [{error_code}]' if error_code else ''}", err=True)
    if error_code and sys.stderr.isatty():
        echo(f"more: gemel help {error_code}", err=True)
    return exit_code
