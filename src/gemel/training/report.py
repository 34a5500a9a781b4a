"""report.html of a run: curves, vectors before and after, what the doctor found, settings. One file, no network.

The report of a run as one HTML page. It asks for nothing from the network and runs no script.

Tables of the page: scores, data, settings, and what the doctor found.

What the page of a training run needs beyond the style sheet of evaluation reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemel.errors import WorkError
from gemel.evaluation.report.content import score_cell
from gemel.evaluation.report.html import STYLE as EVALUATION
from gemel.evaluation.report.markup import Markup, element, join
from gemel.files.atomic import whole_file
from gemel.training.card import DataSet, MeasuredScores, Summary, changed_options, said
from gemel.training.curves import Curve, Level, histograms, series, similarities_of, warnings_of
from gemel.training.journal import Line
from gemel.training.options import TrainOptions
from gemel.training.watch import SimilaritySample

FILE = "report.html"


def write_report(
    folder: Path | str,
    *,
    summary: Summary,
    journal: Sequence[Line],
    before: SimilaritySample | None = None,
    after: SimilaritySample | None = None,
    doctor: Sequence[Mapping[str, Any]] | None = None,
    date: datetime | None = None,
) -> Path:
    """Write report.html to the folder, whole or not at all, and return its path.

    `journal` is what `read_journal` gives; `before` and `after` are its first and last histograms unless given.
    `doctor` are the diagnoses of the data sets as JSON; None: the data was not examined. `date` is now unless given.
    """
    moment = (date or datetime.now(UTC)).isoformat(sep=" ", timespec="minutes")
    text = page(Content(summary, journal, moment, before, after, doctor))
    path = Path(folder) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise WorkError(f"cannot write the report to {path}: {error.strerror or error}") from error
    return path


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
    before: SimilaritySample | None
    after: SimilaritySample | None
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


_LEVELS = ("error", "warning", "note")


def score_table(measured: Sequence[MeasuredScores]) -> Markup:
    """Each main number before and after, with intervals."""
    rows = [
        (
            f"{each.dataset} · {each.metric}",
            str(score_cell(each.untrained)),
            str(score_cell(each.score)),
            f"{each.items:,} {each.unit}",
        )
        for each in measured
    ]
    return table(("data set · number", "untrained", "trained", "size"), rows)


def data_table(data: Sequence[DataSet]) -> Markup:
    rows = [
        (
            each.name,
            f"{each.rows:,}",
            f"{each.skipped:,}",
            ", ".join(each.roles),
            ", ".join(each.classes) or "–",
        )
        for each in data
    ]
    notes = [f"{each.name}: {note}" for each in data for note in each.notes]
    listed = element("ul", *(element("li", note) for note in notes)) if notes else join([])
    return join([table(("data set", "rows", "left out", "columns", "labels"), rows, words=True), listed])


def settings_table(summary: Summary) -> Markup:
    """The objective and what was changed; every option in a table that is folded away."""
    defaults = asdict(TrainOptions())
    # Options may have been to JSON and back, where tuples became lists.
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in summary.options.items()}
    head = [("objective", summary.objective, "")]
    head += [(f"{summary.objective}: {name}", said(value), "") for name, value in summary.settings.items()]
    changed = [
        (name, said(value), said(defaults[name]))
        for name, value in changed_options(options, defaults).items()
    ]
    every = [(name, said(value), said(defaults.get(name))) for name, value in options.items()]
    names = ("setting", "value", "default")
    folded = element(
        "details", element("summary", "Every setting"), table(names, every, words=True), class_="every"
    )
    return join([table(names, head + changed, words=True), folded])


def doctor_findings(doctor: Sequence[Mapping[str, Any]] | None) -> Markup:
    """What was found before the first step, worst first; each with what to do and the first examples."""
    if doctor is None:
        return element("p", "The data was not examined.", class_="soft")
    findings = [found for diagnosis in doctor for found in diagnosis.get("findings", ())]
    if not findings:
        return element("p", "Nothing was found.", class_="soft")
    findings.sort(key=lambda each: _rank(str(each.get("level", "note"))))
    return element("ul", *(_finding(each) for each in findings))


def _finding(found: Mapping[str, Any]) -> Markup:
    count, share = found.get("count"), found.get("share")
    size = [f"{count:,} rows"] if isinstance(count, int) and not isinstance(count, bool) else []
    size += [_percent(share)] if isinstance(share, int | float) else []
    parts = [
        element("span", str(found.get("level", "note")), class_="level"),
        f" {found.get('what', '')}",
        f" ({', '.join(size)})" if size else "",
        f". {found['advice']}" if found.get("advice") else "",
    ]
    examples = [str(each) for each in found.get("examples") or ()]
    if examples:
        inside = element("ul", *(element("li", each) for each in examples))
        parts.append(element("details", element("summary", "examples"), inside))
    return element("li", *parts)


def _percent(share: float) -> str:
    return "under 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def _rank(level: str) -> int:
    return _LEVELS.index(level) if level in _LEVELS else len(_LEVELS)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> Markup:
    """Rows that begin with their name; `words`: cells hold text, not numbers."""
    top = element("tr", *(element("th", name, scope="col") for name in head))
    body = (
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
        for row in rows
    )
    # The box can be scrolled, so the keyboard must be able to reach it.
    return element(
        "div",
        element("table", element("thead", top), element("tbody", *body), class_="facts" if words else None),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=head[0],
    )


STYLE = (
    EVALUATION
    + """
.thin { fill: none; stroke: currentColor; stroke-width: 1; opacity: .4; } .thin + .track { stroke-width: 2; }
.ring { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.filled { fill: currentColor; fill-opacity: .35; stroke: currentColor; stroke-width: 1; }
.outline { fill: none; stroke: currentColor; stroke-width: 2; }
pre { margin: .6em 0; padding: 10px 12px; background: var(--panel); border-radius: 6px; overflow-x: auto; }
.facts td { text-align: left; overflow-wrap: anywhere; } .facts th { text-align: left; }
.facts tbody th { font-weight: 400; }
.level { display: inline-block; min-width: 5em; font-weight: 600; }
.stopped { border-left: 4px solid var(--c1); padding-left: 12px; }
"""
)
