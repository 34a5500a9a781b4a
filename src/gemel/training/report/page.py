"""The report of a run as one HTML page. It asks for nothing from the network and runs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemel.evaluation.report.markup import Markup, element, join
from gemel.evaluation.report.tables import score_cell
from gemel.training.geometry import Similarities
from gemel.training.journal import Line
from gemel.training.report.curves import Curve, Level
from gemel.training.report.histograms import histograms
from gemel.training.report.series import series, similarities_of, warnings_of
from gemel.training.report.style import STYLE
from gemel.training.report.tables import data_table, doctor_findings, score_table, settings_table
from gemel.training.summary import Summary

_VECTORS = (
    ("mean_cosine", "Mean cosine of random texts", "near 1: every text gets the same vector"),
    ("uniformity", "Uniformity", "lower: the vectors use their space more evenly"),
    ("alignment", "Alignment", "lower: texts that belong together are nearer"),
    ("effective_rank", "Effective rank", "directions in use; a fall to a tenth stops a run"),
)


@dataclass(frozen=True)
class Content:
    """All that the page is made of."""

    summary: Summary
    journal: Sequence[Line]
    date: str
    before: Similarities | None
    after: Similarities | None
    doctor: Sequence[Mapping[str, Any]] | None
    """A diagnosis for each data set."""


def page(content: Content) -> str:
    """The whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Training: {content.summary.name}"),
        element("style", Markup(STYLE)),
    )
    sections = [
        ("Scores", _scores(content)),
        ("Training", _training(content)),
        ("Vectors", _vectors(content)),
        ("Doctor", doctor_findings(content.doctor)),
        ("Data", data_table(content.summary.data)),
        ("Settings", settings_table(content.summary)),
    ]
    links = (element("a", name, href=f"#{name.lower()}") for name, _ in sections)
    body = element(
        "body",
        element("header", _top(content), element("nav", *links)),
        element(
            "main",
            _warnings(content),
            *(element("section", element("h2", name), inner, id=name.lower()) for name, inner in sections),
        ),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _top(content: Content) -> Markup:
    summary = content.summary
    rows = sum(data.rows for data in summary.data)
    facts = [
        ("date", content.date),
        ("made with", ", ".join(summary.versions)),
        ("trained from", summary.base_model),
        ("objective", summary.objective),
        ("data", f"{', '.join(data.name for data in summary.data)} ({rows:,} rows)"),
        ("steps", f"{summary.steps:,}"),
    ]
    if summary.best_step is not None:
        facts.append(("best step", f"{summary.best_step:,}, whose weights were kept"))
    if summary.best is not None:
        was = summary.best.untrained
        before = f", untrained {score_cell(was)}" if was is not None else ""
        facts.append(
            (f"{summary.best.dataset} {summary.best.metric}", f"{score_cell(summary.best.score)}{before}")
        )
    listed = join([join([element("dt", name), element("dd", said)]) for name, said in facts])
    load = "gemel.load_cross" if summary.kind == "cross" else "gemel.load"
    code = f"import gemel\n\nmodel = {load}({summary.name!r})  # the folder of the model"
    return join(
        [
            element("h1", f"Training: {summary.name}"),
            element("dl", listed),
            element("pre", element("code", code), tabindex="0", aria_label="how to load the model"),
        ]
    )


def _warnings(content: Content) -> Markup:
    said = [content.summary.stopped] if content.summary.stopped else []
    blocks = [element("p", element("b", "Stopped early: "), said[0], class_="stopped")] if said else []
    listed = warnings_of(content.journal)
    if listed:
        items = (element("li", sentence) for sentence in listed)
        blocks.append(element("div", element("h2", "Warnings"), element("ul", *items)))
    return join(blocks)


def _scores(content: Content) -> Markup:
    summary = content.summary
    over_time = series(content.journal, "evaluation", "score")
    if not summary.measured and not len(over_time):
        return element(
            "p", "The model was not evaluated: no evaluation data was given (--eval-data).", class_="soft"
        )
    blocks = [score_table(summary.measured)] if summary.measured else []
    if len(over_time):
        first = over_time.values[0] if over_time.steps[0] == 0 else None
        level = None if first is None else Level("untrained", float(first))
        curve = Curve("Score over the steps", over_time, level=level, best_step=summary.best_step)
        blocks.append(_panels([_figure(curve.title, "higher is better", curve.drawn())]))
    return join(blocks)


def _training(content: Content) -> Markup:
    curves = [
        Curve(title, found, smooth=smooth)
        for name, title, smooth in (
            ("loss", "Loss", True),
            ("learning_rate", "Learning rate", False),
            ("gradient_norm", "Gradient norm, before clipping", True),
        )
        if len(found := series(content.journal, "step", name))
    ]
    if not curves:
        return element("p", "The journal holds no steps.", class_="soft")
    return _panels([_figure(curve.title, curve.hint, curve.drawn()) for curve in curves])


def _vectors(content: Content) -> Markup:
    from_journal = similarities_of(content.journal)
    before, after = content.before or from_journal[0], content.after or from_journal[1]
    named = [
        (title, counts)
        for title, counts in (("Before training", before), ("After training", after))
        if counts
    ]
    blocks = [
        element(
            "p", "Of a few hundred texts of the training data, the same ones at every step.", class_="soft"
        )
    ]
    if named:
        pictures = [_figure(each.title, each.hint, each.drawn()) for each in histograms(named)]
        blocks += [element("h3", "Cosines"), _panels(pictures)]
    curves = [
        _figure(title, hint, Curve(title, found, zero=True).drawn())
        for name, title, hint in _VECTORS
        if len(found := series(content.journal, "health", name))
    ]
    if curves:
        blocks += [element("h3", "Over the steps"), _panels(curves)]
    return join(blocks) if named or curves else element("p", "Nothing was measured.", class_="soft")


def _figure(caption: str, hint: str, picture: Markup) -> Markup:
    return element("figure", element("figcaption", caption, element("small", hint)), picture)


def _panels(pictures: Sequence[Markup]) -> Markup:
    return element("div", *pictures, class_="panels")
