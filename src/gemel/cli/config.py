"""What the files of settings say of one verb: checked, in order, and as click takes it.

A file of the working folder may come from a stranger, so it may set less than the user's own: settings.py says what.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from gemel.cli.config_files import DEFAULTS, ConfigFile, check_known, read_files, user_file
from gemel.cli.config_values import checked_value
from gemel.cli.settings import LOCAL, SHARED, Words, is_shared, options_by_key, rule_of, variables_of
from gemel.errors import GemelError, InputError, ModelError

_RUNNING = "gemel.cli.config.running"


@dataclass(frozen=True)
class Given:
    """A value that a file gives to an option."""

    key: str
    value: Any
    table: str
    file: ConfigFile

    @property
    def where(self) -> str:
        return f"{self.file}: [{self.table}] {self.key}"


@dataclass(frozen=True)
class VerbSettings:
    """What stands in the files for one verb."""

    words: Words
    command: click.Command
    given: Sequence[Given]

    def default_map(self) -> dict[str, Any]:
        """As click wants it at the root: {"index": {"add": {"text_column": "body"}}}."""
        options = options_by_key(self.command)
        inner: dict[str, Any] = {options[each.key].name or "": each.value for each in self.given}
        for word in reversed(self.words):
            inner = {word: inner}
        return inner

    def origin(self, message: str, arguments: Sequence[str]) -> str:
        """Where the options that a message names were set, if not by the arguments; empty if nowhere else."""
        typed = {argument.partition("=")[0] for argument in arguments}
        files = {each.key: f"{each.file} sets {each.key}" for each in self.given}
        found = []
        for key, option in options_by_key(self.command).items():
            if typed & {*option.opts, *option.secondary_opts}:
                continue
            if not any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message) for name in option.opts):
                continue
            variable = next((name for name in variables_of(self.words, key) if os.environ.get(name)), None)
            if variable or key in files:
                found.append(f"{variable} is set" if variable else files[key])
        return "; ".join(found)


def use_files(
    ctx: click.Context,
    command: click.Command,
    arguments: Sequence[str],
    *,
    verbs: Sequence[str],
    tolerant: bool,
) -> None:
    """Let the files decide what the command line and the environment leave open. `tolerant`: or else nothing."""
    words: Words = (arguments[0],)
    try:
        files = read_files(verbs)
        if isinstance(command, click.Group):
            check_commands(command, words[0], files)
            words = tuple(arguments[:2])
            command = command.commands.get(words[-1], command)
        settings = settings_of(command, words, files) if not isinstance(command, click.Group) else None
    except InputError:
        if not tolerant:
            raise
        return
    if settings is not None:
        ctx.default_map = settings.default_map()
        ctx.meta[_RUNNING] = (settings, tuple(arguments))


def note_origin(ctx: click.Context, error: click.UsageError | GemelError) -> None:
    """Note on an error where the options that it speaks of were set, if not on the command line."""
    if _RUNNING not in ctx.meta:
        return
    settings, arguments = ctx.meta[_RUNNING]
    said = error.format_message() if isinstance(error, click.UsageError) else str(error)
    if isinstance(error, ModelError):
        said += " --model"
    if origin := settings.origin(said, arguments):
        error.add_note(origin)


def settings_of(command: click.Command, words: Words, files: Sequence[ConfigFile]) -> VerbSettings:
    """Each option once: the first file wins, and in it the verb's own table over [defaults]."""
    found: dict[str, Given] = {}
    for file in files:
        for given in (*_own(command, words, file), *_shared(command, words, file)):
            found.setdefault(given.key, given)
    return VerbSettings(words, command, list(found.values()))


def check_commands(group: click.Group, name: str, files: Sequence[ConfigFile]) -> None:
    """Below [index] there are tables of its commands, such as [index.add], and nothing else."""
    for file in files:
        for inner in file.tables.get(name, {}):
            check_known(inner, list(group.commands), f"{file}: [{name}] has no command {inner!r}.")


def _own(command: click.Command, words: Words, file: ConfigFile) -> list[Given]:
    title, options = ".".join(words), options_by_key(command)
    table: Any = file.tables
    for word in words:
        table = table.get(word, {})
        if not isinstance(table, Mapping):
            raise InputError(f"{file}: {word} is a command. Write its options below [{title}]")
    found = []
    for key, value in _spelled(table, f"{file}: [{title}]").items():
        given = Given(key, value, title, file)
        _allow(given, options.get(key), words)
        if key not in options:
            close = get_close_matches(key, options, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(
                f"{file}: [{title}] has no key {key!r}.{hint} See: gemel {' '.join(words)} --help"
            )
        found.append(_checked(given, options[key]))
    return found


def _shared(command: click.Command, words: Words, file: ConfigFile) -> list[Given]:
    options, found = options_by_key(command), []
    for key, value in _spelled(file.tables.get(DEFAULTS, {}), f"{file}: [{DEFAULTS}]").items():
        given = Given(key, value, DEFAULTS, file)
        _allow(given, None, ())
        start = f"{file}: [{DEFAULTS}] has no key {key!r}, only options that verbs share."
        check_known(key, list(SHARED), start)
        if key in options and is_shared(words, key):
            found.append(_checked(given, options[key]))
    return found


def _checked(given: Given, option: click.Option) -> Given:
    value = checked_value(option, given.value, given.where)
    if given.file.from_project and given.key in LOCAL:
        names = value if isinstance(value, list) else [value]
        if any("://" in name or re.match(r"[/\\]{2}", name) for name in names):
            raise InputError(
                f"{given.where} names another machine, which a file of the working folder may not. "
                "Give a name, or a path of this machine"
            )
    return Given(given.key, value, given.table, given.file)


def _spelled(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Keys with hyphens, as flags are written; with underscores they mean the same."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("_", "-")
        if key in found:
            raise InputError(f"{where} has {key} twice, with a hyphen and with an underscore. Keep one")
        found[key] = value
    return found


def _allow(given: Given, option: click.Option | None, words: Words) -> None:
    """Refuse what no file may set, or not this one."""
    rule = rule_of(given.key, option)
    if rule.who == "nobody":
        instead = "" if option is None else f". Give {option.opts[-1]} on the command line"
        raise InputError(f"{given.where} may not be in a file: {rule.reason}{instead}")
    asked = option is not None or given.table == DEFAULTS  # else the key is unknown, which is said elsewhere
    if rule.who == "user" and given.file.from_project and asked:
        variable = variables_of(words, given.key)[-1]
        raise InputError(
            f"{given.where} may not be set by a file of the working folder: {rule.reason}. "
            f"Give --{given.key}, set {variable}, or write it into {user_file() or 'a file for GEMEL_CONFIG'}"
        )
