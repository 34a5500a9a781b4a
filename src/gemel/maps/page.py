"""The map as one HTML page to move in: hover, zoom, search, legend. It asks for nothing from the network."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from gemel.maps.content import MapContent, colour_of, thinned

_TEXT = 300  # characters of a text that the page holds


def map_page(content: MapContent) -> str:
    """The whole page. Texts are data in it, never markup."""
    shown = thinned(content)
    index = shown.index()
    data = {
        "x": [round(x, 5) for x in shown.places[:, 0].tolist()],
        "y": [round(y, 5) for y in shown.places[:, 1].tolist()],
        "c": index.tolist(),
        "text": [_short(text) for text in shown.texts],
        "unassigned": int((content.labels < 0).sum()),
        "clusters": [
            {
                "id": group.id,
                "name": _short(group.name),
                "short": group.short,
                "size": group.size,
                "text": _short(group.text),
                "colour": colour_of(at),
                "at": [round(number, 5) for number in shown.middle(at, index)],
            }
            for at, group in enumerate(shown.groups)
        ],
    }
    # Inside a script element only "<" could end it or open a comment.
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = files("gemel").joinpath("data", "map.html").read_text(encoding="utf-8")
    head, between, rest = page.partition("{{data}}")
    assert between, "data/map.html has no place for the data"
    head = head.replace("{{title}}", escape(shown.title)).replace("{{summary}}", escape(shown.summary))
    return head + written + rest


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else line[: _TEXT - 1] + "…"
