"""Sources of rows (files, data sets of the package datasets, lists and dicts in memory) and the roles of their columns.

A column has the role (anchor, positive, label, ...) that the caller gives it, else by the names that data sets use.
`RowLayout` turns the values of a record into texts: a list of positives becomes rows, a list of negatives columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from gemel.errors import InputError
from gemel.files.records import Bad, Record, RecordFile, kind_of, listed
from gemel.training.data.labels import BadValueError
from gemel.training.objectives.base import Needs


@dataclass(frozen=True, eq=False)
class DataSource:
    """Named columns, row by row."""

    name: str
    where: str
    """Comes before the line or row number in messages."""
    columns: list[str]
    records: Callable[[Sequence[str]], Iterator[Record | Bad]]
    """The rows, with the values of these columns."""
    class_names: Callable[[str], tuple[str, ...] | None] = lambda column: None
    """The names that integers in a label column stand for; None if unknown."""


def is_several(data: object) -> TypeGuard[Sequence[object]]:
    """True for a list of paths or data sets; a list of dicts or of tuples of texts is one data set."""
    if not isinstance(data, list | tuple) or not data:
        return False
    return not isinstance(data[0], Mapping) and not _is_row(data[0])


def _is_row(value: object) -> TypeGuard[Sequence[Any]]:
    """True for ("a text", "another", 0.8): texts and labels by their positions."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str)


def source_of(data: object, needs: Needs | None = None) -> DataSource:
    """The source for a path, a data set, a DataFrame, a list of dicts or tuples, or a dict of columns.

    `needs`: what the positions in a tuple mean. A source stays as it is.
    """
    if isinstance(data, DataSource):
        return data
    if isinstance(data, str | Path):
        file = RecordFile(data)
        base = file.path.name.removesuffix(".gz")
        return DataSource(base.rsplit(".", 1)[0] or base, str(data), file.columns(), file.records)
    if isinstance(data, Mapping):
        return _column_source(data)
    if hasattr(data, "columns") and hasattr(data, "shape"):  # of pandas, polars or pyarrow
        return _column_source(_frame_columns(data))
    if hasattr(data, "column_names") and hasattr(data, "__iter__"):
        return _dataset_source(data)
    if isinstance(data, list | tuple):
        if data and _is_row(data[0]):
            return _tuple_source(data, needs or Needs(texts=("left", "right")))
        if not data or not isinstance(data[0], Mapping):
            raise InputError(
                "the data has no rows: expected a list of dicts, each with the same keys, or of tuples of texts"
            )
        return DataSource(
            "data", "data", [str(name) for name in data[0]], lambda names: _records(data, names)
        )
    raise InputError(
        f"training data must be a file, a data set with column names, a DataFrame, a list of dicts or tuples, or a "
        f"dict of columns, got {type(data).__name__}"
    )


def _frame_columns(frame: Any) -> dict[str, list[Any]]:  # noqa: ANN401 - used by its attributes only
    """The columns of a DataFrame or table as lists of plain Python values."""
    names = [str(name) for name in getattr(frame, "column_names", frame.columns)]
    columns = (frame[name] for name in getattr(frame, "column_names", frame.columns))
    return {
        name: column.to_pylist() if hasattr(column, "to_pylist") else _as_list(column)
        for name, column in zip(names, columns, strict=True)
    }


def _as_list(column: Any) -> list[Any]:  # noqa: ANN401 - a column of pandas or polars
    return list(column.tolist() if hasattr(column, "tolist") else column.to_list())


def _tuple_source(rows: Sequence[Any], needs: Needs) -> DataSource:
    """Rows of texts and a label by their positions, as the objective needs them: (anchor, positive, negative, ...)."""
    columns = _positions(rows[0], needs)

    def records(names: Sequence[str]) -> Iterator[Record | Bad]:
        chosen = [columns.index(name) for name in names]
        for number, row in enumerate(rows):
            if isinstance(row, list | tuple) and len(row) == len(columns):
                yield Record(f"row {number}", tuple(row[i] for i in chosen))
            else:
                size = f"{len(row)} values" if isinstance(row, list | tuple) else kind_of(row)
                yield Bad(f"row {number}", f"{size}, but the first row has {len(columns)} values")

    return DataSource("data", "data", columns, records)


