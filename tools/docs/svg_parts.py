"""Elements of an SVG figure: boxes, arrows, words, points. Numbers are rounded, so that files are reproducible."""

from __future__ import annotations

from html import escape

INK, SOFT, LINE, PAPER = "#263238", "#607d8b", "#b0bec5", "#ffffff"
BLUE, ORANGE, GREEN = "#1565c0", "#e65100", "#2e7d32"
PALE_BLUE, PALE_ORANGE, PALE_GREEN, PALE_GREY = "#e3f2fd", "#fff3e0", "#e8f5e9", "#eceff1"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def box(x: float, y: float, width: float, height: float, *, fill: str = PAPER, stroke: str = LINE) -> str:
    attributes = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect {attributes} rx="4" fill="{fill}" stroke="{stroke}"/>'


def words(x: float, y: float, text: str, *, size: int = 14, fill: str = INK, anchor: str = "middle") -> str:
    attributes = f'x="{number(x)}" y="{number(y)}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
    return f"<text {attributes}>{escape(text)}</text>"


def named_box(x: float, y: float, width: float, height: float, text: str, *, fill: str = PAPER) -> str:
    return box(x, y, width, height, fill=fill) + words(x + width / 2, y + height / 2 + 5, text)


def line(x: float, y: float, to_x: float, to_y: float, *, stroke: str = SOFT, arrow: bool = False) -> str:
    ends = f'x1="{number(x)}" y1="{number(y)}" x2="{number(to_x)}" y2="{number(to_y)}"'
    tip = ' marker-end="url(#tip)"' if arrow else ""
    return f'<line {ends} stroke="{stroke}" stroke-width="1.5"{tip}/>'


def point(x: float, y: float, *, fill: str, size: float = 2.5) -> str:
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(size)}" fill="{fill}" fill-opacity="0.6"/>'


def drawing(width: int, height: int, title: str, description: str, parts: list[str]) -> str:
    """A complete file, with a background so that it can be read on dark pages too."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title about" font-family="{escape(FONT)}">'
    )
    named = f'<title id="title">{escape(title)}</title><desc id="about">{escape(description)}</desc>'
    paper = f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>'
    return "\n".join([head, named, tip, paper, *parts, "</svg>"]) + "\n"
