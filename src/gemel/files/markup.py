"""HTML and SVG as nested calls, the scales, axes and labels of plots, and the style sheet of all pages of gemel.

A plain string is escaped; only the result of `element` is not. A page loads nothing from the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from html import escape

_ALONE = {"meta", "line", "path", "rect", "circle"}
"""Elements without content, written as `<rect/>`."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Markup(str):
    """A string that is HTML, so it is not escaped."""

    __slots__ = ()


def clean(text: str) -> str:
    """The text with a replacement character for each control character."""
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
    """The concatenation, with each string escaped unless it is markup."""
    return Markup(
        between.join(child if isinstance(child, Markup) else escape(clean(child)) for child in children)
    )


def _attribute(value: str | float) -> str:
    return value if isinstance(value, str) else short(value)


def short(number: float) -> str:
    """A coordinate with at most one decimal: 12, 12.5, -0.3."""
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


WIDTH = 340

COLORS = 6
"""How many classes `c0`, `c1`, ... the style sheet has. Bars have a number too, for more models than that."""

LETTER = 7.0  # width of a mean bold letter at 11 px in a wide font


def drawing(title: str, description: str, height: float, *children: str) -> Markup:
    """An SVG picture with title and description for screen readers."""
    # Ids must be unique in the page, and the same for the same report.
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
    """The text, shortened in the middle to fit, since names differ at their ends."""
    letters = max(int(width / LETTER), 3)
    if len(text) <= letters:
        return text
    front = (letters - 1) // 2
    return f"{text[:front]}…{text[len(text) - (letters - 1 - front) :]}"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def whisker(low: float, high: float, at: float, *, upright: bool = False) -> Markup:
    """An interval with caps, over a stroke in the background color, which makes it visible on a bar."""
    if upright:
        path = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 3:.1f} {low:.1f}h6M{at - 3:.1f} {high:.1f}h6"
    else:
        path = f"M{low:.1f} {at:.1f}H{high:.1f}M{low:.1f} {at - 3:.1f}v6M{high:.1f} {at - 3:.1f}v6"
    return Markup(element("path", d=path, class_="halo") + element("path", d=path, class_="whisker"))


def color(position: int) -> str:
    """The CSS class of the model at this position."""
    return f"c{position % COLORS}"


@dataclass(frozen=True)
class Scale:
    """A linear map of numbers to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Three to seven round numbers inside the range."""
        step = round_step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]


@dataclass(frozen=True)
class AxisRange:
    """The range of an axis; plots that are compared share one."""

    low: float
    high: float

    def to(self, start: float, end: float) -> Scale:
        return Scale(self.low, self.high, start, end)


def range_of(numbers: Iterable[float], *, zero: bool = False) -> AxisRange:
    """From the smallest to the largest number, extended to round ticks; `zero` includes 0, for bars."""
    finite = [number for number in numbers if math.isfinite(number)] + ([0.0] if zero else [])
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = (min(low, 0.0), max(high, 1.0)) if zero else (low - 0.5, high + 0.5)
    step = round_step(high - low)
    # A cosine of 1.0000001 needs no further tick.
    return AxisRange(math.floor(low / step + 1e-3) * step, math.ceil(high / step - 1e-3) * step)


