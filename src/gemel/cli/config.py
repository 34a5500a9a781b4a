"""Settings besides the command line: gemel.toml files, environment variables, and which options they may set.

click applies them: variables are the `envvar` of an option, files become the `default_map`. The verbs need not know:
names follow from an option's flag, permissions from its name and type and from the tables below. A gemel.toml in the
working folder may come from a stranger, so it may set less than the user's own file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from gemel.errors import GemelError, InputError, ModelError, did_you_mean

Words = tuple[str, ...]
"""The words of a verb: ("encode",) or ("index", "add")."""

PROJECT_FILE = "gemel.toml"

DEFAULTS = "defaults"

# Options that mean the same in every verb: the keys of [defaults], which also have the variable GEMEL_<NAME>.
SHARED = frozenset(
    {
        *("model", "prompt", "prompt-name", "normalize", "dim", "precision", "output", "max-length"),
        *("on-long", "threads", "memory", "progress", "text-column", "id-column", "input-format"),
        *("encoding", "skip-bad", "seed", "json", "on", "workers"),
    }
)

# The same word for another thing: the planned machine, the file that is written, the model that a run changes.
NOT_SHARED = frozenset(
    {
        *("plan memory", "plan dim", "plan precision", "export dim", "export precision"),
        *("postprocess dim", "distill dim", "train model", "index migrate model"),
    }
)

# Variables that are not about one option. The library reads the first four as well.
GENERAL = {
    "GEMEL_CACHE": "the folder of models and of what was measured",
    "GEMEL_OFFLINE": "1: no network",
    "GEMEL_CANARIES": "0: vectors are not compared with those of earlier versions",
    "GEMEL_SCAN": "the kernel that compares vectors",
    "GEMEL_API_KEYS": "keys of the server",
    "GEMEL_CONFIG": "a file of settings, or none",
}

# Texts that a file may set. Any other text names what one run reads or writes.
_TEXTS = frozenset(
    {
        *("model", "rerank", "student", "prompt", "prompt-name", "name", "device", "pooling", "metric"),
        *("memory", "cluster-memory", "pairs-memory", "vector-cache", "memory-limit", "max-body"),
        *(
            "text-column",
            "id-column",
            "query-column",
            "other-text-column",
            "column",
            "field",
            "task",
            "model-task",
        ),
        *("encoding", "show"),
        *("eval-task", "eval-data", "objective", "keep"),
    }
)

# Those that may be a path. On Windows a path can be on another machine, which would receive the user's name.
_LOCAL = frozenset({"model", "rerank", "student", "eval-data"})

_SERVER = "it decides who can reach the server, and what they find there"

_USER_ONLY = {
    "on": "it would send texts to another machine",
    "tracker": "it would report a run to another service",
    "escape-formulas": "it would make a spreadsheet compute what a stranger wrote",
    **dict.fromkeys(("host", "insecure", "allowed-host", "cors-origin", "index"), _SERVER),
    **dict.fromkeys(("api-key-file", "ssl-certfile", "ssl-keyfile", "requests-per-minute"), _SERVER),
}

_NEVER = {
    **dict.fromkeys(("overwrite", "now", "yes"), "it replaces what is there, so each run has to ask for it"),
    "sync": "it deletes documents, so each run has to ask for it",
    "force": "it continues where a run would stop, so each run has to ask for it",
    **dict.fromkeys(("resume", "save", "forget", "show"), "it is about one run"),
    **dict.fromkeys(
        ("api-key", "api-keys", "token", "hf-token", "password", "secret"),
        "a file is easily shared, and it is a secret. Keys of the server: GEMEL_API_KEYS or --api-key-file",
    ),
}


@dataclass(frozen=True)
class Rule:
    """Which files may set an option, and why not the others."""

    who: Literal["all", "user", "nobody"]
    reason: str = ""


def rule_of(key: str, option: click.Option | None = None) -> Rule:
    """Without an option, only the name decides."""
    if key in _NEVER:
        return Rule("nobody", _NEVER[key])
    if key in _USER_ONLY:
        return Rule("user", _USER_ONLY[key])
    is_text = option is not None and isinstance(option.type, click.types.StringParamType | click.Path)
    if is_text and key not in _TEXTS:
        return Rule("nobody", "it says what one run reads or writes")
    return Rule("all")


def options_by_key(command: click.Command) -> dict[str, click.Option]:
    """The options of a verb by the longest name of their flag, without its hyphens: `text-column`, `k`."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {max((name.lstrip("-") for name in option.opts), key=len): option for option in options}


def is_shared(words: Words, key: str) -> bool:
    """Whether [defaults] and GEMEL_<NAME> set this option."""
    return key in SHARED and f"{' '.join(words)} {key}" not in NOT_SHARED


def variables_of(words: Words, key: str) -> list[str]:
    """The environment variables of an option; the first that is set wins."""
    names = ["_".join(("GEMEL", *words, key)), *([f"GEMEL_{key}"] if is_shared(words, key) else [])]
    return [name.upper().replace("-", "_") for name in names]


