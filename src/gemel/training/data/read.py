"""The door of training data: anything that holds rows, checked and ready for an objective.

Sources -> examples, in one pass: every row is checked, its texts go to disk, bad rows are refused or counted.

The message for data that an objective cannot use: what is missing, and which objectives the columns fit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemel.errors import InputError
from gemel.files.lines import BAD_SHOWN, Bad
from gemel.files.records import Record
from gemel.training.data.columns import ColumnChoice, RowLayout, choose_columns, labelled_pair, layout_of
from gemel.training.data.labels import (
    UNLABELLED,
    BadValueError,
    LabelReader,
    Labels,
    open_reader,
    ordered,
    plain_name,
)
from gemel.training.data.ranking import RelationLabels, ranking_rows
from gemel.training.data.sources import DataSource, is_several, source_of
from gemel.training.data.store import TableExamples, TextWriter
from gemel.training.objectives.base import OBJECTIVE_FILES, Needs, objective_class


@dataclass(frozen=True)
class Reading:
    """How data are read: what the caller said about them."""

    needs: Needs
    columns: Mapping[str, str] | None = None
    skip_bad: bool = False
    score_range: tuple[float, float] | None = None
    labels: Sequence[str] | None = None
    objective: str | None = None


def open_examples(
    data: object,
    needs: Needs,
    *,
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    skip_bad: bool = False,
    score_range: tuple[float, float] | None = None,
    labels: Sequence[str] | None = None,
    objective: str | None = None,
) -> TableExamples:
    """One data set: a file, several files of one kind, a data set with columns, a list of dicts, a dict of columns.

    `columns`: role to name, where names are not recognised. `labels`: the classes that there are, in their order.
    `objective`: its name, for messages. Rows that cannot be used raise `file:line: reason` unless `skip_bad`.
    Of pairs with NLI labels read for ranking, those with a negative; `open_all` also gives the others.
    """
    how = Reading(needs, columns, skip_bad, score_range, labels, objective)
    return _open([source_of(part) for part in (data if is_several(data) else [data])], how, name)[0]


def open_all(
    data: object,
    needs: Needs,
    *,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    score_range: tuple[float, float] | None = None,
    labels: Sequence[str] | None = None,
    objective: str | None = None,
) -> list[TableExamples]:
    """Each of several data as a data set of its own, to be mixed; their classes have one order.

    Labelled pairs read for ranking become two: rows with a negative, and rows without.
    """
    how = Reading(needs, columns, skip_bad, score_range, labels, objective)
    found = [
        one for part in (data if is_several(data) else [data]) for one in _open([source_of(part)], how, None)
    ]
    if needs.label != "class":
        return found
    classes = labels or ordered({name for one in found for name in one.classes})
    return [one.with_classes(classes) for one in found]


def _open(sources: Sequence[DataSource], how: Reading, name: str | None) -> list[TableExamples]:
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    name = name or sources[0].name + more
    if labelled_pair(sources[0].columns(), how.needs, how.columns):
        return _ranking_from_pairs(sources, how, name)
    chosen = [_choose(source, how) for source in sources]
    first = chosen[0]
    layout = layout_of(first.choice.roles, first.first()[: len(first.choice.roles)])
    for part in chosen:
        if part.choice.roles != first.choice.roles:
            raise InputError(
                f"{part.source.where} has the columns {', '.join(part.choice.roles)}, but {first.source.where} "
                f"{', '.join(first.choice.roles)}. Open them as separate data sets"
            )
    reader = None
    if how.needs.label is not None and first.choice.label is not None:
        reader = open_reader(
            how.needs.label,
            names=first.source.class_names(first.choice.label),
            known=how.labels,
            score_range=how.score_range,
        )
    found = read_examples(chosen, layout, reader, skip_bad=how.skip_bad, name=name)
    return [replace(found, notes=(*_said(chosen), *found.notes))]


def _choose(source: DataSource, how: Reading) -> Chosen:
    columns = source.columns()
    choice = choose_columns(columns, how.needs, how.columns)
    if choice.missing:
        raise refuse_columns(source, how.needs, choice, how.objective)
    return Chosen(source, choice)


def _said(chosen: Sequence[Chosen]) -> tuple[str, ...]:
    """Which columns were taken, said once for files that agree."""
    return tuple(dict.fromkeys(f"columns: {part.choice.said()}" for part in chosen))


def _ranking_from_pairs(sources: Sequence[DataSource], how: Reading, name: str) -> list[TableExamples]:
    chosen = []
    for source in sources:
        columns = source.columns()
        pair = labelled_pair(columns, how.needs, how.columns)
        if pair is None:
            raise InputError(f"{source.where} has no label, but {name} has. Open them as separate data sets")
        chosen.append(Chosen(source, pair))
    where, label = ", ".join(source.where for source in sources), str(chosen[0].choice.label)
    reader = RelationLabels(sources[0].class_names(label))
    _check_relation(chosen[0], RelationLabels(sources[0].class_names(label)), how)
    layout = layout_of(("left", "right"), ())
    pairs = read_examples(chosen, layout, reader, skip_bad=how.skip_bad, name=name)
    found = ranking_rows(replace(pairs, notes=_said(chosen)), alone="negative" not in how.needs.texts)
    if how.needs.more != "negative" and "negative" not in how.needs.texts:
        found = [replace(one, cells=one.cells[:, :2], roles=one.roles[:2]) for one in found]
    if not found:
        raise InputError(
            f"{where}: no row for {', '.join(how.needs.texts)} in {len(pairs):,} labelled pairs. Rows need a positive "
            "(entailment, 1) and, where a negative is asked for, a contradiction (0) of the same first text"
        )
    return found


def _check_relation(part: Chosen, reader: RelationLabels, how: Reading) -> None:
    """Refuse labels of another kind before the first row is called bad for it."""
    values = part.first()
    if not values:
        return
    value = values[-1]
    try:
        reader.add(value)
    except BadValueError as error:
        if plain_name(value) in UNLABELLED:
            return
        fit = ", ".join(fitting_objectives(part.source))
        raise InputError(
            f"{part.source.where}: ranking takes pairs that belong together, and {error}. These objectives fit your "
            f"columns: {fit}. If all pairs belong together, say so with columns: anchor={part.choice.texts[0]}, "
            f"positive={part.choice.texts[1]}"
        ) from None


@dataclass(frozen=True, eq=False)
class Chosen:
    """A source, and the columns of it that are used."""

    source: DataSource
    choice: ColumnChoice

    def records(self) -> Iterator[Record | Bad]:
        return self.source.records(self.choice.columns)

    def first(self) -> tuple[Any, ...]:
        """The values of the first sound row; empty if there is none."""
        found = (record for record in self.records() if isinstance(record, Record))
        return next((record.values for record in found), ())


class BadRows:
    """Refuses a bad row, or counts it."""

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self.count = 0
        self.first: list[str] = []

    def add(self, message: str) -> None:
        if not self._skip:
            raise InputError(f"{message}. Mend the row, or leave out such rows with skip_bad (--skip-bad)")
        self.count += 1
        if len(self.first) < BAD_SHOWN:
            self.first.append(message)

    def check_that_some_are_good(self, where: str, good: int) -> None:
        if not good:
            shown = f"; the first bad one: {self.first[0]}" if self.first else ""
            raise InputError(f"{where}: no row that can be used ({self.count:,} bad rows{shown})")


def read_examples(
    chosen: Sequence[Chosen], layout: RowLayout, reader: LabelReader | None, *, skip_bad: bool, name: str
) -> TableExamples:
    """All rows of all sources as one data set."""
    texts, lengths, bad = TextWriter(), array("i"), BadRows(skip_bad)
    for part in chosen:
        where, used = part.source.where, len(part.choice.texts)
        for record in part.records():
            try:
                if isinstance(record, Bad):
                    raise BadValueError(record.reason)
                rows = layout.rows(record.values[:used])
                for row in rows:
                    raw = [text.encode("utf-8") for text in row]
                    if reader is not None:
                        reader.add(record.values[used])
                    texts.add(raw)
                    lengths.append(sum(map(len, row)))
            except BadValueError as error:
                bad.add(f"{where}:{record.place}: {error}")
            except UnicodeEncodeError as error:
                bad.add(f"{where}:{record.place}: half a character (a lone surrogate) at place {error.start}")
    where = ", ".join(part.source.where for part in chosen)
    bad.check_that_some_are_good(where, len(lengths))
    found = texts.done()
    labels = Labels(None) if reader is None else reader.done(where)
    return TableExamples(
        name=name,
        roles=layout.roles,
        texts=found,
        cells=np.arange(len(found), dtype=np.int64).reshape(len(lengths), len(layout.roles)),
        lengths=np.frombuffer(lengths, dtype=np.int32),
        labels=labels.values,
        classes=labels.classes,
        score_range=labels.range,
        notes=labels.notes,
        skipped=bad.count,
        bad=tuple(bad.first),
    )


def refuse_columns(
    source: DataSource, needs: Needs, choice: ColumnChoice, objective: str | None
) -> InputError:
    """The error for a source without the columns that are needed."""
    asked = f"objective {objective!r}" if objective else "the objective"
    fit = fitting_objectives(source)
    advice = f"These objectives fit your columns: {', '.join(fit)}." if fit else "No objective fits them."
    return InputError(
        f"{source.where}: {asked} needs columns {', '.join(needed(needs))}; the data has "
        f"{', '.join(source.columns())} (missing: {', '.join(choice.missing)}). {advice} "
        "If a column has another name, say so with columns (--column ROLE=NAME)"
    )


def needed(needs: Needs) -> list[str]:
    """The roles of the columns, the label at the end."""
    return [*needs.texts, *([str(needs.label)] if needs.label not in (None, "tokens") else [])]


def fitting_objectives(source: DataSource) -> list[str]:
    """Names of the objectives whose columns are all there, with labels of their kind in the first row."""
    return [name for name in OBJECTIVE_FILES if _fits(source, objective_class(name)().needs)]


def _fits(source: DataSource, needs: Needs) -> bool:
    columns = source.columns()
    pair = labelled_pair(columns, needs)
    if pair is not None:
        return _readable(RelationLabels(source.class_names(str(pair.label))), source, pair)
    choice = choose_columns(columns, needs)
    if choice.missing or needs.label is None or choice.label is None:
        return not choice.missing
    return _readable(open_reader(needs.label, names=source.class_names(choice.label)), source, choice)


def _readable(reader: Any, source: DataSource, choice: ColumnChoice) -> bool:  # noqa: ANN401 - any reader of labels
    for record in source.records(choice.columns):
        if isinstance(record, Record):
            try:
                reader.add(record.values[-1])
            except BadValueError:
                return False
            return True
    return False
