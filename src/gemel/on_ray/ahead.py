"""Rows for a job that writes them in order, read and encoded ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.errors import GemelError, InputError
from gemel.on_ray.encoding import ModelOnRay, joined
from gemel.options import EncodeOptions
from gemel.text.rows import Row, Rows
from gemel.types import AnyVectors, EncodeReport


class Ahead(Iterator[Row]):
    """Both halves of `encode_to_folder`: the rows that it takes, and the encoder that it asks for their vectors.

    While it writes a block, workers encode those that follow. Rows that it takes without asking for their vectors, as
    a job does that goes on where it was stopped, are not encoded.
    """

    def __init__(self, model: ModelOnRay, rows: Rows, options: EncodeOptions) -> None:
        self._model, self._rows, self._options = model, rows, options
        self._read: deque[Row] = deque()  # given to the workers, not taken yet
        self._unsent: deque[str] = deque()  # taken, not given to the workers yet
        self._sent: deque[str] = deque()  # given to the workers, their vectors not asked for yet
        self._taken = 0
        self._reports: Iterator[EncodeReport] | None = None
        self._ready: deque[EncodeReport] = deque()
        self._refused = False
        self._bad: GemelError | None = None  # of a row beyond those that were read ahead

    def __next__(self) -> Row:
        if not self._read and self._bad is not None:
            raise self._bad
        self._taken += 1
        if self._read:
            return self._read.popleft()
        row = next(self._rows)
        if self._reports is not None:
            self._unsent.append(row.text)
        return row

    @property
    def fraction(self) -> float | None:
        """The part of the input that was taken; see `Rows`."""
        read = self._rows.fraction
        return None if read is None else read * self._taken / max(self._taken + len(self._read), 1)

    @property
    def skipped(self) -> int:
        return self._rows.skipped

    @property
    def bad(self) -> list[str]:
        return self._rows.bad

    @property
    def kernel(self) -> str:
        return self._model.kernel

    def fingerprint_for(self, options: EncodeOptions) -> Fingerprint:
        return self._model.fingerprint_for(options)

    def encode(self, texts: list[str]) -> AnyVectors:
        """The vectors of the rows that were taken last."""
        return self.encode_report(texts).vectors

    def encode_report(self, texts: list[str], _: EncodeOptions | None = None) -> EncodeReport:
        """The report of the rows that were taken last."""
        if not texts or self._refused:
            return self._model.here(texts, self._options)
        if self._reports is None:
            blocks = self._model.blocks(self._noted(chain(texts, self._reading())))
            self._reports = self._model.reports(blocks, self._options)
        try:
            while sum(len(report.tokens) for report in self._ready) < len(texts):
                self._ready.append(next(self._reports))
        except InputError:  # said again of its place in the input, when its row is reached
            self._refused = True
            return self._model.here(texts, self._options)
        asked = [self._sent.popleft() for _ in texts]
        assert asked == texts, "vectors would go to other rows than their own"
        whole = joined(self._ready)
        self._ready = deque([_part(whole, slice(len(texts), None), 0)])
        return _part(whole, slice(len(texts)), whole.duplicates)

    def _noted(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            self._sent.append(text)
            yield text

    def _reading(self) -> Iterator[str]:
        """A row that cannot be read ends this; it is said when the job comes to it, as everything before it counts."""
        try:
            while True:
                if self._unsent:
                    yield self._unsent.popleft()
                elif (row := next(self._rows, None)) is not None:
                    self._read.append(row)
                    yield row.text
                else:
                    return
        except GemelError as error:
            self._bad = error


def _part(report: EncodeReport, rows: slice, duplicates: int) -> EncodeReport:
    return EncodeReport(
        vectors=report.vectors[rows],
        tokens=report.tokens[rows],
        kept=report.kept[rows],
        duplicates=duplicates,
        seconds=0.0,
    )
