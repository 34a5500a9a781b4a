"""What stands for a lock in a bucket: marks in the configuration of a table, which Lance commits by compare-and-swap.

Writers commit with an operation that conflicts with every other (see `optimistic.py`). So whoever has set a mark and
then committed such an operation knows: nobody writes any more without having seen the mark.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from gemel.errors import GemelError, WorkError
from gemel.index.lance.recovery import READ_ERRORS, first_line, panics_raised

_HELD, _MOVED, _BUILDER = "gemel.held", "gemel.moved", "gemel.builder"
_STALE = 600  # seconds after which whoever held something is taken for dead
PATIENCE = 60.0
"""Seconds for which a write is repeated while others are faster."""

Result = TypeVar("Result")


class Preempted(WorkError):
    """Another writer was faster, where no lock keeps writers apart: look again and repeat."""


def repeated(work: Callable[[], Result]) -> Result:
    """Until no other writer was faster."""
    end, wait = time.monotonic() + PATIENCE, 0.01
    while True:
        try:
            return work()
        except Preempted:
            if time.monotonic() > end:
                raise
            time.sleep(wait * random.random())
            wait = min(2 * wait, 0.5)


@contextmanager
def said(place: str, then: str = "Nothing was changed") -> Iterator[None]:
    """Errors of Lance and of the disk become a WorkError that names the place."""
    from lance.commit import CommitConflictError

    try:
        with panics_raised():
            yield
    except GemelError:
        raise
    except READ_ERRORS as error:
        line = first_line(error)
        if (
            isinstance(error, CommitConflictError)
            or "commit conflict" in line
            or "Incompatible trans" in line
        ):
            raise Preempted(f"others kept writing to {place} at the same time. {then}; try again") from error
        raise WorkError(
            f"could not write to {place}: {line}. {then}; check rights and space, then try again"
        ) from error


def check_open(dataset: Any, place: str) -> None:  # noqa: ANN401 - lance has no types
    """May be written to: neither replaced by another table nor held by somebody who is about to."""
    config = dataset.config()
    if config.get(_MOVED):
        raise WorkError(
            f"the index {place} was migrated to another model meanwhile. Open it again, then repeat this"
        )
    mark = config.get(_HELD, "")
    if mark and not _fresh(mark):  # left by who died; were it only slow, it would find its mark gone
        with said(place):
            dataset.checkout_version(dataset.version).update_config({_HELD: ""})
    if mark:
        raise Preempted(
            f"another process is about to switch {place} to another model. Open it again in a minute"
        )


@contextmanager
def held(opened: Callable[[], Any], place: str, token: str) -> Iterator[None]:
    """Nobody writes to the table; `opened` gives its newest version."""

    def hold() -> None:
        dataset = opened()
        check_open(dataset, place)
        with said(place):
            dataset.update_config({_HELD: _mark(token)})

    def wall() -> None:
        from lance import LanceDataset, LanceOperation

        dataset = opened()
        same = LanceOperation.Merge([each.metadata for each in dataset.get_fragments()], dataset.lance_schema)
        with said(place):
            LanceDataset.commit(dataset, same, read_version=dataset.version)

    repeated(hold)
    try:
        repeated(wall)
        yield
    finally:
        with suppress(GemelError, OSError, ValueError, RuntimeError):  # moved and dropped, or out of reach
            dataset = opened()
            if _owner(dataset.config().get(_HELD, "")) == token and not dataset.config().get(_MOVED):
                dataset.update_config({_HELD: ""})


def move(opened: Callable[[], Any], place: str, token: str, number: int) -> None:
    """The table is replaced by the one of this number, if whoever has `token` still holds it."""
    dataset = opened()
    if _owner(dataset.config().get(_HELD, "")) != token:
        raise WorkError(
            f"{place} was held too long and others wrote meanwhile. Nothing was switched; try again"
        )
    with said(place, "Nothing was switched"):
        dataset.update_config({_HELD: _mark(token), _MOVED: str(number)})


def claim(opened: Callable[[], Any], place: str, token: str) -> None:
    """The table that is being built is built by `token` alone; WorkError while another is at it."""
    dataset = opened()
    builder = _owner(dataset.config().get(_BUILDER, ""))
    if builder not in ("", token) and time.time() - _last_write(dataset) < _STALE:
        raise WorkError(
            f"another process is migrating {place}. Wait for it; if it died, try again in {_STALE // 60} minutes"
        )
    with said(place):
        dataset.update_config({_BUILDER: _mark(token)})


def release(opened: Callable[[], Any], token: str) -> None:
    """Others may go on with the table that was being built."""
    with suppress(GemelError, OSError, ValueError, RuntimeError):
        dataset = opened()
        if _owner(dataset.config().get(_BUILDER, "")) == token:
            dataset.update_config({_BUILDER: ""})


def builds(dataset: Any, token: str) -> bool:  # noqa: ANN401
    return _owner(dataset.config().get(_BUILDER, "")) == token


def _last_write(dataset: Any) -> float:  # noqa: ANN401
    return float(dataset.versions()[-1]["timestamp"].timestamp())


def _mark(token: str) -> str:
    return f"{token} {time.time():.0f}"


def _owner(mark: str) -> str:
    return mark.partition(" ")[0]


def _fresh(mark: str) -> bool:
    since = mark.partition(" ")[2]
    return bool(since) and time.time() - float(since) < _STALE
