"""Foreign text made safe to print: what could steer a terminal is shown, not sent.

Texts of a data file, names of files and messages of other programs may hold escape sequences that clear the screen, set
the title, write to the clipboard, or turn the direction of writing so that a line reads as another one.
"""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

# C0 but tab and line feed, DEL and C1; what sets the direction of writing; other line breaks; half pairs of UTF-16.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTIONS = r"\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_CONTROLS}{_DIRECTIONS}\u2028\u2029\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with every character that could steer a terminal shown as `\x1b` or `\u202e`. Lines and tabs stay."""
    return _UNSAFE.sub(_shown, text)


def printable_json(value: Any, **settings: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    r"""One line of JSON that reads back as `value` and is safe to print: `\u009b` where the character would steer."""
    # json.dumps escapes C0; the rest of the pattern can only be inside of strings.
    return _UNSAFE.sub(_escaped, json.dumps(value, ensure_ascii=False, default=iso_date, **settings))


def iso_date(value: object) -> str:
    """Dates and times as ISO 8601: the `default` of json.dumps."""
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no type of JSON")


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
