"""The message for data that an objective cannot use: what is missing, and which objectives the columns fit."""

from __future__ import annotations

from typing import Any

from gemel.errors import InputError
from gemel.objectives.table import OBJECTIVE_FILES, Needs, objective_class
from gemel.text.records import Record
from gemel.training.data.labels import BadValueError, open_reader
from gemel.training.data.related_pairs import RelationLabels
from gemel.training.data.roles import Choice, choose_columns, labelled_pair
from gemel.training.data.sources import Source


def refuse_columns(source: Source, needs: Needs, choice: Choice, objective: str | None) -> InputError:
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


def fitting_objectives(source: Source) -> list[str]:
    """Names of the objectives whose columns are all there, with labels of their kind in the first row."""
    return [name for name in OBJECTIVE_FILES if _fits(source, objective_class(name)().needs)]


def _fits(source: Source, needs: Needs) -> bool:
    columns = source.columns()
    pair = labelled_pair(columns, needs)
    if pair is not None:
        return _readable(RelationLabels(source.class_names(str(pair.label))), source, pair)
    choice = choose_columns(columns, needs)
    if choice.missing or needs.label is None or choice.label is None:
        return not choice.missing
    return _readable(open_reader(needs.label, names=source.class_names(choice.label)), source, choice)


def _readable(reader: Any, source: Source, choice: Choice) -> bool:  # noqa: ANN401 - any reader of labels
    for record in source.records(choice.columns):
        if isinstance(record, Record):
            try:
                reader.add(record.values[-1])
            except BadValueError:
                return False
            return True
    return False
