"""Sources -> examples, in one pass: every row is checked, its texts go to disk, bad rows are refused or counted."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemel.errors import InputError
from gemel.text.records import Record
from gemel.text.rows import BAD_SHOWN, Bad
from gemel.training.data.labels import BadValueError, LabelReader, Labels
from gemel.training.data.layout import Layout
from gemel.training.data.roles import Choice
from gemel.training.data.sources import Source
from gemel.training.data.table import TableExamples
from gemel.training.data.texts import TextWriter


@dataclass(frozen=True, eq=False)
class Chosen:
    """A source, and the columns of it that are used."""

    source: Source
    choice: Choice

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
    chosen: Sequence[Chosen], layout: Layout, reader: LabelReader | None, *, skip_bad: bool, name: str
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
