"""Draw the pictures of the first page: a terminal with a real run, and bars of a benchmark; `--check` fails if stale.

python tools/docs/landing.py             draw, from docs/pictures/terminal.json and benchmarks/results/encode.json
python tools/docs/landing.py --record    run the commands again first, in a terminal; needs the default model
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from svg_parts import number

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
RECORDED = PICTURES / "terminal.json"
RESULTS = ROOT / "benchmarks" / "results" / "encode.json"
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

# The recording


@dataclass(frozen=True)
class Scene:
    """A command, and which lines of its output the picture shows; others are replaced by one with dots."""

    command: str
    kept: Callable[[list[str]], list[int]]


def _demo(lines: list[str]) -> list[int]:
    """The size, the first three pairs, and the first search."""
    pairs, search = lines.index("The most similar pairs:"), _starts(lines, "Search: ")
    fourth = [at for at, line in enumerate(lines) if at > pairs and re.match(r"  0\.\d", line)][3]
    return [0, *range(pairs, fourth), *range(search, search + 4)]


def _small_demo(lines: list[str]) -> list[int]:
    """The first and the third pair, and the first answer: lines that fit a telephone."""
    every = _demo(lines)
    second = _starts(lines, "  0.93")
    return [at for at in every if at not in (second, second + 1)][:-2]


def _starts(lines: list[str], start: str) -> int:
    return next(at for at, line in enumerate(lines) if line.startswith(start))


def _table(lines: list[str]) -> list[int]:
    return [at for at, line in enumerate(lines) if line.strip()]


SCENES = (
    Scene("gemel demo", _demo),
    Scene('gemel search tickets.csv "where is my parcel" -k 3 --text-column body', _table),
)
TERMINALS = {"terminal.svg": (74, SCENES), "terminal-phone.svg": (58, (Scene("gemel demo", _small_demo),))}
"""Each picture: columns of the terminal, and what runs in it."""


def record() -> dict[str, list[dict[str, Any]]]:
    """The lines that each command prints on a terminal of that width; progress goes to standard error, unseen."""
    recorded: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*_gemel(), "example-data", "tickets"], cwd=folder, check=True, capture_output=True)
        for name, (columns, scenes) in TERMINALS.items():
            recorded[name] = []
            for scene in scenes:
                lines = _on_terminal(scene.command, columns, folder)
                kept = scene.kept(lines)
                shown: list[str] = []
                for before, at in zip([-1, *kept], kept, strict=False):
                    left_out = lines[before + 1 : at]
                    shown += ["⋮"] if any(left_out) and shown else [""] * bool(left_out)
                    shown += _wrapped(lines[at], columns)
                recorded[name].append({"command": scene.command, "lines": shown})
    return recorded


def _gemel() -> list[str]:
    return [sys.executable, "-m", "gemel"]


def _on_terminal(command: str, columns: int, folder: str) -> list[str]:
    import pty
    import shlex
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    program = subprocess.Popen(
        [*_gemel(), *shlex.split(command)[1:]],
        cwd=folder,
        env=environment,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the program has closed its end
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    if program.wait():
        raise SystemExit(f"{command} failed")
    text = re.sub(r"\x1b\[[0-9;]*m", "", b"".join(parts).decode())
    return [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]


def _wrapped(line: str, columns: int) -> list[str]:
    """As a terminal breaks a line that is too long."""
    return [line[at : at + columns] for at in range(0, len(line), columns)] or [""]


# The terminal


LINE, WIDTH, PAD, BAR = 19, 8.0, 16, 34
TYPING, PAUSE, PER_LINE = 0.035, 0.5, 0.06  # seconds


def terminal(name: str) -> str:
    """Commands that are typed and lines that appear, once; at rest for people who prefer reduced motion."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[name]
    columns = TERMINALS[name][0]
    rows: list[str] = []
    clock, y = PAUSE, BAR + PAD + 6.0
    for scene in recorded:
        start = clock
        for at, part in enumerate(_wrapped(f"$ {scene['command']}", columns)):
            begin = clock
            clock += len(part) * TYPING
            spans = f'<tspan class="prompt">$</tspan>{escape(part[1:])}' if at == 0 else escape(part)
            rows.append(_row(y, spans, begin, "typed", clock - begin, len(part)))
            y += LINE
        clock += PAUSE
        for line in scene["lines"]:
            clock += PER_LINE
            rows.append(_row(y, _colored(line), clock, "out"))
            y += LINE
        clock += 2 * PAUSE
        y += LINE / 2
        assert start < clock
    width, height = round(columns * WIDTH + 2 * PAD), round(y)
    style = f"""
text{{font:13.3px {MONOSPACE};fill:#d7dde4;white-space:pre}}
.prompt{{fill:#7ee787}} .score{{fill:#79c0ff}} .mark{{fill:#ffa657}} .soft{{fill:#8b98a5}}
@keyframes show{{from{{opacity:0}}to{{opacity:1}}}}
@keyframes type{{from{{clip-path:inset(0 100% 0 0)}}to{{clip-path:inset(0 0 0 0)}}}}
@media (prefers-reduced-motion: no-preference){{
.out{{animation:show .2s both}}
.typed{{animation:type both}}
}}"""
    dots = "".join(
        f'<circle cx="{18 + 18 * at}" cy="17" r="5.5" fill="{color}"/>'
        for at, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    commands = " and ".join(scene["command"] for scene in recorded)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="title about">',
            f'<title id="title">A terminal that runs {escape(commands)}</title>',
            f'<desc id="about">{escape(" ".join(line.strip() for line in recorded[0]["lines"]))}</desc>',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#161b22"/>',
            f'<path d="M0 {BAR}V10a10 10 0 0 1 10-10H{width - 10}a10 10 0 0 1 10 10V{BAR}z" fill="#21262d"/>',
            dots,
            *rows,
            "</svg>\n",
        ]
    )


