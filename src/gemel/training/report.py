"""report.html of a training run: curves, vectors before and after, data checks, settings.

One file that loads nothing from the network and runs no script; it shares its style with the evaluation report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from gemel.errors import WorkError
from gemel.evaluation.report.content import score_cell
from gemel.files.atomic import write_atomic
from gemel.files.markup import (
    PLOT_HEIGHT,
    AxisRange,
    Frame,
    Markup,
    drawing,
    element,
    figure,
    frame,
    join,
    line,
    page,
    panels,
    range_of,
    words,
)
from gemel.files.markup import STYLE as EVALUATION_STYLE
from gemel.training.card import DataSet, MeasuredScores, Summary, changed_options, setting_text
from gemel.training.doctor import Diagnosis, Finding
from gemel.training.journal import Floats, Line, Series, series, similarities_of, warnings_of
from gemel.training.options import TrainOptions
from gemel.training.watch import BINS, SimilaritySample

FILE = "report.html"


def write_report(
    folder: Path | str,
    *,
    summary: Summary,
    journal: Sequence[Line],
    doctor: Sequence[Diagnosis] | None = None,
    date: datetime | None = None,
) -> Path:
    """Write report.html to the folder, atomically, and return its path.

    `journal` is what `read_journal` gives; `doctor` are the diagnoses of the data sets, None: the data was not
    checked. `date` defaults to now.
    """
    moment = (date or datetime.now(UTC)).isoformat(sep=" ", timespec="minutes")
    sections = [
        ("Scores", _scores(summary, journal)),
        ("Training", _training(journal)),
        ("Vectors", _vectors(journal)),
        ("Doctor", doctor_findings(doctor)),
        ("Data", data_table(summary.data)),
        ("Settings", settings_table(summary)),
    ]
    links = (element("a", name, href=f"#{name.lower()}") for name, _ in sections)
    blocks = (element("section", element("h2", name), inner, id=name.lower()) for name, inner in sections)
    header = element("header", _top(summary, moment), element("nav", *links))
    main = element("main", _warnings(summary, journal), *blocks)
    text = page(f"Training: {summary.name}", EVALUATION_STYLE + _STYLE, header, main)
    path = Path(folder) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise WorkError(f"cannot write the report to {path}: {error.strerror or error}") from error
    return path


_VECTORS = (
    ("mean_cosine", "Mean cosine of random texts", "near 1: every text gets the same vector"),
    ("uniformity", "Uniformity", "lower: the vectors use their space more evenly"),
    ("alignment", "Alignment", "lower: texts that belong together are nearer"),
    ("effective_rank", "Effective rank", "directions in use; a fall to a tenth stops a run"),
)


def _soft(text: str) -> Markup:
    return element("p", text, class_="soft")


def _top(summary: Summary, date: str) -> Markup:
    rows = sum(data.rows for data in summary.data)
    facts = [
        ("date", date),
        ("made with", ", ".join(summary.versions)),
        ("trained from", summary.base_model),
        ("objective", summary.objective),
        ("data", f"{', '.join(data.name for data in summary.data)} ({rows:,} rows)"),
        ("steps", f"{summary.steps:,}"),
    ]
    if summary.best_step is not None:
        facts.append(("best step", f"{summary.best_step:,}, whose weights were saved"))
    if summary.best is not None:
        untrained = summary.best.untrained
        before = f", untrained {score_cell(untrained)}" if untrained is not None else ""
        facts.append(
            (f"{summary.best.dataset} {summary.best.metric}", f"{score_cell(summary.best.score)}{before}")
        )
    listed = join([join([element("dt", name), element("dd", text)]) for name, text in facts])
    loads = {"cross-encoder": "gemel.load_cross", "sparse": "gemel.load_sparse", "late": "gemel.load_late"}
    load = loads.get(summary.kind, "gemel.load")
    code = f"import gemel\n\nmodel = {load}({summary.name!r})  # the folder of the model"
    return join(
        [
            element("h1", f"Training: {summary.name}"),
            element("dl", listed),
            element("pre", element("code", code), tabindex="0", aria_label="how to load the model"),
        ]
    )


def _warnings(summary: Summary, journal: Sequence[Line]) -> Markup:
    stopped = summary.stopped
    blocks = [element("p", element("b", "Stopped early: "), stopped, class_="stopped")] if stopped else []
    if listed := warnings_of(journal):
        items = (element("li", sentence) for sentence in listed)
        blocks.append(element("div", element("h2", "Warnings"), element("ul", *items)))
    return join(blocks)


def _scores(summary: Summary, journal: Sequence[Line]) -> Markup:
    over_time = series(journal, "evaluation", "score")
    if not summary.measured and not len(over_time):
        return _soft("The model was not evaluated: no evaluation data was given (--eval-data).")
    blocks = [score_table(summary.measured)] if summary.measured else []
    if len(over_time):
        first = float(over_time.values[0]) if over_time.steps[0] == 0 else None
        curve = Curve("Score over the steps", over_time, untrained=first, best_step=summary.best_step)
        blocks.append(panels([figure(curve.title, "higher is better", curve.draw())]))
    return join(blocks)


def _training(journal: Sequence[Line]) -> Markup:
    curves = [
        Curve(title, values, smooth=smooth)
        for name, title, smooth in (
            ("loss", "Loss", True),
            ("learning_rate", "Learning rate", False),
            ("gradient_norm", "Gradient norm, before clipping", True),
        )
        if len(values := series(journal, "step", name))
    ]
    if not curves:
        return _soft("The journal has no steps.")
    return panels([figure(curve.title, curve.hint, curve.draw()) for curve in curves])


def _vectors(journal: Sequence[Line]) -> Markup:
    samples = zip(("Before training", "After training"), similarities_of(journal), strict=True)
    named = [(title, counts) for title, counts in samples if counts]
    blocks = [_soft("Of a few hundred texts of the training data, the same ones at every step.")]
    if named:
        pictures = [figure(each.title, each.hint, each.draw()) for each in histograms(named)]
        blocks += [element("h3", "Cosines"), panels(pictures)]
    curves = [
        figure(title, hint, Curve(title, values, zero=True).draw())
        for name, title, hint in _VECTORS
        if len(values := series(journal, "health", name))
    ]
    if curves:
        blocks += [element("h3", "Over the steps"), panels(curves)]
    return join(blocks) if named or curves else _soft("Nothing was measured.")


def score_table(measured: Sequence[MeasuredScores]) -> Markup:
    """Each main metric before and after training, with intervals."""
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
    """The objective and the options that differ from their defaults; all options in a collapsed table."""
    options, defaults = summary.options, asdict(TrainOptions())
    head = [("objective", summary.objective, "")]
    head += [
        (f"{summary.objective}: {name}", setting_text(value), "") for name, value in summary.settings.items()
    ]
    changed = [
        (name, setting_text(value), setting_text(defaults[name]))
        for name, value in changed_options(options).items()
    ]
    every = [(name, setting_text(value), setting_text(defaults.get(name))) for name, value in options.items()]
    names = ("setting", "value", "default")
    folded = element(
        "details", element("summary", "Every setting"), table(names, every, words=True), class_="every"
    )
    return join([table(names, head + changed, words=True), folded])


def doctor_findings(doctor: Sequence[Diagnosis] | None) -> Markup:
    """What the data checks found, worst first; each finding with advice and its first examples."""
    if doctor is None:
        return _soft("The data was not checked.")
    findings = [finding for diagnosis in doctor for finding in diagnosis.findings]
    if not findings:
        return _soft("Nothing was found.")
    return element("ul", *(_finding(each) for each in sorted(findings, key=Finding.rank)))


def _finding(finding: Finding) -> Markup:
    parts = [element("span", finding.level, class_="level"), f" {finding.text}"]
    if finding.examples:
        inside = element("ul", *(element("li", each) for each in finding.examples))
        parts.append(element("details", element("summary", "examples"), inside))
    return element("li", *parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> Markup:
    """Rows that start with their name; `words`: the cells are text, not numbers."""
    top = element("tr", *(element("th", name, scope="col") for name in head))
    body = (
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
        for row in rows
    )
    # The box scrolls, so the keyboard must be able to reach it.
    return element(
        "div",
        element("table", element("thead", top), element("tbody", *body), class_="facts" if words else None),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=head[0],
    )


# Plots.

_DOTTED = 40  # up to this many points are drawn as dots too


@dataclass(frozen=True)
class Curve:
    """A metric over the steps: each value, a smoothed line, a level to compare with, the best point."""

    title: str
    values: Series
    smooth: bool = False
    """Draw each value as a thin line, with a smoothed one over it."""
    untrained: float | None = None
    """The value of the untrained model, as a dashed line."""
    best_step: int | None = None
    zero: bool = False
    """Start the axis at 0, so that a small change looks small."""

    @property
    def hint(self) -> str:
        """The line below the title."""
        parts = ["thin: as measured; thick: smoothed"] if self.smooth else []
        top, above = self._top()
        if above:
            most = f"{self.values.values.max():.4g}"
            parts.append(f"{above} above {top:.4g} are cut off, the highest is {most}")
        return "; ".join(parts) or f"last: {self.values.values[-1]:.4g}"

    def draw(self) -> Markup:
        values, top = self.values.values, self._top()[0]
        factor, unit = _factor(values)
        shown = Series(self.values.steps, np.minimum(values, top) * factor)
        levels = [] if self.untrained is None else [self.untrained * factor]
        ends = [float(end) for end in (self.values.steps.min(), self.values.steps.max())]
        axes = frame(_steps(*ends), range_of([*shown.values.tolist(), *levels], zero=self.zero))
        shapes = [axes.draw("step", unit), _path(shown, axes, "thin" if self.smooth else "track")]
        if self.smooth:
            mean = self.values.smoothed().values
            shapes.append(_path(Series(self.values.steps, np.minimum(mean, top) * factor), axes, "track"))
        if len(shown) <= _DOTTED:
            shapes += [_dot(axes, step, value) for step, value in zip(shown.steps, shown.values, strict=True)]
        shapes += self._level(axes, factor) + self._best(axes, shown, factor)
        return drawing(self.title, self._description(), PLOT_HEIGHT, element("g", *shapes, class_="c0"))

    def _top(self) -> tuple[float, int]:
        """The top of the plot, and how many values are above it: a few outliers must not flatten the rest."""
        values = self.values.values
        usual = float(np.quantile(values, 0.98)) if self.smooth and len(values) > 50 else math.inf
        top = 1.5 * usual
        if usual <= 0 or values.max() <= 2 * usual:
            return math.inf, 0
        return top, int((values > top).sum())

    def _level(self, axes: Frame, factor: float) -> list[Markup]:
        if self.untrained is None:
            return []
        height, name = axes.y(self.untrained * factor), f"untrained {self.untrained:.4g}"
        return [
            line(axes.x.start, height, axes.x.end, height, "zero"),
            words(axes.x.end, height - 4, name, anchor="end", class_="strong"),
        ]

    def _best(self, axes: Frame, shown: Series, factor: float) -> list[Markup]:
        best = np.flatnonzero(shown.steps == (-1 if self.best_step is None else self.best_step))
        if not len(best):
            return []
        value = float(shown.values[best[-1]])
        across, up = axes.x(float(shown.steps[best[-1]])), axes.y(value)
        right = across > (axes.x.start + axes.x.end) / 2
        below = up < axes.y.end + 20
        return [
            element("circle", cx=across, cy=up, r=6.5, class_="ring"),
            words(
                across - 10 if right else across + 10,
                up + 18 if below else up - 10,
                f"best {value / factor:.4g}",
                anchor="end" if right else None,
                class_="strong",
            ),
        ]

    def _description(self) -> str:
        steps, values = self.values.steps, self.values.values
        low, high = int(values.argmin()), int(values.argmax())
        text = (
            f"{len(values):,} values from step {steps[0]:.0f} to {steps[-1]:.0f}: first {values[0]:.4g}, last "
            f"{values[-1]:.4g}, lowest {values[low]:.4g} at step {steps[low]:.0f}, highest {values[high]:.4g} at step "
            f"{steps[high]:.0f}"
        )
        return text if self.untrained is None else f"{text}; untrained: {self.untrained:.4g}"


def _path(shown: Series, axes: Frame, look: str) -> Markup:
    thin = shown.thinned()
    points = (
        f"{axes.x(step):.1f} {axes.y(value):.1f}"
        for step, value in zip(thin.steps.tolist(), thin.values.tolist(), strict=True)
    )
    return element("path", d="M" + "L".join(points), class_=look)


def _dot(axes: Frame, step: float, value: float) -> Markup:
    return element("circle", cx=axes.x(float(step)), cy=axes.y(float(value)), r=2.5)


def _steps(low: float, high: float) -> AxisRange:
    """Exactly all steps: the axis of a run of 5,400 steps does not end at 6,000."""
    return AxisRange(low, high) if high > low else AxisRange(low - 0.5, high + 0.5)


def _factor(values: np.ndarray) -> tuple[float, str]:
    """A factor that makes the numbers at the axis short, and the label that shows it."""
    most = float(np.abs(values).max())
    if most == 0 or 0.01 <= most < 10_000:
        return 1.0, ""
    power = math.floor(math.log10(most))
    return 10.0**-power, f"× 10{str(power).translate(_RAISED)}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_EDGES = np.linspace(-1, 1, BINS + 1)


@dataclass(frozen=True)
class CosineHistogram:
    """Cosines of random texts (filled) and of texts that belong together (line)."""

    title: str
    counts: SimilaritySample
    x: AxisRange
    y: AxisRange

    @property
    def hint(self) -> str:
        text = f"filled: random texts, mean {_mean(self.counts.random):.2f}"
        if self.counts.positive is not None:
            text += f"; line: texts that belong together, mean {_mean(self.counts.positive):.2f}"
        return text

    def draw(self) -> Markup:
        axes = frame(self.x, self.y)
        shapes = [
            axes.draw("cosine", "% of pairs"),
            element("path", d=_outline(_shares(self.counts.random), axes), class_="filled c0"),
        ]
        if self.counts.positive is not None:
            shapes.append(
                element("path", d=_outline(_shares(self.counts.positive), axes), class_="outline c1")
            )
        return drawing(f"Cosines, {self.title.lower()}", self.hint, PLOT_HEIGHT, *shapes)


def histograms(named: list[tuple[str, SimilaritySample]]) -> list[CosineHistogram]:
    """The plots, with common axes."""
    kinds = [each for _, counts in named for each in (counts.random, counts.positive) if each is not None]
    used = np.flatnonzero(np.sum([np.array(kind) for kind in kinds], axis=0))
    low, high = (float(_EDGES[used[0]]), float(_EDGES[used[-1] + 1])) if len(used) else (-1.0, 1.0)
    across = range_of([low, high])
    up = range_of([float(_shares(kind).max()) for kind in kinds], zero=True)
    return [CosineHistogram(title, counts, across, up) for title, counts in named]


def _shares(counts: tuple[int, ...]) -> Floats:
    """In percent."""
    numbers = np.array(counts, dtype=np.float64)
    return np.asarray(100 * numbers / max(numbers.sum(), 1))


def _mean(counts: tuple[int, ...]) -> float:
    """Exact to half a bin, 0.0125."""
    middles = (_EDGES[:-1] + _EDGES[1:]) / 2
    return float(np.average(middles, weights=counts)) if sum(counts) else 0.0


def _outline(shares: Floats, axes: Frame) -> str:
    """The steps of a histogram as a path."""
    inside = np.flatnonzero((_EDGES[:-1] >= axes.x.low - 1e-9) & (_EDGES[1:] <= axes.x.high + 1e-9))
    path = [f"M{axes.x(float(_EDGES[inside[0]])):.1f} {axes.y(0):.1f}"]
    for index in inside:
        path.append(f"V{axes.y(float(shares[index])):.1f}H{axes.x(float(_EDGES[index + 1])):.1f}")
    return "".join(path) + f"V{axes.y(0):.1f}"


_STYLE = """
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
