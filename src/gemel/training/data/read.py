"""Read training data for an objective: files, Hugging Face data sets, rows or columns in memory.

One pass checks every row, writes its texts to disk, and refuses or counts bad rows. Data that an objective cannot use
is refused with the objectives that fit its columns. Labeled pairs become rows for ranking.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.files.records import Bad, Record
from gemel.files.rows import BAD_SHOWN
from gemel.training.data.columns import (
    ColumnChoice,
    DataSource,
    RowLayout,
    choose_columns,
    is_several,
    labeled_pair,
    layout_of,
    source_of,
)
from gemel.training.data.labels import (
    UNLABELED,
    BadValueError,
    LabelReader,
    Labels,
    RelationLabels,
    open_reader,
    ordered,
    plain_name,
)
from gemel.training.data.store import Examples, TextWriter
from gemel.training.objectives.base import OBJECTIVES, Needs


@dataclass(frozen=True)
class Reading:
    """How to read the data, as the caller specified."""

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
) -> Examples:
    """One data set: files of one kind, a data set with columns, a DataFrame, a list of rows, a dict of columns.

    `columns`: role to name, for unusual names. `labels`: all classes, in their order. `objective`: its name, for
    messages. Rows that cannot be used raise `file:line: reason` unless `skip_bad`. Of labeled pairs read for ranking,
    the rows with a negative; `open_all` also gives the others.
    """
    how = Reading(needs, columns, skip_bad, score_range, labels, objective)
    return _open([source_of(part, needs) for part in (data if is_several(data) else [data])], how, name)[0]


def open_all(
    data: object,
    needs: Needs,
    *,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    score_range: tuple[float, float] | None = None,
    labels: Sequence[str] | None = None,
    objective: str | None = None,
) -> list[Examples]:
    """A list of data sets, to be mixed in training; their classes have one order.

    Labeled pairs read for ranking become two: rows with a negative, and rows without.
    """
    how = Reading(needs, columns, skip_bad, score_range, labels, objective)
    datasets = [
        each
        for part in (data if is_several(data) else [data])
        for each in _open([source_of(part, needs)], how, None)
    ]
    if needs.label != "class":
        return datasets
    classes = labels or ordered({name for each in datasets for name in each.classes})
    return [each.with_classes(classes) for each in datasets]


def _open(sources: Sequence[DataSource], how: Reading, name: str | None) -> list[Examples]:
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    name = name or sources[0].name + more
    if labeled_pair(sources[0].columns, how.needs, how.columns):
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
            classes=how.labels,
            score_range=how.score_range,
        )
    examples = read_examples(chosen, layout, reader, skip_bad=how.skip_bad, name=name)
    return [replace(examples, notes=(*_column_notes(chosen), *examples.notes))]


def _choose(source: DataSource, how: Reading) -> Chosen:
    choice = choose_columns(source.columns, how.needs, how.columns)
    if choice.missing:
        raise refuse_columns(source, how.needs, choice, how.objective)
    return Chosen(source, choice)


def _column_notes(chosen: Sequence[Chosen]) -> tuple[str, ...]:
    """Which columns are used, once for files with the same columns."""
    return tuple(dict.fromkeys(f"columns: {part.choice.summary()}" for part in chosen))


def _ranking_from_pairs(sources: Sequence[DataSource], how: Reading, name: str) -> list[Examples]:
    chosen = []
    for source in sources:
        pair = labeled_pair(source.columns, how.needs, how.columns)
        if pair is None:
            raise InputError(f"{source.where} has no label, but {name} has. Open them as separate data sets")
        chosen.append(Chosen(source, pair))
    where, label = ", ".join(source.where for source in sources), str(chosen[0].choice.label)
    reader = RelationLabels(sources[0].class_names(label))
    _check_relation(chosen[0], RelationLabels(sources[0].class_names(label)), how)
    layout = layout_of(("left", "right"), ())
    pairs = read_examples(chosen, layout, reader, skip_bad=how.skip_bad, name=name)
    notes = _column_notes(chosen)
    datasets = ranking_rows(replace(pairs, notes=notes), alone="negative" not in how.needs.texts)
    if how.needs.more != "negative" and "negative" not in how.needs.texts:
        datasets = [replace(each, cells=each.cells[:, :2], roles=each.roles[:2]) for each in datasets]
    if not datasets:
        raise InputError(
            f"{where}: no row for {', '.join(how.needs.texts)} in {len(pairs):,} labeled pairs. Rows need a positive "
            "(entailment, 1) and, if the objective needs a negative, a contradiction (0) of the same first text"
        )
    return datasets


def _check_relation(part: Chosen, reader: RelationLabels, how: Reading) -> None:
    """Refuse labels of another kind, instead of calling the first row bad."""
    values = part.first()
    if not values:
        return
    value = values[-1]
    try:
        reader.add(value)
    except BadValueError as error:
        if plain_name(value) in UNLABELED:
            return
        fit = ", ".join(fitting_objectives(part.source))
        raise InputError(
            f"{part.source.where}: ranking takes pairs that belong together, and {error}. These objectives fit your "
            f"columns: {fit}. If all pairs belong together, declare it with columns: anchor={part.choice.texts[0]}, "
            f"positive={part.choice.texts[1]}"
        ) from None


@dataclass(frozen=True, eq=False)
class Chosen:
    """A source, and its columns that are used."""

    source: DataSource
    choice: ColumnChoice

    def records(self) -> Iterator[Record | Bad]:
        return self.source.records(self.choice.columns)

    def first(self) -> tuple[Any, ...]:
        """The values of the first good row; empty if there is none."""
        records = (record for record in self.records() if isinstance(record, Record))
        return next((record.values for record in records), ())


class BadRows:
    """Refuses a bad row, or counts it."""

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self.count = 0
        self.first: list[str] = []

    def add(self, message: str) -> None:
        if not self._skip:
            raise InputError(f"{message}. Fix the row, or leave out bad rows with skip_bad (--skip-bad)")
        self.count += 1
        if len(self.first) < BAD_SHOWN:
            self.first.append(message)

    def check_some_good(self, where: str, good: int) -> None:
        if not good:
            shown = f"; the first bad one: {self.first[0]}" if self.first else ""
            raise InputError(f"{where}: no usable row ({self.count:,} bad rows{shown})")


def read_examples(
    chosen: Sequence[Chosen], layout: RowLayout, reader: LabelReader | None, *, skip_bad: bool, name: str
) -> Examples:
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
                bad.add(f"{where}:{record.line}: {error}")
            except UnicodeEncodeError as error:
                bad.add(
                    f"{where}:{record.line}: half a character (a lone surrogate) at position {error.start}"
                )
    where = ", ".join(part.source.where for part in chosen)
    bad.check_some_good(where, len(lengths))
    stored = texts.done()
    labels = Labels(None) if reader is None else reader.done(where)
    return Examples(
        name=name,
        roles=layout.roles,
        texts=stored,
        cells=np.arange(len(stored), dtype=np.int64).reshape(len(lengths), len(layout.roles)),
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
    subject = f"objective {objective!r}" if objective else "the objective"
    fit = fitting_objectives(source)
    advice = f"These objectives fit your columns: {', '.join(fit)}." if fit else "No objective fits them."
    return InputError(
        f"{source.where}: {subject} needs columns {', '.join(_needed(needs))}; the data has "
        f"{', '.join(source.columns)} (missing: {', '.join(choice.missing)}). {advice} "
        "If a column has another name, give it with columns (--column ROLE=NAME)",
        code="GEM-501",
    )


def _needed(needs: Needs) -> list[str]:
    """The roles of the columns, the label at the end."""
    return [*needs.texts, *([str(needs.label)] if needs.labeled else [])]


def fitting_objectives(source: DataSource) -> list[str]:
    """Names of the objectives whose columns the source has, with labels of their kind in the first row."""
    return [name for name in OBJECTIVES if _fits(source, OBJECTIVES[name]().needs)]


def _fits(source: DataSource, needs: Needs) -> bool:
    pair = labeled_pair(source.columns, needs)
    if pair is not None:
        return _readable(RelationLabels(source.class_names(str(pair.label))), Chosen(source, pair))
    choice = choose_columns(source.columns, needs)
    if choice.missing or needs.label is None or choice.label is None:
        return not choice.missing
    reader = open_reader(needs.label, names=source.class_names(choice.label))
    return _readable(reader, Chosen(source, choice))


def _readable(reader: LabelReader, part: Chosen) -> bool:
    """Whether the first row has a label for this reader."""
    values = part.first()
    try:
        reader.add(values[-1] if values else None)
    except BadValueError:
        return False
    return bool(values)


def ranking_rows(pairs: Examples, *, alone: bool) -> list[Examples]:
    """Labeled pairs as (anchor, positive, negative); `alone`: also (anchor, positive) for anchors without a negative.

    Each positive makes one row: what an anchor entails. What contradicts it is a negative; the negatives of an anchor
    are assigned to its positives in turn, in the order of the data.
    """
    assert pairs.labels is not None
    positive = np.flatnonzero(pairs.labels == 1)
    negative = np.flatnonzero(pairs.labels == -1)
    assigned = _assign(pairs.hashes[:, 0], positive, negative)
    both, without = assigned >= 0, assigned < 0
    datasets = []
    if both.any():
        rows = positive[both]
        cells = np.column_stack([pairs.cells[rows], pairs.cells[assigned[both], 1]])
        datasets.append(_ranking_part(pairs, cells, ("anchor", "positive", "negative"), "with a negative"))
    if alone and without.any():
        cells = pairs.cells[positive[without]]
        datasets.append(_ranking_part(pairs, cells, ("anchor", "positive"), "without a negative"))
    return datasets


def _assign(
    anchors: NDArray[np.uint64], positive: NDArray[np.int64], negative: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each positive row, a negative row of the same anchor, or -1."""
    assigned = np.full(len(positive), -1, dtype=np.int64)
    if not len(negative):
        return assigned
    order = negative[np.argsort(anchors[negative], kind="stable")]
    keys, starts, counts = np.unique(anchors[order], return_index=True, return_counts=True)
    by_anchor = np.argsort(anchors[positive], kind="stable")
    wanted = anchors[positive][by_anchor]
    turn = np.arange(len(wanted)) - np.searchsorted(
        wanted, wanted
    )  # 0, 1, 2 among the positives of one anchor
    group = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    chosen = order[starts[group] + turn % counts[group]]
    assigned[by_anchor] = np.where(keys[group] == wanted, chosen, -1)
    return assigned


def _ranking_part(pairs: Examples, cells: NDArray[np.int64], roles: tuple[str, ...], what: str) -> Examples:
    sizes = np.diff(pairs.texts.ends)  # bytes, close enough to characters for grouping by length
    note = f"{len(cells):,} rows {what} from {len(pairs):,} labeled pairs"
    return replace(
        pairs,
        name=pairs.name if len(roles) == 3 else f"{pairs.name}-pairs",
        roles=roles,
        cells=cells,
        lengths=sizes[cells].sum(axis=1).astype(np.int32),
        labels=None,
        notes=(*pairs.notes, note),
    )
