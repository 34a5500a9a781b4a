"""HTML and SVG as nested calls. A plain string is escaped; only what `element` made goes into the page as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

_ALONE = {"meta", "line", "path", "rect", "circle"}
"""Elements that never hold anything, so they are written `<rect/>`."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def clean(text: str) -> str:
    """The text with characters that no page may hold made visible."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """One element. `class_` is the attribute class, `font_size` font-size; an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(clean(_attribute(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _ALONE:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Sequence[str], between: str = "") -> Markup:
    """One after the other, each escaped unless it is markup."""
    return Markup(
        between.join(child if isinstance(child, Markup) else escape(clean(child)) for child in children)
    )


def _attribute(value: str | float) -> str:
    return value if isinstance(value, str) else short(value)


def short(number: float) -> str:
    """A coordinate with at most one decimal: 12, 12.5, -0.3."""
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
