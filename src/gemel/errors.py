"""What can go wrong, as one small tree.

    GemelError
    ├── InputError     a text, array, file or option that cannot be worked on   (also a ValueError)
    ├── ModelError     a model that cannot be found, read or trusted            (also a ValueError)
    ├── MissingExtra   a package of an optional extra is not installed          (also an ImportError)
    └── WorkError      the request was right, the work failed                   (also a RuntimeError)

A message says what was requested, what is true, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable


class GemelError(Exception):
    """Any error that gemel raises on purpose; its text is meant for the user."""


class InputError(GemelError, ValueError):
    """A text, array, file or option cannot be worked on as given."""


class ModelError(GemelError, ValueError):
    """A model cannot be found, read or trusted."""


class MissingExtra(GemelError, ImportError):
    """A package that an optional feature needs is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}. Install it with: pip install 'gemel[{extra}]'"
        )


class WorkError(GemelError, RuntimeError):
    """The request was right, but the work could not be finished."""


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """` Did you mean 'encode'?` with the choice that is closest to a wrong name; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(str(name), list(choices), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
