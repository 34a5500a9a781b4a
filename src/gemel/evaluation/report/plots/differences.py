"""Two models compared: a dot a data set for the difference, its interval, and the line where there is none."""

from __future__ import annotations

from collections.abc import Sequence

from gemel.evaluation.report.markup import Markup, element
from gemel.evaluation.report.plots.axis import range_of, ruler
from gemel.evaluation.report.plots.svg import WIDTH, cut, drawing, line, whisker, words
from gemel.evaluation.report.sentences import comparison_sentence, place
from gemel.evaluation.samples import NamedComparison

_ROW, _RIGHT = 34, 48


def differences(comparisons: Sequence[NamedComparison], *, title: str) -> Markup:
    """All comparisons of the same two models. A hollow dot says that nobody can tell."""
    ends = [end for named in comparisons for end in (named.comparison.low, named.comparison.high)]
    scale = range_of(ends + [named.comparison.difference for named in comparisons], zero=True).to(
        8, WIDTH - _RIGHT
    )
    bottom = 4 + _ROW * len(comparisons)
    marks = [ruler(scale, 4, bottom), line(scale(0), 4, scale(0), bottom, "axis")]
    for row, named in enumerate(comparisons):
        found, top = named.comparison, 4 + row * _ROW
        marks.append(words(0, top + 11, cut(place(named), WIDTH), class_="strong halo-text"))
        marks.append(whisker(scale(found.low), scale(found.high), top + 22))
        marks.append(
            element(
                "circle",
                cx=scale(found.difference),
                cy=top + 22,
                r=4.5,
                class_="sure" if found.sure else "unsure",
            )
        )
        marks.append(words(WIDTH, top + 26, f"{found.difference:+.2f}".replace("-", "−"), anchor="end"))
    told = "; ".join(comparison_sentence(named) for named in comparisons)
    return drawing(title, told, bottom + 20, *marks)
