"""Sources of rows with one interface: files, data sets of the package datasets, lists and dicts in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from gemel.errors import InputError
from gemel.files.records import Bad, Record, RecordFile


class DataSource(Protocol):
    """Named columns, row by row."""

    name: str
    where: str
    """Comes before the line or row number in messages."""

    def columns(self) -> list[str]: ...

    def records(self, names: Sequence[str]) -> Iterator[Record | Bad]: ...

    def class_names(self, column: str) -> tuple[str, ...] | None:
        """The names that integers in a label column stand for; None if unknown."""
        ...


def is_several(data: object) -> TypeGuard[Sequence[object]]:
    """True for a list of paths or data sets; a list of dicts is one data set."""
    return isinstance(data, list | tuple) and bool(data) and not isinstance(data[0], Mapping)


def source_of(data: object) -> DataSource:
    """The source for a path, a data set, a list of dicts, or a dict of columns."""
    if isinstance(data, str | Path):
        return FileSource(data)
    if isinstance(data, Mapping):
        splits = [str(key) for key, value in data.items() if hasattr(value, "column_names")]
        if splits:
            raise InputError(
                f"the data has the splits {', '.join(splits)}. Give one of them: data[{splits[0]!r}]"
            )
        return ColumnSource(data)
    if hasattr(data, "column_names") and hasattr(data, "__iter__"):
        return DatasetSource(data)
    if isinstance(data, list | tuple):
        return RowSource(data)
    raise InputError(
        f"training data must be a file, a data set with column names, a list of dicts or a dict of columns, "
        f"got {type(data).__name__}"
    )


class FileSource:
    """A TSV, CSV, JSONL, text or parquet file."""

    def __init__(self, path: str | Path) -> None:
        self._file = RecordFile(path)
        self.where = str(path)
        base = self._file.path.name.removesuffix(".gz")
        self.name = base.rsplit(".", 1)[0] or base

    def columns(self) -> list[str]:
        return self._file.columns()

    def records(self, names: Sequence[str]) -> Iterator[Record | Bad]:
        return self._file.records(names)

    def class_names(self, column: str) -> tuple[str, ...] | None:
        return None


class RowSource:
    """A list of dicts."""

    name = where = "data"

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def columns(self) -> list[str]:
        first = self._rows[0] if self._rows else None
        if not isinstance(first, Mapping):
            raise InputError("the data has no rows: expected a list of dicts, each with the same keys")
        return [str(name) for name in first]

    def records(self, names: Sequence[str]) -> Iterator[Record | Bad]:
        return _records(self._rows, names)

    def class_names(self, column: str) -> tuple[str, ...] | None:
        return None


class ColumnSource:
    """A dict of columns of one length."""

    name = where = "data"

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = columns
        lengths = {str(name): len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"the columns have different lengths: {lengths}")

    def columns(self) -> list[str]:
        return list(self._columns)

    def records(self, names: Sequence[str]) -> Iterator[Record | Bad]:
        rows = zip(*(self._columns[name] for name in names), strict=True)
        return (Record(f"row {number}", values) for number, values in enumerate(rows))

    def class_names(self, column: str) -> tuple[str, ...] | None:
        return None


class DatasetSource:
    """A Dataset or IterableDataset of the package datasets, used by its attributes: the package is not imported."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - used by its attributes only
        self._dataset = dataset
        self.name = self.where = str(
            getattr(getattr(dataset, "info", None), "dataset_name", None) or "dataset"
        )

    def columns(self) -> list[str]:
        names = self._dataset.column_names
        if names is None:  # a stream has none before its first row
            first: Mapping[str, Any] = next(iter(self._dataset), {})
            names = list(first)
        return list(names)

    def records(self, names: Sequence[str]) -> Iterator[Record | Bad]:
        wanted = list(dict.fromkeys(names))
        select = getattr(self._dataset, "select_columns", None)
        return _records(self._dataset if select is None else select(wanted), names)

    def class_names(self, column: str) -> tuple[str, ...] | None:
        features = getattr(self._dataset, "features", None) or {}
        names = getattr(features.get(column), "names", None)
        return tuple(names) if names else None


def _records(rows: Any, names: Sequence[str]) -> Iterator[Record | Bad]:  # noqa: ANN401 - anything that iterates
    for number, row in enumerate(rows):
        missing = [name for name in names if name not in row]
        if missing:
            yield Bad(f"row {number}", f"no field {missing[0]!r}")
        else:
            yield Record(f"row {number}", tuple(row[name] for name in names))
