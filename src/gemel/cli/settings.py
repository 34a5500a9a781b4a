"""Where an option may be set besides the command line: its key in a file, its environment variables, and by whom.

The verbs say nothing of this: it follows from an option's name and type and from the tables below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import click

Words = tuple[str, ...]
"""The words of a verb: ("encode",) or ("index", "add")."""

# Options that mean the same in every verb that has them: the keys of [defaults], and GEMEL_<NAME> counts too.
SHARED = frozenset(
    {
        *(
            "model",
            "prompt",
            "prompt-name",
            "normalize",
            "dim",
            "precision",
            "output",
            "max-length",
            "on-long",
        ),
        *("threads", "memory", "progress", "text-column", "id-column", "input-format", "skip-bad"),
        *("seed", "json", "on", "workers"),
    }
)
# The same word for another thing: of a machine on paper, of a file that is written, of the model that
# a run changes.
APART = frozenset(
    {
        *("plan memory", "plan dim", "plan precision", "export dim", "export precision"),
        *("postprocess dim", "distill dim", "train model", "index migrate model"),
    }
)
# Variables that are no option. The first two names are read by the library as well.
GENERAL = {
    "GEMEL_CACHE": "the folder of models and of what was measured",
    "GEMEL_OFFLINE": "1: no network",
    "GEMEL_SCAN": "the kernel that compares vectors",
    "GEMEL_API_KEYS": "keys of the server",
    "GEMEL_CONFIG": "a file of settings, or none",
}

# Texts that a file of the working folder may give. Any other text names what one run reads or writes.
_TEXTS = frozenset(
    {
        *(
            "model",
            "rerank",
            "student",
            "bridge",
            "prompt",
            "prompt-name",
            "name",
            "device",
            "pooling",
            "metric",
        ),
        *("memory", "cluster-memory", "pairs-memory", "vector-cache", "memory-limit", "max-body"),
        *("text-column", "id-column", "query-column", "other-text-column", "column", "field"),
        *("task", "eval-task", "eval-data", "objective", "keep"),
    }
)
# Those of them that may be a path. On Windows a path can be another machine, which is asked with the user's name.
LOCAL = frozenset({"model", "rerank", "student", "bridge", "eval-data"})
_OPENS = "it decides who can reach the server, and what they find there"
_USER_ONLY = {
    "on": "it would send texts to another machine",
    "tracker": "it would report a run to another service",
    "escape-formulas": "it would make a spreadsheet compute what a stranger wrote",
    **dict.fromkeys(
        ("host", "insecure", "allowed-host", "cors-origin", "api-key-file", "ssl-certfile", "ssl-keyfile"),
        _OPENS,
    ),
    **dict.fromkeys(("index", "requests-per-minute"), _OPENS),
}
_DESTROYS = "it replaces what is there, so each run has to ask for it"
_ONE_RUN = "it is about one run"
_NEVER = {
    **dict.fromkeys(("overwrite", "now"), _DESTROYS),
    "force": "it goes on where a run would stop, so each run has to ask for it",
    **dict.fromkeys(("resume", "save", "forget", "show"), _ONE_RUN),
    **dict.fromkeys(
        ("api-key", "api-keys", "token", "hf-token", "password", "secret"),
        "a file is easily shared, and it is a secret. Keys of the server: GEMEL_API_KEYS or --api-key-file",
    ),
}
_OTHER_TEXT = "it says what one run reads or writes"


@dataclass(frozen=True)
class Rule:
    """Which files may set an option, and why not the others."""

    who: Literal["all", "user", "nobody"]
    reason: str = ""


def key_of(option: click.Option) -> str:
    """The longest name of the flag, without its hyphens in front: `text-column`, `k`."""
    return max((name.lstrip("-") for name in option.opts), key=len)


def rule_of(key: str, option: click.Option | None = None) -> Rule:
    """Without an option, only the name decides."""
    if key in _NEVER:
        return Rule("nobody", _NEVER[key])
    if key in _USER_ONLY:
        return Rule("user", _USER_ONLY[key])
    text = option is not None and isinstance(option.type, click.types.StringParamType | click.Path)
    if text and key not in _TEXTS:
        return Rule("nobody", _OTHER_TEXT)
    return Rule("all")


def options_by_key(command: click.Command) -> dict[str, click.Option]:
    """The options of a verb by their keys, in the order of its help."""
    return {key_of(each): each for each in command.params if isinstance(each, click.Option)}


def is_shared(words: Words, key: str) -> bool:
    """True where [defaults] and GEMEL_<NAME> count."""
    return key in SHARED and f"{' '.join(words)} {key}" not in APART


def variables_of(words: Words, key: str) -> list[str]:
    """The environment variables of an option; the first that is set wins."""
    names = [_variable(*words, key)]
    return [*names, _variable(key)] if is_shared(words, key) else names


def _variable(*words: str) -> str:
    return "_".join(("GEMEL", *words)).upper().replace("-", "_")


def verbs_below(command: click.Command, words: Words) -> Iterator[tuple[Words, click.Command]]:
    """The command itself, or those of a group."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name, inner in sorted(command.commands.items()):
        yield from verbs_below(inner, (*words, name))


def give_variables(command: click.Command, words: Words) -> None:
    """Let click look at the environment for every option of the command and those below it."""
    for below, verb in verbs_below(command, words):
        for key, option in options_by_key(verb).items():
            option.envvar = [name for name in variables_of(below, key) if not _is_link(key, name)]


def _is_link(key: str, name: str) -> bool:
    # Kubernetes sets GEMEL_SERVE_PORT=tcp://10.0.0.7:80 for every container beside a service "gemel-serve".
    return key == "port" and os.environ.get(name, "").startswith("tcp://")
