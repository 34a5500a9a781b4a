"""The map as a PNG picture: dots, names on the large groups, a legend.

A picture made of numpy and zlib alone: discs and words on a page, saved as PNG.
"""

from __future__ import annotations

import struct
import unicodedata
import zlib
from colorsys import hls_to_rgb
from functools import lru_cache
from importlib.resources import files
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.groups.map import MapContent, colour_of, thinned

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


Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue, 0 to 255."""

Alpha: TypeAlias = NDArray[np.float32]

LINE = 30  # pixels from one line of words to the next


class Picture:
    """A page of pixels; what is drawn later lies on top. Whatever falls off the page is cut."""

    def __init__(self, width: int, height: int, paper: Colour = (255, 255, 255)) -> None:
        self._pixels = np.tile(np.array(paper, dtype=np.float32), (height, width, 1))

    def disc(self, x: float, y: float, radius: float, colour: Colour, opacity: float = 1.0) -> None:
        """Around a point that need not be in the middle of a pixel."""
        reach = int(radius + 2)
        left, top = int(x) - reach, int(y) - reach
        steps = np.arange(2 * reach + 1)
        gap = np.hypot(steps[None] + left - x, steps[:, None] + top - y)
        self._blend(left, top, np.clip(radius + 0.5 - gap, 0, 1).astype(np.float32) * opacity, colour)

    def words(self, x: float, y: float, text: str, colour: Colour, halo: Colour | None = None) -> None:
        """One line whose upper left corner is here. A halo keeps it readable on top of dots."""
        alpha = _written(text)
        left, top = round(x), round(y)
        if halo is not None:
            around = np.pad(alpha, 2)
            thick = np.max(
                [np.roll(around, (a, b), (0, 1)) for a in range(-2, 3) for b in range(-2, 3)], axis=0
            )
            self._blend(left - 2, top - 2, thick, halo)
        self._blend(left, top, alpha, colour)

    def png(self) -> bytes:
        """The page as a file."""
        height, width = self._pixels.shape[:2]
        rows = np.clip(np.rint(self._pixels), 0, 255).astype(np.uint8).reshape(height, 3 * width)
        lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # 0: the line is not filtered
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)

    def _blend(self, left: int, top: int, alpha: Alpha, colour: Colour) -> None:
        height, width = self._pixels.shape[:2]
        above, before = max(0, -top), max(0, -left)
        alpha = alpha[above : max(0, height - top), before : max(0, width - left), None]
        if alpha.size:
            y, x = top + above, left + before
            part = self._pixels[y : y + alpha.shape[0], x : x + alpha.shape[1]]
            part += alpha * (np.array(colour, dtype=np.float32) - part)


def width_of(text: str) -> int:
    """Pixels that a line of words takes."""
    return int(_written(text).shape[1])


def clipped(text: str, width: int) -> str:
    """As much of a line as fits, with … where it was cut."""
    if width_of(text) <= width:
        return text
    while text and width_of(text + "…") > width:
        text = text[:-1]
    return text.rstrip(" ,") + "…"


def from_hsl(hue: float, saturation: float, lightness: float) -> Colour:
    """Degrees and percents to red, green and blue."""
    red, green, blue = hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
    return 255 * red, 255 * green, 255 * blue


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _written(text: str) -> Alpha:
    """(LINE, width): how much ink each pixel has. A letter we have no picture of loses its accent, or becomes ?."""
    strip, place = _glyphs()
    parts = [np.zeros((LINE, 0), dtype=np.float32)]
    for letter in text:
        plain = unicodedata.normalize("NFKD", letter)[:1]
        code = next((ord(each) for each in (letter, plain) if each and ord(each) in place), ord("?"))
        parts.append(strip[:, place[code]])
    return np.concatenate(parts, axis=1)


@lru_cache(maxsize=1)
def _glyphs() -> tuple[Alpha, dict[int, slice]]:
    with files("gemel").joinpath("data", "glyphs.npz").open("rb") as stream, np.load(stream) as stored:
        codes, starts, strip = stored["codes"], stored["starts"].tolist(), stored["strip"]
    place = {code: slice(starts[at], starts[at + 1]) for at, code in enumerate(codes.tolist())}
    return (strip / 255).astype(np.float32), place
