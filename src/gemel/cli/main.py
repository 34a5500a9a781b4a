"""The command `gemel`: a table of verbs, loaded when used, and the whole error policy of the program.

Exit 0 done, 1 the work failed, 2 the request was wrong. `gemel --help` reads only the table below.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from gemel.cli.output import echo, printable_warnings
from gemel.errors import GemelError, InputError, ModelError, WorkError
from gemel.registry import Registry


class Verb(NamedTuple):
    """Where a command lives and what `gemel --help` says of it, so that help need not import it."""

    module: str
    help: str


VERBS: Registry[Verb] = Registry("verb")
VERBS.add("encode")(Verb("gemel.cli.verbs.encode", "Turn texts into vectors, on the screen or in a folder."))
VERBS.add("evaluate")(
    Verb("gemel.cli.verbs.evaluate", "Score models on labelled data and say which is better.")
)
VERBS.add("models")(Verb("gemel.cli.verbs.models", "List, fetch, describe, convert, pack and remove models."))
VERBS.add("demo")(
    Verb("gemel.cli.verbs.demo", "Encode sample sentences, find similar pairs, answer two searches.")
)
VERBS.add("info")(
    Verb("gemel.cli.verbs.info", "Show versions, engines, the processor, the cache and what is set where.")
)
VERBS.add("completion")(
    Verb("gemel.cli.verbs.completion", "Print what lets a shell complete verbs and flags.")
)
VERBS.add("objectives")(Verb("gemel.cli.verbs.objectives", "List what a model can be trained on."))
VERBS.add("postprocess")(
    Verb("gemel.cli.verbs.postprocess", "Fit whitening or the like on texts and save a new model.")
)
VERBS.add("bench")(
    Verb("gemel.cli.verbs.bench", "Measure encoding on this machine and show what was chosen.")
)

VERBS.add("train")(
    Verb("gemel.cli.verbs.train", "Fine-tune a model on labelled texts, with snapshots and a report.")
)
VERBS.add("distill")(
    Verb("gemel.cli.verbs.distill", "Make a smaller or faster model that agrees with a larger one.")
)
VERBS.add("export")(
    Verb("gemel.cli.verbs.export", "Write a model as one ONNX or OpenVINO graph for other programs.")
)
VERBS.add("cluster")(Verb("gemel.cli.verbs.cluster", "Group similar texts, name the groups, draw a map."))
VERBS.add("dedupe")(
    Verb("gemel.cli.verbs.dedupe", "Write a file without its duplicates, and a report of why.")
)
VERBS.add("pairs")(Verb("gemel.cli.verbs.pairs", "Find the most similar pairs of texts."))
VERBS.add("search")(Verb("gemel.cli.verbs.search", "Find the best texts of a file for a query."))
VERBS.add("index")(Verb("gemel.cli.verbs.index", "Keep texts with their vectors; search, add and delete."))
VERBS.add("explain")(Verb("gemel.cli.verbs.explain", "Show why two texts score as they do, word by word."))
VERBS.add("plan")(
    Verb("gemel.cli.verbs.plan", "Say what a number of texts would cost, and what breaks first.")
)
VERBS.add("serve")(Verb("gemel.cli.verbs.serve", "Answer over HTTP: embeddings, rerank, search, and a page."))

# Work although a file of settings is wrong; the first says what is.
TOLERANT = ("info", "completion")

# click 8.1 shows the help of a bare group itself and exits; 8.2 raises this.
_BARE_GROUP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class LazyGroup(click.Group):
    """A group whose commands are rows of `VERBS`: each module holds one object named `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from gemel.cli.config import give_variables

        command = import_module(VERBS[cmd_name].module).command
        assert isinstance(command, click.Command), f"{VERBS[cmd_name].module}.command is no click command"
        give_variables(command, (cmd_name,))
        if ctx.resilient_parsing:  # a shell asks what could come next
            from gemel.cli.verbs.completion import give_names

            give_names(command)
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
        return [CompletionItem(name, help=VERBS[name].help) for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name].help) for name in VERBS])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from gemel import __version__

        click.echo(f"gemel {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    subcommand_metavar="VERB [ARGUMENTS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  gemel demo\n  gemel encode texts.txt -o vectors/\n  gemel encode --help",
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
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; fits anywhere."
)
def cli() -> None:
    """Sentence embeddings: encode, compare and search texts, without torch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if asked := os.environ.get("_GEMEL_COMPLETE"):
        from gemel.cli.verbs.completion import complete

        return complete(cli, asked)
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with printable_warnings():
            return _run(given)
    except click.ClickException as error:
        message = f"{error.format_message().rstrip('.')}{_notes(error)}"
        message = f"{message}{'' if message.endswith('?') else '.'} See: {_verb(given)} --help"
        return _fail(_verb(given), message, error.exit_code, debug)
    except GemelError as error:
        return _fail(_verb(given), f"{error}{_notes(error)}", 1 if isinstance(error, WorkError) else 2, debug)
    except BrokenPipeError:  # `gemel ... | head` is not a failure
        # The interpreter flushes standard output once more on its way out; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, click.Abort):
        return _fail(_verb(given), "interrupted", 130, debug)


def _run(arguments: list[str]) -> int:
    # Not `cli.main()`: click's own would turn a broken pipe into exit 1 and Ctrl-C into "Aborted!".
    try:
        with cli.make_context("gemel", arguments or ["--help"]) as context:
            cli.invoke(context)
    except _BARE_GROUP as bare:
        click.echo(bare.ctx.get_help())
    except click.exceptions.Exit as end:
        sys.stdout.flush()
        return end.exit_code
    sys.stdout.flush()
    return 0


def _verb(arguments: Sequence[str]) -> str:
    """`gemel index add` of a command line, as far as it names verbs: options in front of a verb are bare flags."""
    command: click.Command | None = cli
    path = ["gemel"]
    for word in [word for word in arguments if not word.startswith("-")]:
        if not isinstance(command, click.Group) or word not in command.list_commands(click.Context(command)):
            break
        command = command.get_command(click.Context(command), word)
        path.append(word)
    return " ".join(path)


def _notes(error: Exception) -> str:
    """Where a setting that the error speaks of comes from."""
    return "".join(f" ({note})" for note in getattr(error, "__notes__", ()))


def _fail(name: str, message: str, code: int, debug: bool) -> int:
    if debug:
        echo(traceback.format_exc().rstrip(), err=True)
    echo(f"{name}: {' '.join(message.splitlines())}", err=True)
    return code
