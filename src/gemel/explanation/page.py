"""An explanation as one HTML page: heat maps in light and dark. It asks for nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.report.markup import Markup, element
from gemel.evaluation.report.style import STYLE

HeatMap: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...], NDArray[np.float64]]
"""Title, names of rows, names of columns, values."""

_STRONGEST = 0.7  # of the colour in the strongest cell: the number in it must stay readable
_OWN = """
.heat td { padding: .25em .45em; border: 1px solid var(--paper); min-width: 3.4em; }
.heat .for { background: color-mix(in srgb, var(--c0) var(--a), var(--paper)); }
.heat .against { background: color-mix(in srgb, var(--c1) var(--a), var(--paper)); }
.heat .sum { color: var(--soft); background: var(--panel); }
.heat thead th { min-width: 0; }
.heat th:first-child { min-width: 0; }
.key { display: inline-block; width: 1em; height: 1em; vertical-align: -.15em; margin: 0 .4em 0 0; }
.key ~ .key { margin-left: 1.2em; }
.key.for { background: var(--c0); } .key.against { background: var(--c1); }
"""


def page(left: str, right: str, score: float, maps: Sequence[HeatMap]) -> str:
    """The whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Why {score:.3f}: {left} | {right}"),
        element("style", Markup(STYLE + _OWN)),
    )
    body = element(
        "body",
        element("h1", f"Cosine {score:.3f}"),
        element(
            "dl",
            element("dt", "rows"),
            element("dd", left),
            element("dt", "columns"),
            element("dd", right),
        ),
        element(
            "p",
            "Each cell is what a pair adds to the cosine; all cells together sum to it.",
            class_="soft",
        ),
        element(
            "p",
            element("span", class_="key for"),
            "speaks for",
            element("span", class_="key against"),
            "speaks against",
            class_="soft",
        ),
        *(_section(*each) for each in maps),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _section(
    title: str, rows: tuple[str, ...], columns: tuple[str, ...], values: NDArray[np.float64]
) -> Markup:
    most = float(np.abs(values).max(initial=0.0)) or 1.0
    head = element("tr", element("th", ""), *(element("th", name) for name in columns), element("th", "sum"))
    lines = [
        element(
            "tr",
            element("th", name),
            *(_cell(float(value), most) for value in line),
            element("td", short(float(line.sum())), class_="sum"),
        )
        for name, line in zip(rows, values, strict=True)
    ]
    sums = element(
        "tr",
        element("th", "sum"),
        *(element("td", short(float(value)), class_="sum") for value in values.sum(axis=0)),
        element("td", short(float(values.sum())), class_="sum"),
    )
    table = element("table", element("thead", head), element("tbody", *lines, sums), class_="heat")
    return element("section", element("h2", title), element("div", table, class_="scroll"))


def _cell(value: float, most: float) -> Markup:
    kind = "for" if value >= 0 else "against"
    part = f"--a: {100 * _STRONGEST * abs(value) / most:.0f}%"
    return element("td", short(value), class_=kind, style=part)


def short(value: float) -> str:
    """Three decimals without the leading zero: .013, -.002, 1.000."""
    text = f"{value:.3f}"
    text = "0.000" if text == "-0.000" else text
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
