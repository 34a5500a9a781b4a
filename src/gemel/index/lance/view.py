"""One version of a table as it lies in memory: who is there, and what the fields say. Vectors and texts stay outside.

A position counts the rows of all fragments as they were written, deleted ones too; so a deletion moves nothing, and a
new version reads only what it does not share with the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.lance.columns import column_of, header_of, indices, python_values
from gemel.index.port import Count, FieldValue, Header
from gemel.index.where import Condition

if TYPE_CHECKING:
    import pyarrow as pa

Positions = NDArray[np.int64]
_CELLS = 32  # so many values are read one by one; more are taken at once


@dataclass(frozen=True, eq=False)
class FragmentRows:
    """The rows of one fragment."""

    fragment: int
    files: tuple[str, ...]
    """A column that is added is a further file; so equal files, equal columns."""
    deletions: str | None
    rows: int
    ids: pa.Array
    part: NDArray[np.int32]
    stamp: NDArray[np.int64]
    fields: Mapping[str, pa.Array]
    live: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class View:
    """All pieces of one version, in the order of their fragments."""

    version: int
    header: Header
    pieces: tuple[FragmentRows, ...]
    open: Callable[[], Any]
    """This version as Lance gives it."""
    _last: dict[str, tuple[tuple[str, ...], Positions]] = field(default_factory=dict)
    """The ids that were asked for last, and where they are."""

    @cached_property
    def dataset(self) -> Any:  # noqa: ANN401 - lance has no types
        """For what is not in the view. A view from a snapshot opens it here, at the first use."""
        return self.open()

    @property
    def opened(self) -> bool:
        """Lance has opened this version."""
        return "dataset" in vars(self)

    @cached_property
    def starts(self) -> Positions:
        """The position of each piece's first row; at the end, how many there are."""
        return np.concatenate([[0], np.cumsum([piece.rows for piece in self.pieces])]).astype(np.int64)

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        return _joined([piece.live for piece in self.pieces], np.bool_)

    @cached_property
    def stamp(self) -> NDArray[np.int64]:
        return _joined([piece.stamp for piece in self.pieces], np.int64)

    @cached_property
    def part(self) -> NDArray[np.int32]:
        return _joined([piece.part for piece in self.pieces], np.int32)

    @cached_property
    def passages(self) -> int:
        return int(np.count_nonzero(self.live))

    def count(self, where: Condition | None) -> Count:
        chosen = self.live if where is None else self.meeting(where)
        return Count(int(np.count_nonzero(chosen & (self.part == 0))), int(np.count_nonzero(chosen)))

    def meeting(self, where: Condition) -> NDArray[np.bool_]:
        """(positions,) live rows that meet the condition."""
        from gemel.index.lance.columns import mask

        if not self.pieces:
            return self.live
        return np.asarray(mask(where, self.columns), dtype=np.bool_) & self.live

    @cached_property
    def columns(self) -> Mapping[str, pa.ChunkedArray]:
        """What a condition may ask, by the names that it uses."""
        import pyarrow as pa

        out = {
            name: pa.chunked_array([piece.fields[name] for piece in self.pieces])
            for name in self.header.fields
        }
        return out | {"id": self.id_column}

    @cached_property
    def id_column(self) -> pa.ChunkedArray:
        import pyarrow as pa

        return pa.chunked_array([piece.ids for piece in self.pieces], pa.string())

    def of_ids(self, ids: Sequence[str]) -> Positions:
        """The live passages of these documents, ascending by position."""
        import pyarrow as pa
        import pyarrow.compute as pc

        named = tuple(ids)
        known = self._last.get(
            "ids"
        )  # an `add` asks three times: what is known, what is there, what to replace
        if known is not None and known[0] == named:
            return known[1]
        asked = pa.array(sorted(set(ids)), pa.string())
        inside = [
            pc.is_in(piece.ids, value_set=asked).to_numpy(zero_copy_only=False) for piece in self.pieces
        ]
        found = np.flatnonzero(_joined(inside, np.bool_) & self.live)
        self._last["ids"] = named, found
        return found

    def by_id(self, after: str | None) -> tuple[Positions, NDArray[np.int64]]:
        """The live passages of documents with greater ids, ascending by id and part; and where each document ends."""
        import pyarrow as pa
        import pyarrow.compute as pc

        live = self.live
        if after is not None and self.pieces:
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

    def addresses(self, positions: Positions) -> NDArray[np.uint64]:
        """Where Lance has these rows: fragment and row in one number."""
        place = np.searchsorted(self.starts, positions, side="right") - 1
        fragments = np.array([piece.fragment for piece in self.pieces], dtype=np.uint64)
        if not len(positions):
            return np.empty(0, dtype=np.uint64)
        rows: NDArray[np.uint64] = (positions - self.starts[place]).astype(np.uint64)
        return (fragments[place] << np.uint64(32)) | rows

    def positions(self, addresses: NDArray[np.uint64]) -> Positions:
        """The other way."""
        fragments = [piece.fragment for piece in self.pieces]
        starts = np.zeros(max(fragments, default=0) + 1, dtype=np.int64)
        starts[fragments] = self.starts[:-1]
        rows: Positions = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return starts[(addresses >> np.uint64(32)).astype(np.int64)] + rows

    def by_fragment(self, positions: Positions) -> Iterator[tuple[int, list[int]]]:
        """The fragments that hold these rows, and which of their rows."""
        place = np.searchsorted(self.starts, positions, side="right") - 1
        for number in np.unique(place).tolist():
            rows = positions[place == number] - self.starts[number]
            yield self.pieces[number].fragment, rows.tolist()

    def ids_at(self, positions: Positions) -> list[Any]:
        return self._gathered([piece.ids for piece in self.pieces], positions)

    def fields_at(self, positions: Positions) -> dict[str, list[FieldValue]]:
        return {
            name: python_values(
                self._gathered([piece.fields[name] for piece in self.pieces], positions), kind
            )
            for name, kind in self.header.fields.items()
        }

    def _gathered(self, arrays: Sequence[pa.Array], positions: Positions) -> list[Any]:
        """The values at these positions, piece by piece: Arrow would join all pieces to take some of their rows."""
        if len(positions) <= _CELLS:
            cells = self._places(positions)
            return [arrays[place][row].as_py() for place, row in cells]
        place = np.searchsorted(self.starts, positions, side="right") - 1
        rows = positions - self.starts[place]
        out: list[Any] = [None] * len(positions)
        for number in np.unique(place).tolist():
            at = np.flatnonzero(place == number)
            for where, value in zip(
                at.tolist(), arrays[number].take(indices(rows[at])).to_pylist(), strict=True
            ):
                out[where] = value
        return out

    def _places(self, positions: Positions) -> Iterator[tuple[int, int]]:
        """Which piece, and which of its rows."""
        places = (np.searchsorted(self.starts, positions, side="right") - 1).tolist()
        for place, position in zip(places, positions.tolist(), strict=True):
            yield place, position - int(self.starts[place])


