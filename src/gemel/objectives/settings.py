"""Checks of an objective's settings, made when it is built."""

from __future__ import annotations

from typing import Any, get_args

from gemel.errors import InputError


def check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{name} must be more than 0, got {value!r}")


def check_share(name: str, value: float) -> None:
    """From 0 up to, but not with, 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name} must be from 0 to below 1, got {value!r}")


def check_one_of(name: str, value: str, known: Any) -> None:  # noqa: ANN401 - a Literal type
    """`known` is a Literal, the same that annotates the field."""
    if value not in get_args(known):
        raise InputError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
