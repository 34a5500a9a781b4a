"""The few strokes that all plots are made of."""

from __future__ import annotations

from hashlib import sha1

from gemel.evaluation.report.markup import Markup, element

WIDTH = 340
COLOURS = 6
"""How many classes `c0` … the style sheet has; bars carry a number too, so more models than that stay apart."""
LETTER = 7.0  # width of a mean bold letter at 11 px in a wide font


def drawing(title: str, description: str, height: float, *children: str) -> Markup:
    """An SVG picture; title and description are what a screen reader says."""
    # Ids must be unique in the page, and the same report must give the same bytes.
    key = "p" + sha1(f"{title}\n{description}\n{''.join(children)}".encode(errors="replace")).hexdigest()[:10]
    return element(
        "svg",
        element("title", title, id=f"{key}t"),
        element("desc", description, id=f"{key}d"),
        *children,
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_labelledby=f"{key}t {key}d",
    )


def words(x: float, y: float, text: str, *, anchor: str | None = None, class_: str | None = None) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def cut(text: str, width: float) -> str:
    """The text, shortened in the middle so that it fits: names differ at their ends."""
    letters = max(int(width / LETTER), 3)
    if len(text) <= letters:
        return text
    front = (letters - 1) // 2
    return f"{text[:front]}…{text[len(text) - (letters - 1 - front) :]}"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def whisker(low: float, high: float, at: float, *, upright: bool = False) -> Markup:
    """An interval with caps; a stroke in the colour of the paper below keeps it visible on a bar."""
    if upright:
        path = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 3:.1f} {low:.1f}h6M{at - 3:.1f} {high:.1f}h6"
    else:
        path = f"M{low:.1f} {at:.1f}H{high:.1f}M{low:.1f} {at - 3:.1f}v6M{high:.1f} {at - 3:.1f}v6"
    return Markup(element("path", d=path, class_="halo") + element("path", d=path, class_="whisker"))


def colour(position: int) -> str:
    """The class of the model at this position."""
    return f"c{position % COLOURS}"
