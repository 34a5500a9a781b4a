"""Draw the figures of the explanations as SVG in docs/pictures; with `--check`, fail if one is stale.

python tools/docs/drawings.py                         draw, from docs/pictures/measured.json
python tools/docs/drawings.py --measure PLAIN_BERT    measure again: vectors of a plain encoder, and of all-MiniLM-L6-v2
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from svg_parts import (
    BLUE,
    GREEN,
    INK,
    LINE,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_GREY,
    PALE_ORANGE,
    SOFT,
    box,
    drawing,
    line,
    named_box,
    point,
    words,
)  # fmt: skip

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MEASURED = PICTURES / "measured.json"


def siamese(_: dict[str, Any]) -> str:
    """Two texts, one network, two heads: how it is trained and how it is used."""
    parts = []
    for left, title in ((20, "Trained: name the relation"), (400, "Used: compare")):
        parts.append(words(left + 170, 34, title, size=16))
        for x, text, vector in (
            (left, "A man plays a guitar.", "u"),
            (left + 180, "Someone makes music.", "v"),
        ):
            parts += [
                words(x + 80, 372, text, size=13, fill=SOFT),
                named_box(x, 290, 160, 50, "encoder", fill=PALE_BLUE),
                named_box(x, 215, 160, 40, "mean of the tokens", fill=PALE_GREEN),
                words(x + 80, 190, vector, size=18),
                line(x + 80, 356, x + 80, 342, arrow=True),
                line(x + 80, 290, x + 80, 257, arrow=True),
                line(x + 80, 215, x + 80, 197, arrow=True),
            ]
        parts.append(line(left + 160, 315, left + 180, 315, stroke=BLUE))
        parts.append(words(left + 170, 281, "the same weights", size=12, fill=BLUE))
    parts += [
        named_box(90, 115, 200, 40, "u, v, |u − v|", fill=PALE_ORANGE),
        named_box(90, 55, 200, 40, "entailment? neutral? …"),
        named_box(470, 85, 200, 40, "cosine of u and v", fill=PALE_ORANGE),
        line(190, 115, 190, 97, arrow=True),
    ]
    parts += [line(x, 175, to, 157, arrow=True) for x, to in ((100, 150), (280, 230))]
    parts += [line(x, 175, to, 127, arrow=True) for x, to in ((480, 530), (660, 610))]
    about = "Two texts go through one encoder and are averaged to u and v. In training a layer sees u, v and |u - v|."
    return drawing(760, 390, "The siamese network", about, parts)


LENGTHS = (9, 4, 7, 9, 4, 12, 7, 4)


def batches(_: dict[str, Any]) -> str:
    """Eight texts as one padded batch, and as batches of equal lengths."""
    cell, longest = 18, max(LENGTHS)
    parts = [words(30, 34, "One batch, padded", size=16, anchor="start")]
    for row, length in enumerate(LENGTHS):
        for at in range(longest):
            fill = PALE_BLUE if at < length else PALE_GREY
            parts.append(box(30 + at * cell, 50 + row * (cell + 4), cell - 2, cell, fill=fill))
    waste = longest * len(LENGTHS) - sum(LENGTHS)
    label = f"{waste} of {longest * len(LENGTHS)} cells are padding"
    parts.append(words(30, 255, label, size=13, fill=SOFT, anchor="start"))
    parts.append(words(360, 34, "Batches of one length, longest first", size=16, anchor="start"))
    top = 50
    for length in sorted(set(LENGTHS), reverse=True):
        for _row in range(LENGTHS.count(length)):
            parts += [box(360 + at * cell, top, cell - 2, cell, fill=PALE_GREEN) for at in range(length)]
            top += cell + 4
        top += 10
    parts.append(
        words(
            360,
            top + 12,
            "no padding, no mask: a text cannot see its neighbors",
            size=13,
            fill=SOFT,
            anchor="start",
        )
    )
    about = "Left: short texts are filled up to the longest. Right: texts of equal length share a batch."
    return drawing(740, 290, "Exact-length batches against padding", about, parts)


def anisotropy(measured: dict[str, Any]) -> str:
    """Texts as points and cosines of all pairs, before and after whitening."""
    parts = []
    for left, name, color in ((20, "before", ORANGE), (400, "after", BLUE)):
        result = measured["anisotropy"][name]
        center = left + 170
        title = "As the encoder gives them" if name == "before" else "After whitening"
        parts.append(words(center, 32, title, size=16))
        parts.append(f'<circle cx="{center}" cy="150" r="100" fill="none" stroke="{LINE}"/>')
        parts += [point(center + 100 * x, 150 - 100 * y, fill=color) for x, y in result["points"]]
        parts += _histogram(left + 20, 380, 300, 90, result["cosines"], color)
        parts.append(
            words(
                center,
                424,
                f"cosines of all pairs; mean {round(result['mean'], 2) + 0:.2f}",
                size=13,
                fill=SOFT,
            )
        )
    about = "Before, all points lie near one point of the circle and cosines are near 1; after, both spread around 0."
    return drawing(760, 440, "Anisotropy, before and after whitening", about, parts)


def _histogram(x: float, y: float, width: float, height: float, counts: list[int], color: str) -> list[str]:
    """Counts from -1 to 1 as bars, with the axis and its three ticks."""
    step, most = width / len(counts), max(counts)
    bars = [
        f'<rect x="{x + at * step:.1f}" y="{y - height * count / most:.1f}" width="{step - 0.5:.1f}" '
        f'height="{height * count / most:.1f}" fill="{color}"/>'
        for at, count in enumerate(counts)
        if count
    ]
    ticks = [words(x + width * (at + 1) / 2, y + 18, str(at), size=12, fill=SOFT) for at in (-1, 0, 1)]
    return [*bars, line(x, y, x + width, y, stroke=INK), *ticks]


def token_table(measured: dict[str, Any]) -> str:
    """A cosine as a table of pairs of tokens: darker cells add more."""
    result = measured["explanation"]
    cell_x, cell_y, left, top = 72, 30, 120, 84
    largest = max(max(map(abs, row)) for row in result["table"])
    parts = [words(30, 34, f"cosine {result['score']:.3f} = the sum of all cells", size=16, anchor="start")]
    for at, token in enumerate(result["right"]):
        parts.append(words(left + at * cell_x + cell_x / 2, top - 10, token, size=13))
    for row, token in enumerate(result["left"]):
        y = top + row * cell_y
        parts.append(words(left - 10, y + 20, token, size=13, anchor="end"))
        for at, value in enumerate(result["table"][row]):
            x, strong = left + at * cell_x, min(1.0, abs(value) / largest)
            color = BLUE if value >= 0 else ORANGE
            shade = f'fill="{color}" fill-opacity="{strong:.2f}"'
            parts.append(f'<rect x="{x}" y="{y}" width="{cell_x - 2}" height="{cell_y - 2}" rx="3" {shade}/>')
            parts.append(
                words(
                    x + cell_x / 2 - 1,
                    y + 19,
                    f"{value:.3f}",
                    size=12,
                    fill="#ffffff" if strong > 0.5 else INK,
                )
            )
    width = left + len(result["right"]) * cell_x + 24
    about = f"{result['texts'][0]} against {result['texts'][1]}: what each pair of tokens adds to the cosine."
    return drawing(
        width, top + len(result["left"]) * cell_y + 16, "The token table of an explanation", about, parts
    )


def calibration(measured: dict[str, Any]) -> str:
    """Cosines of random pairs, the threshold that one of them exceeds, and related pairs above it."""
    result = measured["calibration"]
    x, y, width, height = 40, 250, 660, 180
    parts = [
        words(40, 34, f"{result['pairs']:,} pairs of {result['texts']} sentences", size=16, anchor="start")
    ]
    parts += _histogram(x, y, width, height, result["cosines"], LINE)
    cut = x + width * (result["cut"] + 1) / 2
    parts.append(line(cut, 44, cut, y, stroke=ORANGE))
    label = f"one random pair is expected above {result['cut']:.2f}"
    parts.append(words(cut - 8, 56, label, size=13, fill=ORANGE, anchor="end"))
    parts.append(
        words(cut + 8, y - 28, f"{result['above']} pairs are above", size=13, fill=GREEN, anchor="start")
    )
    parts += [
        line(x + width * (score + 1) / 2, y, x + width * (score + 1) / 2, y - 16, stroke=GREEN)
        for score in result["found"]
    ]
    about = "A hill of cosines of random pairs around 0.1, a line where chance ends, and the pairs above it."
    return drawing(740, 285, "What chance reaches", about, parts)


DRAWINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "siamese.svg": siamese,
    "batches.svg": batches,
    "anisotropy.svg": anisotropy,
    "token-table.svg": token_table,
    "calibration.svg": calibration,
}


def main(arguments: list[str]) -> int:
    if "--measure" in arguments:
        from measure_drawings import measure

        MEASURED.write_text(json.dumps(measure(arguments[-1])) + "\n", encoding="utf-8")
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    stale = []
    for name, draw in DRAWINGS.items():
        path, text = PICTURES / name, draw(measured)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}. Run: python tools/docs/drawings.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