def verbs_below(command: click.Command, words: Words) -> Iterator[tuple[Words, click.Command]]:
    """The command itself, or those of a group."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name, inner in sorted(command.commands.items()):
        yield from verbs_below(inner, (*words, name))


def set_variables(command: click.Command, words: Words) -> None:
    """Let click read the environment for every option of the command and those below it."""
    for below, verb in verbs_below(command, words):
        for key, option in options_by_key(verb).items():
            option.envvar = [name for name in variables_of(below, key) if not _is_kubernetes(key, name)]


def _is_kubernetes(key: str, name: str) -> bool:
    # It sets GEMEL_SERVE_PORT=tcp://10.0.0.7:80 in every container beside a service "gemel-serve".
    return key == "port" and os.environ.get(name, "").startswith("tcp://")


@dataclass(frozen=True)
class ConfigFile:
    """A file of settings; its tables are empty until it is read."""

    path: Path
    kind: Literal["project", "user", "chosen"]
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def exists(self) -> bool:
        """True also for a file that cannot be read."""
        return os.path.isfile(self.path)  # noqa: PTH113 - pathlib's raises if a parent folder is not readable


def config_files() -> list[ConfigFile]:
    """The files that count, whether or not they exist; the first wins. GEMEL_CONFIG replaces them by one or none."""
    chosen = os.environ.get("GEMEL_CONFIG")
    if chosen:
        return [] if chosen == "none" else [ConfigFile(Path(chosen).expanduser(), "chosen")]
    own = user_file()
    return [ConfigFile(Path(PROJECT_FILE), "project"), *([ConfigFile(own, "user")] if own else [])]


def user_file() -> Path | None:
    """The user's own file, where this system keeps settings; None if there is no such folder."""
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
    # A relative folder would be in the working folder, and so belong to whoever wrote that.
    return folder / "gemel" / "config.toml" if folder.is_absolute() else None


def read_files(verbs: Iterable[str]) -> list[ConfigFile]:
    """Those of `config_files` that exist, with their tables. One that GEMEL_CONFIG names has to exist."""
    found = []
    for file in config_files():
        if file.exists():
            found.append(ConfigFile(file.path, file.kind, _read(file.path, [DEFAULTS, *verbs])))
        elif file.kind == "chosen":
            raise InputError(f"GEMEL_CONFIG names {file.path}, which is no file. Name one, or write none")
    return found


def _read(path: Path, known: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    import tomllib

    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or endlessly nested lists
        raise InputError(f"{path} is not TOML: {error}") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: {name} stands outside of a table. Put it below [{DEFAULTS}], or below a verb such as [encode]"
            )
        _check_name(name, known, f"{path}: unknown table [{name}].")
    return content


def _check_name(name: str, known: Iterable[str], message: str) -> None:
    first, _, second = name.partition(" ")
    known = sorted(known)
    if name not in known:  # ["index add"] is meant as [index.add]
        hint = f" Did you mean '{first}.{second}'?" if first in known else did_you_mean(name, known)
        raise InputError(f"{message}{hint} Known: {', '.join(known)}")


@dataclass(frozen=True)
class Setting:
    """A value that a file gives to an option."""

    key: str
    value: Any
    table: str
    file: ConfigFile

    def __str__(self) -> str:
        return f"{self.file.path}: [{self.table}] {self.key}"


def use_files(
    ctx: click.Context,
    command: click.Command,
    arguments: Sequence[str],
    *,
    verbs: Sequence[str],
    tolerant: bool,
) -> None:
    """Let files decide what the command line and the environment leave open. `tolerant`: a wrong file is ignored."""
    words: Words = (arguments[0],)
    try:
        files = read_files(verbs)
        if isinstance(command, click.Group):
            check_commands(command, words[0], files)
            words = tuple(arguments[:2])
            command = command.commands.get(words[-1], command)
        if isinstance(command, click.Group):
            return
        settings = settings_of(command, words, files)
    except InputError:
        if not tolerant:
            raise
        return
    ctx.default_map = default_map(command, words, settings)
    ctx.meta[__name__] = (command, words, settings, tuple(arguments))


def default_map(command: click.Command, words: Words, settings: Sequence[Setting]) -> dict[str, Any]:
    """As click wants it at the root: {"index": {"add": {"text_column": "body"}}}."""
    options = options_by_key(command)
    inner: dict[str, Any] = {}
    for each in settings:
        option = options[each.key]
        one_of_many = option.multiple and not isinstance(each.value, list)
        inner[option.name or ""] = [each.value] if one_of_many else each.value
    for word in reversed(words):
        inner = {word: inner}
    return inner


def check_commands(group: click.Group, name: str, files: Sequence[ConfigFile]) -> None:
    """Below [index] there are tables of its commands, such as [index.add], and nothing else."""
    for file in files:
        for inner in file.tables.get(name, {}):
            _check_name(inner, group.commands, f"{file.path}: [{name}] has no command {inner!r}.")


