"""A value of a TOML file as the value of an option: of the right type, or an error that names file and key."""

from __future__ import annotations

from typing import Any

import click

from gemel.errors import InputError


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
