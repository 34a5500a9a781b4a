"""Tables of the page: scores, data, settings, and what the doctor found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gemel.evaluation.report.markup import Markup, element, join
from gemel.evaluation.report.tables import score_cell
from gemel.training.options import TrainOptions
from gemel.training.summary import DataSet, Measured, Summary, changed_options, said

_LEVELS = ("error", "warning", "note")


def score_table(measured: Sequence[Measured]) -> Markup:
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
