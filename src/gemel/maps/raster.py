"""A picture made of numpy and zlib alone: discs and words on a page, saved as PNG."""

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