def round_step(width: float) -> float:
    """1, 2 or 5 times a power of ten, of which `width` has three to seven."""
    power = 10.0 ** math.floor(math.log10(width / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if width / (factor * power) <= 7.5)


def ruler(scale: Scale, top: float, bottom: float) -> Markup:
    """Vertical grid lines with their numbers below."""
    shapes = [line(scale(tick), top, scale(tick), bottom, "grid") for tick in scale.ticks]
    shapes += [words(scale(tick), bottom + 13, tick_text(tick), anchor="middle") for tick in scale.ticks]
    return join(shapes)


@dataclass(frozen=True)
class Frame:
    """The two scales of a plot with axes on the left and below."""

    x: Scale
    y: Scale

    def draw(self, below: str, beside: str) -> Markup:
        """Grid, numbers and the names of the axes."""
        shapes = [ruler(self.x, self.y.end, self.y.start)]
        for tick in self.y.ticks:
            shapes.append(line(self.x.start, self.y(tick), self.x.end, self.y(tick), "grid"))
            shapes.append(words(self.x.start - 5, self.y(tick) + 4, tick_text(tick), anchor="end"))
        shapes.append(words((self.x.start + self.x.end) / 2, self.y.start + 28, below, anchor="middle"))
        shapes.append(words(4, 11, beside))
        return join(shapes)


PLOT_HEIGHT = 236


def frame(x: AxisRange, y: AxisRange) -> Frame:
    """The frame of a plot of WIDTH and PLOT_HEIGHT."""
    return Frame(x.to(42, WIDTH - 12), y.to(PLOT_HEIGHT - 36, 22))


def tick_text(tick: float) -> str:
    """0.2, not 0.2000000001, with a real minus sign."""
    return f"{round(tick, 9):g}".replace("-", "−")


def page(title: str, style: str, *body: Markup) -> str:
    """An HTML page as text, with a style sheet inside."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


def figure(caption: str, hint: str, picture: Markup) -> Markup:
    """A plot with its caption; an empty caption is left out."""
    if not caption:
        return element("figure", picture)
    return element("figure", element("figcaption", caption, element("small", hint)), picture)


def panels(pictures: Sequence[Markup]) -> Markup:
    """Figures side by side."""
    return element("div", *pictures, class_="panels") if pictures else join([])


# The six colors of models have a contrast of 3:1 or more with the page and differ in lightness, for color-blind
# readers too; tests check both.
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #1c2024; --soft: #5a626b; --rule: #d5d9de;
  --dot: .22; --link: #0067a8; --c0: #0f7fc0; --c1: #d96300; --c2: #0a3a34; --c3: #8c7d76; --c4: #7a2e00;
  --c5: #55157a; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14171a; --panel: #1c2024; --ink: #e8eaed;
  --soft: #a3abb5; --rule: #363c43; --link: #6db5ff; --c0: #3b96f5; --c1: #e9801e; --c2: #6f8250;
  --c3: #a55c97; --c4: #f2ec55; --c5: #4fe9ad; --dot: .4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1400px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6em; margin: .2em 0; } h2 { font-size: 1.3em; margin: 2em 0 .3em; padding-top: .6em;
  border-top: 2px solid var(--rule); } h3 { font-size: 1.05em; margin: 1.5em 0 .4em; }
p, ul { margin: .4em 0; max-width: 75ch; } ul { padding-left: 1.3em; } li { overflow-wrap: anywhere; }
a { color: var(--link); } nav a { display: inline-block; margin-right: 1em; padding: .3em 0; }
.soft, figcaption small, td small { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1em; margin: .6em 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .5em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35em .55em; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule); }
td small { display: block; white-space: nowrap; } td small.long { white-space: normal; min-width: 9em; }
th { font-weight: 600; } thead th { border-bottom-width: 2px; max-width: 14em; min-width: 5em;
  overflow-wrap: break-word; }
th:first-child { padding-left: 0; text-align: left; position: sticky; left: 0; background: var(--paper);
  max-width: min(24em, 42vw); overflow-wrap: break-word; min-width: 7em; }
th.long, th.long:first-child { min-width: min(11em, 40vw); }
details { margin: .6em 0; } summary { cursor: pointer; padding: .3em 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2em 1.4em; list-style: none; padding: 0; max-width: none; }
.legend b { display: inline-block; min-width: 1.6em; margin-right: .5em; padding: 0 .3em; text-align: center;
  color: var(--paper); font-size: .85em; border-radius: 3px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); gap: 14px;
  align-items: start; }
figure { margin: 0; padding: 10px 12px; background: var(--panel); border-radius: 6px; break-inside: avoid;
  min-width: 0; }
figcaption { margin-bottom: .4em; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
figcaption small { display: block; font-weight: 400; font-size: .87em; }
svg { display: block; width: 100%; max-width: 460px; height: auto; overflow: visible; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .strong { fill: var(--ink); font-weight: 600; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .zero { stroke: var(--soft); stroke-dasharray: 4 3; }
.whisker { fill: none; stroke: var(--ink); stroke-width: 1.2; }
.halo { fill: none; stroke: var(--panel); stroke-width: 3; }
.track { fill: none; stroke: currentColor; stroke-width: 1.5; } .dots path { fill: none; stroke: currentColor;
  stroke-width: 8; stroke-linecap: round; opacity: var(--dot); }
rect, .cell, circle { fill: currentColor; }
.sure { fill: var(--c0); } .unsure { fill: var(--panel); stroke: var(--soft); stroke-width: 1.5; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); }
b.c0 { background: var(--c0); } b.c1 { background: var(--c1); } b.c2 { background: var(--c2); }
b.c3 { background: var(--c3); } b.c4 { background: var(--c4); } b.c5 { background: var(--c5); }
@media print { body { max-width: none; font-size: 11px; padding: 0; } nav { display: none; }
  .scroll { overflow: visible; } table { font-size: 9px; }
  figure { border: 1px solid var(--rule); background: none; --panel: #ffffff; }
  .panels { grid-template-columns: repeat(2, 1fr); } h2, h3 { break-after: avoid; } tr { break-inside: avoid; } }
"""
