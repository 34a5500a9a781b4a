"""Draw the letters of map.png once, into src/gemel/data/glyphs.npz: `python docs/glyphs.py DejaVuSans.ttf`.

Needs Pillow, which gemel itself does not. The font is DejaVu Sans; its licence is src/gemel/data/glyphs-licence.txt.
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 22
HEIGHT = 30
CODES = sorted(
    {
        *chain(range(32, 127), range(160, 384), range(0x386, 0x3CF), range(0x400, 0x460)),
        *map(ord, "–—‘’“”…•€"),
    }
)
TARGET = Path(__file__).parent.parent / "src" / "gemel" / "data" / "glyphs.npz"


def main(font_file: str) -> None:
    font = ImageFont.truetype(font_file, SIZE)
    strips, starts = [], [0]
    for code in CODES:
        width = max(1, round(font.getlength(chr(code))))
        image = Image.new("L", (width, HEIGHT))
        ImageDraw.Draw(image).text((0, 2), chr(code), fill=255, font=font)
        strips.append(np.asarray(image))
        starts.append(starts[-1] + width)
    np.savez_compressed(
        TARGET, codes=np.array(CODES), starts=np.array(starts), strip=np.concatenate(strips, axis=1)
    )


if __name__ == "__main__":
    main(sys.argv[1])
