"""What `gemel info` says of settings: the files, each value with its origin, and the environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import click

from gemel.cli.config import (
    GENERAL,
    ConfigFile,
    ConfigLocation,
    VerbSettings,
    Words,
    check_commands,
    options_by_key,
    places,
    read_files,
    settings_of,
    variables_of,
    verbs_below,
)
from gemel.errors import InputError

_PASSWORD = re.compile(r"(://[^:/@\s]*:)\S*(?=@)|(?i:(password=))[^&#\s]+")

_SECRETS = {"GEMEL_API_KEYS"}


@dataclass(frozen=True)
class Value:
    """A value of a file, once for every verb that it is given to."""

    verb: str
    key: str
    value: Any
    file: str
    table: str
    hidden_by: str | None
    """The environment variable that wins over it here."""


@dataclass(frozen=True)
class Variable:
    """A GEMEL_ variable that is set."""

    name: str
    value: str
    means: str | None
    """What it is for; None: gemel knows no such variable."""
    hint: str | None = None


@dataclass(frozen=True)
class SettingsReport:
    """All that is set outside of a command line, and what is wrong with it."""

    files: Sequence[ConfigLocation]
    values: Sequence[Value]
    variables: Sequence[Variable]
    error: str | None

    def to_json(self) -> dict[str, Any]:
        files = [{"path": str(file.path), "kind": file.kind, "there": file.is_there()} for file in self.files]
        return {
            "files": files,
            "values": [asdict(value) for value in self.values],
            "environment": [asdict(variable) for variable in self.variables],
            "error": self.error,
        }


def settings_report(root: click.Context) -> SettingsReport:
    """Looks at every verb of the program, so that a mistake in any table is found."""
    verbs = dict(_all_verbs(root))
    error, found = None, []
    try:
        files = read_files({words[0] for words in verbs})
        _check_groups(root, files)
        found = [settings_of(command, words, files) for words, command in verbs.items()]
    except InputError as wrong:
        error = str(wrong)
    return SettingsReport(
        places(), [value for each in found for value in _values(each)], _variables(verbs), error
    )


def _all_verbs(root: click.Context) -> Iterator[tuple[Words, click.Command]]:
    group = root.command
    assert isinstance(group, click.Group), "the root of the program is a group"
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        if command is not None:
            yield from verbs_below(command, (name,))


def _check_groups(root: click.Context, files: Sequence[ConfigFile]) -> None:
    group = root.command
    assert isinstance(group, click.Group), "the root of the program is a group"
    for name in {name for file in files for name in file.tables}:
        inner = group.get_command(root, name) if name in group.list_commands(root) else None
        if isinstance(inner, click.Group):
            check_commands(inner, name, files)


def _values(settings: VerbSettings) -> Iterator[Value]:
    for each in settings.given:
        names = variables_of(settings.words, each.key)
        shadow = next((name for name in names if os.environ.get(name)), None)
        value = without_passwords(each.value)
        yield Value(" ".join(settings.words), each.key, value, str(each.file), each.table, shadow)


def _variables(verbs: dict[Words, click.Command]) -> list[Variable]:
    means: dict[str, list[str]] = {name: [text] for name, text in GENERAL.items()}
    for words, command in verbs.items():
        for key in options_by_key(command):
            for name in variables_of(words, key):
                means.setdefault(name, []).append(f"{' '.join(words)} --{key}")
    found = []
    for name, value in sorted(os.environ.items()):
        if not name.startswith("GEMEL_") or not value:
            continue
        shown = "(hidden)" if name in _SECRETS else without_passwords(value)
        if name in means:
            uses = means[name]
            found.append(
                Variable(name, shown, uses[0] if len(uses) == 1 else f"--{_flag(uses)} of {len(uses)} verbs")
            )
            continue
        close = get_close_matches(name, means, n=1)
        # What nobody knows may be anything, a secret too.
        found.append(Variable(name, "(hidden)", None, f"did you mean {close[0]}?" if close else None))
    return found


def _flag(uses: list[str]) -> str:
    return uses[0].rpartition("--")[2]


def without_passwords(value: Any) -> Any:  # noqa: ANN401 - a value of TOML
    """The same value, with *** for the password of an address: the report is made to be shown to others."""
    if isinstance(value, list):
        return [without_passwords(each) for each in value]
    return (
        _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", value) if isinstance(value, str) else value
    )


def report_lines(report: SettingsReport) -> list[tuple[str, str]]:
    """Names and texts of lines for a person. A value that several verbs get is told once."""
    rows = []
    if report.files:
        texts = (f"{file.path}{'' if file.is_there() else ' (not there)'}" for file in report.files)
        rows.append(("settings", ", ".join(texts)))
    else:
        rows.append(("settings", "no files (GEMEL_CONFIG=none)"))
    if report.error:
        rows.append(("", f"wrong: {report.error}"))
    rows += [("", line) for line in _told(report.values)]
    for at, variable in enumerate(report.variables):
        known = variable.means or ", ".join(word for word in ("unknown", variable.hint) if word)
        rows.append(("" if at else "environment", f"{variable.name}={variable.value}: {known}"))
    return rows


def _told(values: Sequence[Value]) -> list[str]:
    """A line for each value of each file, with the variables that win over it and where."""
    verbs_of: dict[str, list[Value]] = {}
    for each in values:
        verbs_of.setdefault(f"[{each.table}] {each.key} = {each.value!r}, {each.file}", []).append(each)
    lines = []
    for line, verbs in verbs_of.items():
        winners = []
        for name in dict.fromkeys(each.hidden_by for each in verbs if each.hidden_by):
            where = [each.verb for each in verbs if each.hidden_by == name]
            winners.append(f"{name} wins" + ("" if len(where) == len(verbs) else f" in {', '.join(where)}"))
        lines.append("; ".join([line, *winners]))
    return lines
