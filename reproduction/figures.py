"""Figures of the page, as PNG and SVG, drawn from the results alone. Needs matplotlib (requirements.txt)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from reproduction import paper
from reproduction.plan import CONCATS
from reproduction.stored_results import Content, lines_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS = "#2b6cb0", "#c0a060"


def concat_figure(axes: Axes, content: Content) -> None:
    lines = lines_of(content)
    forms = [f"({form})" for form in CONCATS if f"({form})" in lines]
    for position, form in enumerate(forms):
        values = lines[form].values()
        axes.plot(
            values,
            [position] * len(values),
            "o",
            color=OURS,
            label="ours, one dot per seed" if not position else None,
        )
        axes.plot(
            [paper.TABLE6[form]], [position], "d", color=THEIRS, label="the paper" if not position else None
        )
    axes.set_yticks(range(len(forms)), forms)
    axes.invert_yaxis()
    axes.set_xlabel("STSb dev, Spearman × 100")
    axes.set_title("What the classification head sees")
    axes.legend()


def curve_figure(axes: Axes, content: Content) -> None:
    result = lines_of(content)
    for form, style, name in (
        (r"([\d,]+) pairs", {"color": OURS}, "classification"),
        (r"([\d,]+) pairs, learning rate 2e-5", {"color": OURS, "linestyle": "--"}, "the same at 2e-5"),
        (r"ranking, ([\d,]+) pairs", {"color": THEIRS}, "in-batch ranking"),
    ):
        matched = {label: re.fullmatch(form, label) for label in result}
        points = [
            (int(match[1].replace(",", "")), result[label].mean("average"))
            for label, match in matched.items()
            if match
        ]
        if points:
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name, **style)
    axes.set_xscale("log")
    axes.set_xlabel("NLI pairs")
    axes.set_ylabel("STS average, Spearman × 100")
    axes.set_title("Pairs that a small encoder needs")
    if axes.has_data():
        axes.legend()


def sts_figure(axes: Axes, content: Content) -> None:
    lines = lines_of(content)
    labels = sorted(lines, key=lambda label: lines[label].mean("average"))
    for position, label in enumerate(labels):
        score = lines[label].entries[0]["scores"]["average"]
        ends = [[score["value"] - score["low"]], [score["high"] - score["value"]]]
        axes.errorbar([score["value"]], [position], xerr=ends, fmt="o", color=OURS, capsize=3)
        if label in paper.TABLE1:
            axes.plot([paper.TABLE1[label][-1]], [position], "d", color=THEIRS)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("STS average, Spearman × 100 (circles: ours, diamonds: the paper)")
    axes.set_title("STS without STS training")


FIGURES: dict[str, tuple[str, Callable[[Axes, Content], None]]] = {
    "1": ("sts", sts_figure),
    "6": ("concat", concat_figure),
    "curve": ("pairs", curve_figure),
}


def draw(result: dict[str, Content], folder: Path) -> list[Path]:
    """A PNG and an SVG for each table that has a figure and results; the same bytes for the same results."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context({"svg.hashsalt": "gemel", "svg.fonttype": "none"}):
        for table, (name, paint) in FIGURES.items():
            if table not in result:
                continue
            figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
            paint(axes, result[table])
            for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = folder / f"{name}.{ending}"
                figure.savefig(path, dpi=120, metadata=metadata)
                written.append(path)
            plt.close(figure)
    return written