def _row(y: float, spans: str, delay: float, kind: str, seconds: float = 0, letters: int = 0) -> str:
    timing = f"animation-delay:{delay:.2f}s"
    if kind == "typed":
        timing += f";animation-duration:{seconds:.2f}s;animation-timing-function:steps({letters})"
    return (
        f'<text xml:space="preserve" x="{PAD}" y="{number(y)}" class="{kind}" style="{timing}">{spans}</text>'
    )


def _colored(line: str) -> str:
    text = escape(line, quote=False)
    if line.startswith("         !") or line == "⋮":
        return f'<tspan class="{"soft" if line == "⋮" else "mark"}">{text}</tspan>'
    return re.sub(r"(?<![\d.])(0\.\d{3})(?!\d)", r'<tspan class="score">\1</tspan>', text)


# The bars

GROUPS = {"float32": "float32, the same vectors", "int8": "int8"}
OURS = ("gemel", "gemel-int8")
GROUP, RIGHT = 34, 60


@dataclass(frozen=True)
class Layout:
    """Where names and bars stand: next to each other, or on a telephone one above the other."""

    row: float
    left: float
    scale: float
    name_end: float | None
    """Where names end; None: they begin at the left, above their bar."""


BARS = {"speed-bars.svg": Layout(26, 236, 300, 224), "speed-bars-phone.svg": Layout(46, 0, 280, None)}


def bars(file: str) -> str:
    """Texts per second of gemel and of all peers in the same run, in float32 and int8."""
    layout = BARS[file]
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rates = {
        key: system["rates"]["stsb-test"]["texts_per_second"]
        for key, system in results["systems"].items()
        if "stsb-test" in (system.get("rates") or {}) and (system["role"] == "peer" or key in OURS)
    }
    largest = max(rates.values())
    parts: list[str] = []
    y = 8.0
    for precision, title in GROUPS.items():
        y += GROUP
        parts.append(f'<text x="0" y="{number(y - 10)}" class="head">{title}</text>')
        group = {
            key: rate for key, rate in rates.items() if results["systems"][key]["precision"] == precision
        }
        for key, rate in sorted(group.items(), key=lambda item: -item[1]):
            name = results["systems"][key]["title"].removesuffix(f" {precision}")
            kind = "ours" if key in OURS else "peer"
            long = layout.scale * rate / largest
            beside = layout.name_end is not None
            top = y if beside else y + 20
            x, side = (number(layout.name_end), "name ") if layout.name_end is not None else ("0", "")
            parts += [
                f'<text x="{x}" y="{number(y + 16)}" class="{side}{kind}">{escape(name)}</text>',
                f'<rect x="{number(layout.left)}" y="{number(top + 2)}" width="{number(long)}" height="19" rx="3" '
                f'class="bar {kind}"/>',
                f'<text x="{number(layout.left + long + 8)}" y="{number(top + 16)}" class="{kind}">{rate:,.0f}</text>',
            ]
            y += layout.row
    width, height = round(layout.left + layout.scale + RIGHT), round(y + 10)
    colors = "svg{color:#263238}@media (prefers-color-scheme: dark){svg{color:#e6edf3}}"
    style = f"""
.bars text{{font:13px {SANS};fill:currentColor}}
.bars text.name{{text-anchor:end}} .bars text.head{{font-weight:600}} .bars text.ours{{font-weight:600}}
.bars .bar.ours{{fill:#2f81f7}} .bars .bar.peer{{fill:currentColor;fill-opacity:.28}}
"""
    about = ", ".join(f"{results['systems'][key]['title']} {rate:,.0f}" for key, rate in rates.items())
    name = file.removesuffix(".svg")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" class="bars {name}" role="img" aria-labelledby="{name}-title {name}-about">',
            f'<title id="{name}-title">Texts per second on two cores</title>',
            f'<desc id="{name}-about">{escape(about)}</desc>',
            f"<style>{style}</style><style>{colors}</style>",
            *parts,
            "</svg>\n",
        ]
    )


DRAWINGS: dict[str, Callable[[str], str]] = {
    "terminal.svg": terminal,
    "terminal-phone.svg": terminal,
    **dict.fromkeys(BARS, bars),
}


def main(arguments: list[str]) -> int:
    if "--record" in arguments:
        RECORDED.write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    stale = []
    for name, draw in DRAWINGS.items():
        path, text = PICTURES / name, draw(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}. Run: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
