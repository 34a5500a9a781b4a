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
    from matplotlib.figure import Figure

    Results = dict[str, Content]

OURS, THEIRS = "#2b6cb0", "#c0a060"


def concat_figure(figure: Figure, result: Results) -> None:
    axes, lines = figure.subplots(), lines_of(result["6"])
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


def curve_figure(figure: Figure, results: Results) -> None:
    axes, result = figure.subplots(), lines_of(results["curve"])
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


def sts_figure(figure: Figure, result: Results) -> None:
    axes, lines = figure.subplots(), lines_of(result["1"])
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


COLLAPSE_STYLES = {
    "classification, 2e-5": {"color": OURS, "linestyle": "--"},
    "classification, 6e-5": {"color": OURS, "linestyle": ":"},
    "classification, 2e-4": {"color": OURS},
    "classification, 2e-5, head 1e-3": {"color": "#2f855a", "linestyle": "--"},
    "classification, 6e-5, head 1e-3": {"color": "#2f855a", "linestyle": ":"},
    "classification, 2e-4, head 1e-3": {"color": "#2f855a"},
    "regression, 2e-4": {"color": "#9b2c2c"},
    "ranking, 2e-4": {"color": THEIRS},
}
"""The settings that are drawn; the table has all."""


def collapse_figure(figure: Figure, result: Results) -> None:
    """Seed 0 over the steps: STS, effective rank, mean cosine."""
    panels = {
        "score": "STS, development part",
        "effective_rank": "effective rank",
        "mean_cosine": "mean cosine",
    }
    drawn = [
        row for row in result["collapse"]["rows"] if row["seed"] == 0 and row["label"] in COLLAPSE_STYLES
    ]
    every = figure.subplots(1, 3)
    for axes, (name, title) in zip(every, panels.items(), strict=True):
        for row in drawn:
            # Ranking has fewer steps on the same pairs, so all are drawn over the share of the run.
            share = [each["step"] / row["steps"][-1]["step"] for each in row["steps"]]
            values = [each[name] for each in row["steps"]]
            axes.plot(share, values, label=row["label"], **COLLAPSE_STYLES[row["label"]])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("share of the steps")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def front_figure(figure: Figure, result: Results) -> None:
    """Speed against quality, both relative to the teacher."""
    axes = figure.subplots()
    speeds = {row["model"]: row["per_second"] for row in result["front"]["rows"]}
    rows = result.get("student", {"rows": []})["rows"]
    for suite, name, style in (
        ("sts", "STS", "o"),
        ("retrieval", "retrieval", "s"),
        ("clustering", "clustering", "^"),
    ):
        scores = {
            row["label"]: row["scores"]["average"]["value"] for row in rows if row["suite"].startswith(suite)
        }
        shown = [label for label in speeds if label in scores]
        if shown:
            across = [speeds[label] / speeds["teacher"] for label in shown]
            up = [100 * scores[label] / scores["teacher"] for label in shown]
            axes.plot(across, up, style, label=name)
    scored = {row["label"] for row in rows}
    shares = [(speed / speeds["teacher"], label) for label, speed in speeds.items()]
    bottom = axes.get_ylim()[0]
    for number, (at, label) in enumerate(sorted(pair for pair in shares if pair[1] in scored or not rows)):
        height = 104 + 2.5 * (number % 3)  # names of models of about the same speed would overlap
        axes.annotate(label, (at, height), ha="center", fontsize=9)
        axes.vlines(at, bottom, height - 0.3, color="0.88", zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 1.6 * max(speeds.values()) / speeds["teacher"])
    axes.xaxis.set_major_formatter("× {x:g}")
    axes.set_ylim(bottom, 112)
    axes.set_xlabel("sentences per second, times the teacher's")
    axes.set_ylabel("% of the teacher's score")
    axes.set_title("Students of all-MiniLM-L6-v2")
    axes.legend(loc="lower center")


FIGURES: dict[str, tuple[str, Callable[[Figure, Results], None]]] = {
    "1": ("sts", sts_figure),
    "6": ("concat", concat_figure),
    "curve": ("pairs", curve_figure),
    "collapse": ("collapse", collapse_figure),
    "front": ("front", front_figure),
}


def draw(result: Results, folder: Path) -> list[Path]:
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
            figure = plt.figure(figsize=(9, 4) if table == "collapse" else (7, 4), layout="constrained")
            paint(figure, result)
            for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = folder / f"{name}.{ending}"
                figure.savefig(path, dpi=120, metadata=metadata)
                written.append(path)
            plt.close(figure)
    return written
