"""The door of training data: anything that holds rows, checked and ready for an objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemel.errors import InputError
from gemel.objectives.table import Needs
from gemel.training.data.class_names import UNLABELLED, ordered, plain_name
from gemel.training.data.fitting import fitting_objectives, refuse_columns
from gemel.training.data.labels import BadValueError, open_reader
from gemel.training.data.layout import layout_of
from gemel.training.data.reading import Chosen, read_examples
from gemel.training.data.related_pairs import RelationLabels, ranking_rows
from gemel.training.data.roles import choose_columns, labelled_pair
from gemel.training.data.sources import Source, is_several, source_of
from gemel.training.data.table import TableExamples


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


def _open(sources: Sequence[Source], how: Reading, name: str | None) -> list[TableExamples]:
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


def _choose(source: Source, how: Reading) -> Chosen:
    columns = source.columns()
    choice = choose_columns(columns, how.needs, how.columns)
    if choice.missing:
        raise refuse_columns(source, how.needs, choice, how.objective)
    return Chosen(source, choice)


def _said(chosen: Sequence[Chosen]) -> tuple[str, ...]:
    """Which columns were taken, said once for files that agree."""
    return tuple(dict.fromkeys(f"columns: {part.choice.said()}" for part in chosen))


def _ranking_from_pairs(sources: Sequence[Source], how: Reading, name: str) -> list[TableExamples]:
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