def _positions(row: Sequence[Any], needs: Needs) -> list[str]:
    """The names of the columns of a tuple."""
    labeled = needs.labeled
    if not labeled and len(row) == 3 and not isinstance(row[-1], str | list | tuple):
        return ["left", "right", "label"]  # whether the two belong together
    texts = list(needs.texts)
    extra = len(row) - len(texts) - labeled
    if extra > 0 and needs.more:
        texts += [f"{needs.more}{number + 1}" for number in range(extra)]
    names = [*texts, *(["label"] if labeled else [])]
    if len(names) != len(row):
        raise InputError(
            f"a row has {len(row)} values, but the objective needs {len(names)}: {', '.join(names)}. "
            "Give rows of that form, or dicts with names"
        )
    return names


def _column_source(columns: Mapping[str, Any]) -> DataSource:
    """A dict of columns of one length."""
    splits = [str(key) for key, value in columns.items() if hasattr(value, "column_names")]
    if splits:
        raise InputError(
            f"the data has the splits {', '.join(splits)}. Give one of them: data[{splits[0]!r}]"
        )
    lengths = {str(name): len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"the columns have different lengths: {lengths}")

    def records(names: Sequence[str]) -> Iterator[Record | Bad]:
        rows = zip(*(columns[name] for name in names), strict=True)
        return (Record(f"row {number}", values) for number, values in enumerate(rows))

    return DataSource("data", "data", list(columns), records)


def _dataset_source(dataset: Any) -> DataSource:  # noqa: ANN401 - used by its attributes only
    """A Dataset or IterableDataset of the package datasets, used by its attributes: the package is not imported."""
    name = str(getattr(getattr(dataset, "info", None), "dataset_name", None) or "dataset")
    columns = dataset.column_names
    if columns is None:  # a stream has none before its first row
        columns = next(iter(dataset), {})

    def records(names: Sequence[str]) -> Iterator[Record | Bad]:
        select = getattr(dataset, "select_columns", None)
        return _records(dataset if select is None else select(list(dict.fromkeys(names))), names)

    def class_names(column: str) -> tuple[str, ...] | None:
        features = getattr(dataset, "features", None) or {}
        names = getattr(features.get(column), "names", None)
        return tuple(names) if names else None

    return DataSource(name, name, list(columns), records, class_names)


def _records(rows: Iterable[Any], names: Sequence[str]) -> Iterator[Record | Bad]:
    for number, row in enumerate(rows):
        missing = [name for name in names if name not in row]
        if missing:
            yield Bad(f"row {number}", f"no field {missing[0]!r}")
        else:
            yield Record(f"row {number}", tuple(row[name] for name in names))


