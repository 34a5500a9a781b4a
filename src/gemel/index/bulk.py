"""All documents of one `add`, block by block: lists are checked whole first, streams as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar, get_args

from gemel.errors import InputError
from gemel.index.adding import there_already, write_batch
from gemel.index.field_types import check_name, infer
from gemel.index.incoming import Batch, Checker, Incoming
from gemel.index.port import FieldType
from gemel.index.state import State
from gemel.index.types import Existing, Written
from gemel.progress import Progress

Done = TypeVar("Done")


class Run(Protocol):
    """Does the work on the index as it is now; again, if the table was replaced meanwhile."""

    def __call__(self, work: Callable[[State], Done]) -> Done: ...


def add_all(run: Run, incoming: Incoming, existing: Existing, block: int, *, progress: bool) -> Written:
    """What became of the documents. Each block is one commit."""
    if existing not in get_args(Existing):
        raise InputError(f"existing must be one of {', '.join(get_args(Existing))}, got {existing!r}")
    if isinstance(block, bool) or block < 1:
        raise InputError(f"block must be at least 1, got {block}")
    checker: Checker | None = None
    if incoming.sized:
        run(partial(_check_lists, incoming=incoming, existing=existing, block=block))
    done, line = Written(0, 0, 0, 0), Progress(incoming.total, "documents", shown=progress)
    for raw in incoming.blocks(block):
        try:
            checker = checker or run(partial(_checker, incoming=incoming, blocks=[raw]))
            batch = checker.check(incoming, raw)
            done += run(partial(_write, batch=batch, types=checker.types, existing=existing))
        except InputError as error:
            raise _after(error, done) from error
        line.add(len(batch))
    line.close()
    return done


def _write(state: State, batch: Batch, types: dict[str, FieldType], existing: Existing) -> Written:
    if types.keys() - state.table.header.fields.keys():
        state.table.add_fields(types)
    return write_batch(state, batch, existing)


def _checker(state: State, incoming: Incoming, blocks: Iterable[dict[str, Any]]) -> Checker:
    """Knows the fields: in an empty index those of the documents are new columns; later on, none is new."""
    header = state.table.header
    types = dict(header.fields)
    if incoming.has_fields and not state.table.count().passages:
        types |= infer((row for block in blocks for row in incoming.rows(block)), types)
        for name in types:
            check_name(name, types)
    return Checker(header.dim, types)


def _check_lists(state: State, incoming: Incoming, existing: Existing, block: int) -> None:
    """A whole walk before anything is written: a bad entry at the end changes nothing. Then the new columns."""
    checker = _checker(state, incoming, incoming.blocks(block))
    for raw in incoming.blocks(block):
        batch = checker.check(incoming, raw)
        known = state.table.known(batch.ids) if existing == "error" else {}
        for id_ in batch.ids:
            if id_ in known:
                raise there_already(id_)
    if checker.types.keys() - state.table.header.fields.keys():
        state.table.add_fields(checker.types)


def _after(error: InputError, done: Written) -> InputError:
    written = done.added + done.replaced
    return (
        InputError(f"{error} (the {written:,} documents before this block were written)")
        if written
        else error
    )
