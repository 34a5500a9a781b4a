"""What the files of settings say of one verb: checked, in order, and as click takes it.

A file of the working folder may come from a stranger, so it may set less than the user's own: settings.py says what.

The files of settings: `gemel.toml` of the working folder and the user's own. Where they are, and their tables.

A value of a TOML file as the value of an option: of the right type, or an error that names file and key.

Where an option may be set besides the command line: its key in a file, its environment variables, and by whom.

The verbs say nothing of this: it follows from an option's name and type and from the tables below.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import click

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


PROJECT_FILE = "gemel.toml"

DEFAULTS = "defaults"

VARIABLE = "GEMEL_CONFIG"


@dataclass(frozen=True)
class ConfigLocation:
    """Where a file of settings is, or would be. That of a project may come from a stranger."""

    path: Path
    kind: Literal["project", "user", "chosen"]

    def is_there(self) -> bool:
        """True for a file, also for one that cannot be read."""
        return os.path.isfile(self.path)  # noqa: PTH113 - pathlib's raises where a folder on the way is closed


@dataclass(frozen=True)
class ConfigFile:
    """A file that was read; its tables have known names."""

    place: ConfigLocation
    tables: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        return str(self.place.path)

    @property
    def from_project(self) -> bool:
        return self.place.kind == "project"


def user_file() -> Path | None:
    """The user's own file, in the place where this system keeps settings; None where there is no such place."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or "~/AppData/Roaming"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        folder = Path(base).expanduser()
    except RuntimeError:  # a user without a home, as in some containers
        return None
    # A relative folder would be one of the working folder, and so of whoever wrote that.
    return folder / "gemel" / "config.toml" if folder.is_absolute() else None


def places() -> list[ConfigLocation]:
    """The files that count, whether or not they exist; the first wins. GEMEL_CONFIG puts one or none in their place."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "none":
        return []
    if chosen:
        return [ConfigLocation(Path(chosen).expanduser(), "chosen")]
    own = user_file()
    return [ConfigLocation(Path(PROJECT_FILE), "project"), *([ConfigLocation(own, "user")] if own else [])]


def read_files(verbs: Iterable[str]) -> list[ConfigFile]:
    """Those that exist, in the order of `places`. One that GEMEL_CONFIG names has to exist."""
    found = []
    for place in places():
        if place.is_there():
            found.append(ConfigFile(place, _tables(place.path, verbs)))
        elif place.kind == "chosen":
            raise InputError(f"{VARIABLE} names {place.path}, which is no file. Name one, or write none")
    return found


def _tables(path: Path, verbs: Iterable[str]) -> Mapping[str, Mapping[str, Any]]:
    import tomllib

    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or lists in lists without an end
        raise InputError(f"{path} is not TOML: {error}") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: {name} stands outside of a table. Put it below [{DEFAULTS}], or below a verb such as [encode]"
            )
        check_known(name, [DEFAULTS, *verbs], f"{path}: unknown table [{name}].")
    return content


def check_known(name: str, known: Sequence[str], start: str) -> None:
    """Refuse a name that nobody knows, with the nearest one that is known."""
    if name in known:
        return
    words = name.split()
    two = len(words) > 1 and words[0] in known  # ["index add"] for [index.add]
    close = [".".join(words)] if two else get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{start}{hint} Known: {', '.join(sorted(known))}")


def checked_value(option: click.Option, value: Any, where: str) -> Any:  # noqa: ANN401 - whatever TOML can say
    """The value as click converts it further; a single one counts as a list where an option may be repeated."""
    many = option.multiple or option.nargs != 1
    if isinstance(value, list) and not many:
        raise InputError(f"{where} takes one value, got a list of {len(value)}")
    if not isinstance(value, list) and option.nargs != 1:
        raise InputError(f"{where} takes a list of {option.nargs} values, got {value!r}")
    values = value if isinstance(value, list) else [value]
    for each in values:
        wanted = _wanted(option, each)
        if wanted:
            raise InputError(f"{where} takes {wanted}, got {_shown(each)}")
    result = values if many else value
    try:
        option.type_cast_value(click.Context(click.Command(None)), result)
    except click.BadParameter as error:
        raise InputError(f"{where}: {error.message}") from error
    except OverflowError as error:  # a number of hundreds of digits
        raise InputError(f"{where}: {error}. Give a smaller number") from error
    return result


def _wanted(option: click.Option, value: object) -> str | None:
    """What the option takes, where the value is something else."""
    if option.is_flag:
        return None if isinstance(value, bool) else "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return None if isinstance(value, str) else "a text in quotes"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else repr(value)


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
LOCAL = frozenset({"model", "rerank", "student", "eval-data"})

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