PAIRS = (
    ("left", "right"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("query", "document"),
    ("query", "passage"),
    ("question", "answer"),
    ("question", "answer_sentence"),
    ("title", "body"),
)
"""Names of two texts that belong together."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "anchor": ("anchor", "query", "question"),
    "positive": ("positive", "pos", "document", "passage", "answer", "answer_sentence"),
    "negative": ("negative", "neg", "hard_negative"),
    "text": ("text", "sentence", "source", "content", "caption", "caption1"),
    "translation": ("translation", "target"),
}

LABELS: Mapping[str, tuple[str, ...]] = {
    "class": ("label", "gold_label", "labels", "class", "relation", "entailment", "category"),
    "score": ("score", "similarity", "similarity_score", "relatedness", "relatedness_score", "label"),
    "binary": ("label", "is_duplicate", "is_paraphrase", "duplicate", "quality", "score"),
    "group": ("group", "label", "class", "category", "cluster", "intent"),
    "margin": ("margin", "score", "label"),
    "scores": ("scores", "teacher", "label"),
    "vector": ("vector", "embedding", "teacher", "label"),
}

_LANGUAGE = re.compile(
    "ar|bg|ca|cs|da|de|el|en|es|et|eu|fa|fi|fr|he|hi|hr|hu|id|it|ja|ko|lt|lv|mk|mr|ms|nl|no|pl"
    "|pt|ro|ru|sk|sl|sq|sr|sv|th|tr|uk|ur|vi|zh"
)

_WORDS = ("id", "no")  # Indonesian and Norwegian, and the usual names of a number in front of a row

_PAIRED = ("left", "right", "anchor", "positive")


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of a source, by role."""

    texts: tuple[str, ...] = ()
    """Names of columns, in the order of `roles`."""
    roles: tuple[str, ...] = ()
    label: str | None = None
    missing: tuple[str, ...] = ()
    """Roles without a column."""
    named: bool = True
    """False: anchor and positive were not named so; a label may say whether they belong together."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.texts if self.label is None else (*self.texts, self.label)

    def summary(self) -> str:
        """`left = sentence1, right = sentence2, label = score`."""
        roles = (*self.roles, "label")
        return ", ".join(f"{role} = {name}" for role, name in zip(roles, self.columns, strict=False))


def choose_columns(
    columns: Sequence[str], needs: Needs, given: Mapping[str, str] | None = None
) -> ColumnChoice:
    """A column for each role that the objective needs, and all columns of the role that may repeat."""
    finder = _ColumnFinder(columns, dict(given or {}))
    texts = finder.texts(needs.texts)
    extra = finder.numbered(needs.more) if needs.more else []
    label = None
    missing = [role for role in needs.texts if role not in texts]
    if needs.labeled:
        label = finder.label(str(needs.label))
        missing += [] if label else [str(needs.label)]
    present = [role for role in needs.texts if role in texts]
    return ColumnChoice(
        texts=(*(texts[role] for role in present), *extra),
        roles=(*present, *[needs.more or ""] * len(extra)),
        label=label,
        missing=tuple(missing),
        named="positive" in (given or {}) or texts.get("positive", "pos").lower() in ("positive", "pos"),
    )


def labeled_pair(
    columns: Sequence[str], needs: Needs, given: Mapping[str, str] | None = None
) -> ColumnChoice | None:
    """The columns of labeled pairs, for an objective that needs anchors and positives: the label says which they are.

    None: the columns are named anchor and positive, or there is no label, or the objective needs other columns.
    """
    if needs.labeled or needs.texts[:2] != ("anchor", "positive"):
        return None
    choice = choose_columns(columns, needs, given)
    if "negative" in choice.roles or (choice.named and not {"anchor", "positive"} & set(choice.missing)):
        return None
    pair = choose_columns(columns, Needs(texts=("left", "right")), given)
    finder = _ColumnFinder(columns, dict(given or {}))
    label = next((name for kind in ("class", "binary", "score") if (name := finder.label(kind))), None)
    return None if pair.missing or label is None else replace(pair, label=label)


class _ColumnFinder:
    """The columns without a role so far, and the names that the caller gave."""

    def __init__(self, columns: Sequence[str], given: dict[str, str]) -> None:
        self._given = given
        self._free: dict[str, str] = {}
        for name in columns:
            self._free.setdefault(name.strip().lower(), name)
        names = [name for name in self._free if _LANGUAGE.fullmatch(name) and name not in _WORDS]
        self._languages_too = set(list(self._free)[1:]) & set(_WORDS) if names else set()
        for role, name in given.items():
            if not re.fullmatch(r"(left|right|label|" + "|".join([*NAMES, *LABELS]) + r")[_-]?\d*", role):
                roles = ", ".join(dict.fromkeys(["left", "right", *NAMES, "label"]))
                raise InputError(f"unknown role {role!r} for the column {name!r}. Known: {roles}")
            if name not in columns:
                raise InputError(
                    f"no column {name!r} for {role}. Columns: {listed(list(columns))}", code="GEM-501"
                )

    def texts(self, roles: Sequence[str]) -> dict[str, str]:
        """Role to column, for the roles that have one."""
        taken = {role: self._take(self._given[role]) for role in roles if role in self._given}
        for role in roles:
            names = [role, *NAMES.get(role, ())]
            if role == "negative":
                names += [f"{name}{sign}1" for name in names for sign in ("", "_", "-")]
            name = self._first(names)
            if role not in taken and name:
                taken[role] = self._take(name)
        pair = [role for role in roles if role in _PAIRED]
        if len(pair) == 2 and not any(role in taken for role in pair):
            taken |= self._pair(pair)
        elif "right" in roles and "left" in taken and "right" not in taken:
            name = self._first([right for _, right in PAIRS])
            taken |= {"right": self._take(name)} if name else {}
        if list(roles) == ["text"] and not taken:
            taken |= self._only_text()
        return taken

    def _pair(self, roles: Sequence[str]) -> dict[str, str]:
        for one, other in PAIRS:
            if one in self._free and other in self._free:
                return {roles[0]: self._take(self._free[one]), roles[1]: self._take(self._free[other])}
        if roles[0] != "anchor":
            return {}
        captions = [self._free[name] for name in self._free if re.fullmatch(r"caption_?\d+", name)]
        same = self._languages() or captions
        return (
            {role: self._take(name) for role, name in zip(roles, same, strict=False)} if len(same) > 1 else {}
        )

    def _only_text(self) -> dict[str, str]:
        languages = self._languages()
        if languages:
            return {"text": self._take(languages[0])}
        return {"text": self._take(*self._free.values())} if len(self._free) == 1 else {}

    def _languages(self) -> list[str]:
        """Columns that are named by language codes, English first, if there are two or more."""
        columns = self._language_columns()
        columns.sort(key=lambda name: name.strip().lower() != "en")
        return columns if len(columns) > 1 else []

    def _language_columns(self) -> list[str]:
        """`id` and `no` are languages only next to another one, and not as the first column."""
        names = [name for name in self._free if _LANGUAGE.fullmatch(name)]
        return [self._free[name] for name in names if name not in _WORDS or name in self._languages_too]

    def numbered(self, role: str) -> list[str]:
        """The further columns of a role: negative, negative1, negative_2, ... by number."""
        given = [name for key, name in self._given.items() if re.fullmatch(rf"{role}[_-]?\d*", key)]
        if given:
            return [self._take(name) for name in given if name in self._free.values()]
        pattern = re.compile(rf"(?:{'|'.join(NAMES.get(role, (role,)))})s?[_-]?(\d*)")
        hits = [(match, name) for name in self._free if (match := pattern.fullmatch(name))]
        hits.sort(key=lambda hit: int(hit[0].group(1) or 0))
        names = [self._free[name] for _, name in hits]
        if role == "translation" and not names:
            names = self._language_columns()
        return [self._take(name) for name in names]

    def label(self, kind: str) -> str | None:
        given = self._given.get("label", self._given.get(kind))
        return given or self._first(LABELS[kind])

    def _first(self, names: Iterable[str]) -> str | None:
        return next((self._free[name] for name in names if name in self._free), None)

    def _take(self, name: str) -> str:
        self._free.pop(name.strip().lower(), None)
        return name


@dataclass(frozen=True)
class RowLayout:
    """The roles of the texts of every row, and how many texts each column gives."""

    names: tuple[str, ...]
    """The columns' roles."""
    widths: tuple[int, ...]
    """Texts per row of each column: 1, or the length of the list in the first row."""

    @property
    def plain(self) -> bool:
        """Each column gives one text."""
        return set(self.widths) == {1}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role, width in zip(self.names, self.widths, strict=True) for _ in range(width))

    def rows(self, values: Sequence[Any]) -> list[Sequence[str]]:
        """The rows of one record: one, or one per text in a list of positives."""
        if self.plain and all(type(value) is str for value in values):
            return [values]
        rows: list[list[str]] = [[]]
        for role, width, value in zip(self.names, self.widths, values, strict=True):
            texts = _texts(role, value)
            if role == "positive":
                rows = [[*row, text] for row in rows for text in texts]
            elif len(texts) < width:
                raise BadValueError(f"{len(texts)} texts in {role!r}, but the first row has {width}")
            else:
                rows = [[*row, *texts[:width]] for row in rows]
        return list(rows)


def layout_of(roles: tuple[str, ...], first: Sequence[Any]) -> RowLayout:
    """The layout, by the values of the first row."""
    lists = [
        len(value) if isinstance(value, list | tuple) and role != "positive" else 1
        for role, value in zip(roles, first, strict=False)
    ]
    return RowLayout(roles, tuple(max(1, width) for width in lists) if lists else (1,) * len(roles))


def _texts(role: str, value: Any) -> list[str]:  # noqa: ANN401 - any value in the data
    texts = list(value) if isinstance(value, list | tuple) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise BadValueError(f"{role!r} must be a string, got {kind_of(text)}")
    if not texts:
        raise BadValueError(f"{role!r} is an empty list")
    return texts
