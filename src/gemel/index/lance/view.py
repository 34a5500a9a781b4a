"""One version of a table in memory: ids, parts and fields of all rows. Vectors and texts stay on disk.

A position counts the rows of all fragments as they were written, deleted ones included. So a deletion changes no
position, and a new version reads only the fragments that it does not share with the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.fields import count_values, in_utc
from gemel.index.lance.columns import column_of, header_of, indices, mask
from gemel.index.port import LISTS, Count, FieldValue, Header
from gemel.index.where import Condition

if TYPE_CHECKING:
    import pyarrow as pa

Positions = NDArray[np.int64]
_CELLS = 32  # values up to which they are read one by one; more are taken together


@dataclass(frozen=True, eq=False)
class FragmentRows:
    """The rows of one fragment."""

    number: int
    files: tuple[str, ...]
    """An added column is a further file; so equal files mean equal columns."""
    deletions: str | None
    rows: int
    ids: pa.Array
    part: NDArray[np.int32]
    stamp: NDArray[np.int64]
    """A number that identifies each row in all versions."""
    fields: Mapping[str, pa.Array]
    live: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class View:
    """All fragments of one version, in their order."""

    version: int
    header: Header
    fragments: tuple[FragmentRows, ...]
    open: Callable[[], Any]
    """This version as Lance gives it."""
    _last: dict[str, tuple[tuple[str, ...], Positions]] = field(default_factory=dict)
    """The ids of the last lookup, and their positions."""

    @cached_property
    def dataset(self) -> Any:  # noqa: ANN401 - lance has no types
        """For what is not in the view; a saved view opens it here, at the first use."""
        return self.open()

    @property
    def opened(self) -> bool:
        """Lance has opened this version."""
        return "dataset" in vars(self)

    @cached_property
    def starts(self) -> Positions:
        """The position of each fragment's first row; at the end, the number of rows."""
        return np.concatenate([[0], np.cumsum([fragment.rows for fragment in self.fragments])]).astype(
            np.int64
        )

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        return _joined([fragment.live for fragment in self.fragments], np.bool_)

    @cached_property
    def stamp(self) -> NDArray[np.int64]:
        return _joined([fragment.stamp for fragment in self.fragments], np.int64)

    @cached_property
    def part(self) -> NDArray[np.int32]:
        return _joined([fragment.part for fragment in self.fragments], np.int32)

    @cached_property
    def passages(self) -> int:
        return int(np.count_nonzero(self.live))

    def count(self, where: Condition | None) -> Count:
        chosen = self.live if where is None else self.meeting(where)
        return Count(int(np.count_nonzero(chosen & (self.part == 0))), int(np.count_nonzero(chosen)))

    def meeting(self, where: Condition) -> NDArray[np.bool_]:
        """(positions,) live rows that meet the condition."""
        if not self.fragments:
            return self.live
        return np.asarray(mask(where, self.columns), dtype=np.bool_) & self.live

    def values(self, field: str, where: Condition | None) -> dict[FieldValue, int]:
        """How many documents have each value of the field."""
        import pyarrow as pa

        if not self.fragments:
            return {}
        chosen = (self.live if where is None else self.meeting(where)) & (self.part == 0)
        column, kind = self.columns[field].filter(pa.array(chosen)), self.header.fields[field]
        if kind in LISTS:
            return count_values(value for chunk in column.chunks for value in in_utc(chunk.to_pylist(), kind))
        counted = column.value_counts()
        counts: dict[FieldValue, int] = {}
        values = in_utc(counted.field("values").to_pylist(), kind)
        for value, count in zip(values, counted.field("counts").to_pylist(), strict=True):
            counts[value] = counts.get(value, 0) + count  # 0.0 and -0.0 are equal
        return counts

    @cached_property
    def columns(self) -> Mapping[str, pa.ChunkedArray]:
        """The columns for conditions, by field name."""
        import pyarrow as pa

        out = {
            name: pa.chunked_array([fragment.fields[name] for fragment in self.fragments])
            for name in self.header.fields
        }
        return out | {"id": self.id_column}

    @cached_property
    def id_column(self) -> pa.ChunkedArray:
        import pyarrow as pa

        return pa.chunked_array([fragment.ids for fragment in self.fragments], pa.string())

    def of_ids(self, ids: Sequence[str]) -> Positions:
        """The live passages of these documents, ascending by position."""
        import pyarrow as pa
        import pyarrow.compute as pc

        named = tuple(ids)
        last = self._last.get("ids")  # an `add` looks them up three times
        if last is not None and last[0] == named:
            return last[1]
        wanted = pa.array(sorted(set(ids)), pa.string())
        inside = [
            pc.is_in(fragment.ids, value_set=wanted).to_numpy(zero_copy_only=False)
            for fragment in self.fragments
        ]
        found = np.flatnonzero(_joined(inside, np.bool_) & self.live)
        self._last["ids"] = named, found
        return found

    def by_id(self, after: str | None, where: Condition | None = None) -> tuple[Positions, NDArray[np.int64]]:
        """The live passages of documents with greater ids, ascending by id and part; and where each document ends."""
        import pyarrow as pa
        import pyarrow.compute as pc

        live = self.live if where is None else self.meeting(where)
        if after is not None and self.fragments:
            live = live & pc.greater(self.id_column, pa.scalar(after)).to_numpy()
        position = np.flatnonzero(live)
        ids = self.id_column.take(pa.array(position))
        table = pa.table({"id": ids, "part": self.part[position]})
        order = pc.sort_indices(table, sort_keys=[("id", "ascending"), ("part", "ascending")]).to_numpy()
        position = position[order]
        first = np.flatnonzero(self.part[position] == 0)
        return position, np.append(first[1:], len(position)) if len(first) else first

    def take(self, positions: Positions, columns: Sequence[str] | None) -> pa.Table:
        """These rows in this order, read from the table; None: all columns."""
        names = list(columns) if columns is not None else self.dataset.schema.names
        if not len(positions):
            return self.dataset.schema.empty_table().select(names)
        return self.dataset._take_rows(self.addresses(positions).tolist(), columns=names)

    def _cells(self, positions: Positions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each position the index of its fragment, and the row in it."""
        owner = np.searchsorted(self.starts, positions, side="right") - 1
        return owner, positions - self.starts[owner]

    def addresses(self, positions: Positions) -> NDArray[np.uint64]:
        """Lance's addresses of these rows: fragment and row in one number."""
        if not len(positions):
            return np.empty(0, dtype=np.uint64)
        numbers = np.array([fragment.number for fragment in self.fragments], dtype=np.uint64)
        owner, rows = self._cells(positions)
        address: NDArray[np.uint64] = (numbers[owner] << np.uint64(32)) | rows.astype(np.uint64)
        return address

    def positions(self, addresses: NDArray[np.uint64]) -> Positions:
        """The positions of rows by Lance's addresses: the inverse of `addresses`."""
        numbers = [fragment.number for fragment in self.fragments]
        starts = np.zeros(max(numbers, default=0) + 1, dtype=np.int64)
        starts[numbers] = self.starts[:-1]
        rows: Positions = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return starts[(addresses >> np.uint64(32)).astype(np.int64)] + rows

    def by_fragment(self, positions: Positions) -> Iterator[tuple[int, list[int]]]:
        """The fragments that hold these rows, and which of their rows."""
        owner, rows = self._cells(positions)
        for number in np.unique(owner).tolist():
            yield self.fragments[number].number, rows[owner == number].tolist()

    def ids_at(self, positions: Positions) -> list[Any]:
        return self._gathered([fragment.ids for fragment in self.fragments], positions)

    def fields_at(self, positions: Positions) -> dict[str, list[FieldValue]]:
        return {
            name: in_utc(
                self._gathered([fragment.fields[name] for fragment in self.fragments], positions), kind
            )
            for name, kind in self.header.fields.items()
        }

    def _gathered(self, arrays: Sequence[pa.Array], positions: Positions) -> list[Any]:
        """The values at these positions, by fragment: Arrow would join all fragments to take some of their rows."""
        owner, rows = self._cells(positions)
        if len(positions) <= _CELLS:
            return [arrays[n][row].as_py() for n, row in zip(owner.tolist(), rows.tolist(), strict=True)]
        out: list[Any] = [None] * len(positions)
        for number in np.unique(owner).tolist():
            at = np.flatnonzero(owner == number)
            values = arrays[number].take(indices(rows[at])).to_pylist()
            for position, value in zip(at.tolist(), values, strict=True):
                out[position] = value
        return out


def read_view(dataset: Any, before: View | None, location: str) -> View:  # noqa: ANN401 - lance has no types
    """The view of this version; fragments that it shares with the view `before` are taken from there."""
    header = header_of(dataset.schema, location)
    sources = {source.fragment_id: source for source in dataset.get_fragments()}
    old = {fragment.number: fragment for fragment in before.fragments} if before is not None else {}
    fragments: dict[int, FragmentRows] = {}
    stale: list[Any] = []
    for number, source in sources.items():
        files = tuple(str(file.path) for file in source.metadata.files)
        fragment = old.get(number)
        if fragment is None or fragment.files != files or set(fragment.fields) != set(header.fields):
            stale.append(source)
        elif fragment.deletions != source.deletion_file():
            fragments[number] = _with_deletions(dataset, fragment, source)
        else:
            fragments[number] = fragment
    for fragment in _read(dataset, stale, header):
        fragments[fragment.number] = fragment
    view = View(int(dataset.version), header, tuple(fragments[n] for n in sources), lambda: dataset)
    vars(view)["dataset"] = dataset  # opened already
    return view


def _with_deletions(dataset: Any, fragment: FragmentRows, source: Any) -> FragmentRows:  # noqa: ANN401
    scanner = dataset.scanner(columns=[], with_row_address=True, fragments=[source])
    live = np.zeros(fragment.rows, dtype=np.bool_)
    live[scanner.to_table()["_rowaddr"].to_numpy() & np.uint64(0xFFFFFFFF)] = True
    return replace(fragment, live=live, deletions=source.deletion_file())


def _read(dataset: Any, fragments: Sequence[Any], header: Header) -> Iterator[FragmentRows]:  # noqa: ANN401
    """Fragments that were not in memory before, in one scan."""
    if not fragments:
        return
    columns = ["id", "part", "stamp", *(column_of(name) for name in header.fields)]
    table = dataset.scanner(
        columns=columns, fragments=fragments, with_row_id=True, include_deleted_rows=True, scan_in_order=True
    ).to_table()
    start = 0
    for fragment in fragments:
        rows = fragment.physical_rows
        part = table.slice(start, rows)
        start += rows
        yield FragmentRows(
            number=fragment.fragment_id,
            files=tuple(str(file.path) for file in fragment.metadata.files),
            deletions=fragment.deletion_file(),
            rows=rows,
            ids=_one(part["id"]),
            part=part["part"].to_numpy(),
            stamp=part["stamp"].to_numpy(),
            fields={name: _one(part[column_of(name)]) for name in header.fields},
            live=part["_rowid"].is_valid().to_numpy(),
        )


def _one(column: pa.ChunkedArray) -> pa.Array:
    """One array per fragment, so that a cell is found by its row alone."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _joined(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *parts])