def look(dataset: Any, before: View | None, place: str) -> View:  # noqa: ANN401 - lance has no types
    """This version; pieces that it shares with the view `before` are taken from there."""
    header = header_of(dataset.schema, place)
    fragments = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
    old = {piece.fragment: piece for piece in before.pieces} if before is not None else {}
    kept: dict[int, FragmentRows] = {}
    stale: list[Any] = []
    for number, fragment in fragments.items():
        files = tuple(str(file.path) for file in fragment.metadata.files)
        piece = old.get(number)
        if piece is None or piece.files != files or set(piece.fields) != set(header.fields):
            stale.append(fragment)
        elif piece.deletions != fragment.deletion_file():
            kept[number] = _with_deletions(dataset, piece, fragment)
        else:
            kept[number] = piece
    for piece in _read(dataset, stale, header):
        kept[piece.fragment] = piece
    view = View(int(dataset.version), header, tuple(kept[number] for number in fragments), lambda: dataset)
    vars(view)["dataset"] = dataset  # opened already
    return view


def _with_deletions(dataset: Any, piece: FragmentRows, fragment: Any) -> FragmentRows:  # noqa: ANN401
    there = dataset.scanner(columns=[], with_row_address=True, fragments=[fragment]).to_table()["_rowaddr"]
    live = np.zeros(piece.rows, dtype=np.bool_)
    live[there.to_numpy() & np.uint64(0xFFFFFFFF)] = True
    return replace(piece, live=live, deletions=fragment.deletion_file())


def _read(dataset: Any, fragments: Sequence[Any], header: Header) -> Iterator[FragmentRows]:  # noqa: ANN401
    """Pieces that were not there before, in one scan."""
    if not fragments:
        return
    columns = ["id", "part", "stamp", *(column_of(name) for name in header.fields)]
    table = dataset.scanner(
        columns=columns, fragments=fragments, with_row_id=True, include_deleted_rows=True, scan_in_order=True
    ).to_table()
    start = 0
    for fragment in fragments:
        rows = fragment.physical_rows
        cut = table.slice(start, rows)
        start += rows
        yield FragmentRows(
            fragment=fragment.fragment_id,
            files=tuple(str(file.path) for file in fragment.metadata.files),
            deletions=fragment.deletion_file(),
            rows=rows,
            ids=_one(cut["id"]),
            part=cut["part"].to_numpy(),
            stamp=cut["stamp"].to_numpy(),
            fields={name: _one(cut[column_of(name)]) for name in header.fields},
            live=cut["_rowid"].is_valid().to_numpy(),
        )


def _one(column: pa.ChunkedArray) -> pa.Array:
    """A piece is one array, so that a cell is found by its row alone."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _joined(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *parts])