def settings_of(command: click.Command, words: Words, files: Sequence[ConfigFile]) -> list[Setting]:
    """What files set for a verb, each option once: the first file wins, and in it the verb's table over [defaults]."""
    options, found = options_by_key(command), dict[str, Setting]()
    for file in files:
        for setting in _settings_in(file, words):
            _check_allowed(setting, options.get(setting.key), words)
            if setting.key not in options:
                hint = did_you_mean(setting.key, options)
                raise InputError(
                    f"{file.path}: [{setting.table}] has no key {setting.key!r}.{hint} "
                    f"See: gemel {' '.join(words)} --help"
                )
            _check_value(setting, options[setting.key])
            found.setdefault(setting.key, setting)
        for setting in _settings_in(file, (DEFAULTS,)):
            _check_allowed(setting, None, ())
            start = f"{file.path}: [{DEFAULTS}] has no key {setting.key!r}, only options that verbs share."
            _check_name(setting.key, SHARED, start)
            if setting.key in options and is_shared(words, setting.key):
                _check_value(setting, options[setting.key])
                found.setdefault(setting.key, setting)
    return list(found.values())


def _settings_in(file: ConfigFile, words: Words) -> list[Setting]:
    """The values of a table. Keys have hyphens, as flags do; underscores mean the same."""
    title, table = ".".join(words), file.tables
    for word in words:
        table = table.get(word, {})
        if not isinstance(table, Mapping):
            raise InputError(f"{file.path}: {word} is a command. Write its options below [{title}]")
    found: dict[str, Setting] = {}
    for name, value in table.items():
        key = name.replace("_", "-")
        if key in found:
            start = f"{file.path}: [{title}] has {key} twice"
            raise InputError(f"{start}, with a hyphen and with an underscore. Keep one")
        found[key] = Setting(key, value, title, file)
    return list(found.values())


def _check_allowed(setting: Setting, option: click.Option | None, words: Words) -> None:
    rule = rule_of(setting.key, option)
    if rule.who == "nobody":
        instead = "" if option is None else f". Give {option.opts[-1]} on the command line"
        raise InputError(f"{setting} may not be in a file: {rule.reason}{instead}")
    exists = option is not None or setting.table == DEFAULTS
    if rule.who == "user" and setting.file.kind == "project" and exists:
        raise InputError(
            f"{setting} may not be set by a file of the working folder: {rule.reason}. Give --{setting.key}, set "
            f"{variables_of(words, setting.key)[-1]}, or write it into {user_file() or 'a file for GEMEL_CONFIG'}"
        )


def _check_value(setting: Setting, option: click.Option) -> None:
    """Types as TOML has them, then click's own check. One value is a list if an option can be repeated."""
    value, where = setting.value, str(setting)
    if isinstance(value, list) and option.nargs == 1 and not option.multiple:
        raise InputError(f"{where} takes one value, got a list of {len(value)}")
    if not isinstance(value, list) and option.nargs != 1:
        raise InputError(f"{where} takes a list of {option.nargs} values, got {value!r}")
    kinds: tuple[type, ...]
    if option.is_flag:
        kinds, wanted = (bool,), "true or false"
    elif isinstance(option.type, click.types.IntParamType):
        kinds, wanted = (int,), "a whole number"
    elif isinstance(option.type, click.types.FloatParamType):
        kinds, wanted = (int, float), "a number"
    else:
        kinds, wanted = (str,), "a text in quotes"
    values = value if isinstance(value, list) else [value]
    for each in values:
        if not isinstance(each, kinds) or (isinstance(each, bool) and not option.is_flag):
            shown = str(each).lower() if isinstance(each, bool) else repr(each)
            raise InputError(f"{where} takes {wanted}, got {'a table' if isinstance(each, dict) else shown}")
        stranger = setting.file.kind == "project" and setting.key in _LOCAL
        if stranger and re.search(r"://|^[/\\]{2}", str(each)):
            raise InputError(
                f"{where} names another machine, which a file of the working folder may not. "
                "Give a name, or a path on this machine"
            )
    try:
        option.type_cast_value(click.Context(click.Command(None)), values if option.multiple else value)
    except click.BadParameter as error:
        raise InputError(f"{where}: {error.message}") from error
    except OverflowError as error:  # a number of hundreds of digits
        raise InputError(f"{where}: {error}. Give a smaller number") from error


def note_origin(ctx: click.Context, error: click.UsageError | GemelError) -> None:
    """Add to an error where the options that it names were set, if not on the command line."""
    if __name__ not in ctx.meta:
        return
    command, words, settings, arguments = ctx.meta[__name__]
    message = error.format_message() if isinstance(error, click.UsageError) else str(error)
    if isinstance(error, ModelError):
        message += " --model"
    typed = {argument.partition("=")[0] for argument in arguments}
    files = {each.key: f"{each.file.path} sets {each.key}" for each in settings}
    found = []
    for key, option in options_by_key(command).items():
        named = any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message) for name in option.opts)
        if named and not typed & {*option.opts, *option.secondary_opts}:
            variables = [f"{name} is set" for name in variables_of(words, key) if os.environ.get(name)]
            found += variables[:1] or ([files[key]] if key in files else [])
    if found:
        error.add_note("; ".join(found))
