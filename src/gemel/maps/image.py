"""The map as a PNG picture: dots, names on the large groups, a legend."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.maps.content import MapContent, colour_of, thinned
from gemel.maps.raster import LINE, Colour, Picture, clipped, from_hsl, width_of

_SIDE, _LEGEND, _PAD = 1300, 560, 40
_INK, _SOFT, _NONE = (28.0, 32.0, 36.0), (90.0, 98.0, 107.0), (190.0, 196.0, 203.0)
_PAPER: Colour = (255.0, 255.0, 255.0)
_ROWS = 36  # lines of the legend
_NAMED = 24  # groups that may have their name on the map


def map_png(content: MapContent) -> bytes:
    """1860 x 1300 pixels."""
    shown = thinned(content)
    picture = Picture(_SIDE + _LEGEND, _SIDE, _PAPER)
    index = shown.index()
    _dots(picture, shown, index)
    _names(picture, shown, index)
    _legend(picture, content)
    return picture.png()


def _at(place: tuple[float, float]) -> tuple[float, float]:
    room = _SIDE - 2 * _PAD
    return _PAD + place[0] * room, _PAD + place[1] * room


def _dots(picture: Picture, shown: MapContent, index: NDArray[np.int64]) -> None:
    count = len(index)
    radius = 7.0 if count < 300 else 5.0 if count < 2000 else 3.5 if count < 12_000 else 2.0
    order = np.argsort(index >= 0, kind="stable")  # grey dots below the others
    for at in order.tolist():
        group = int(index[at])
        colour = _NONE if group < 0 else from_hsl(*colour_of(group))
        x, y = _at(tuple(shown.places[at].tolist()))
        picture.disc(x, y, radius * (0.8 if group < 0 else 1), colour, 0.6 if group < 0 else 0.85)


def _names(picture: Picture, shown: MapContent, index: NDArray[np.int64]) -> None:
    taken: list[tuple[float, float, int]] = []
    for at, group in enumerate(shown.groups[:_NAMED]):
        place = shown.middle(at, index)
        if place[0] < 0:
            continue
        width = width_of(group.short)
        x, y = _at(place)
        x = min(max(4.0, x - width / 2), _SIDE - width - 4.0)
        y = min(max(2.0, y - LINE / 2), _SIDE - LINE - 2.0)
        if any(abs(y - b) < LINE and x < a + w + 8 and a < x + width + 8 for a, b, w in taken):
            continue  # a name on top of a name can be read by nobody
        taken.append((x, y, width))
        picture.words(x, y, group.short, _INK, halo=_PAPER)


def _legend(picture: Picture, content: MapContent) -> None:
    left, room = _SIDE + 10, _LEGEND - 30
    picture.words(left, _PAD, clipped(content.title, room), _INK)
    for line, part in enumerate(_wrapped(content.summary, room)):
        picture.words(left, _PAD + LINE * (line + 1), part, _SOFT)
    top = _PAD + LINE * (len(_wrapped(content.summary, room)) + 2)
    rows = min(_ROWS, (_SIDE - top - _PAD) // LINE - 2)
    for at, group in enumerate(content.groups[:rows]):
        size = f"{group.size:,}"
        picture.disc(left + 9, top + at * LINE + 15, 8, from_hsl(*colour_of(at)))
        name = clipped(f"{group.id}  {group.name}", room - 40 - width_of(size) - 12)
        picture.words(left + 30, top + at * LINE, name, _INK)
        picture.words(left + room - width_of(size), top + at * LINE, size, _SOFT)
    shown = min(rows, len(content.groups))
    more = len(content.groups) - shown
    if more > 0:
        picture.words(left + 30, top + shown * LINE, f"and {more:,} more", _SOFT)
    none = int((content.labels < 0).sum())
    if none:
        y = top + (shown + (more > 0)) * LINE
        picture.disc(left + 9, y + 15, 8, _NONE)
        picture.words(left + 30, y, "in no cluster", _SOFT)
        picture.words(left + room - width_of(f"{none:,}"), y, f"{none:,}", _SOFT)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [clipped(line, width) for line in lines if line]
