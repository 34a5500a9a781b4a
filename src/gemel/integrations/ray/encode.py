"""A model whose texts are encoded by workers on a cluster. To all that uses models it is one like any other.

Rows for a job that writes them in order, read and encoded ahead of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Unpack

import numpy as np

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model, given_name
from gemel.encoder.tokenizer import check_texts, warn_of_long
from gemel.errors import GemelError, InputError
from gemel.files.rows import Row, TextRows
from gemel.integrations.ray.cluster import RayCluster
from gemel.model import Model, load
from gemel.options import EncodeKeywords, EncodeOptions, Precision
from gemel.terminal import Progress
from gemel.types import AnyVectors, EncodeReport

BLOCK_TOKENS = 16_384  # of a task: a few seconds of a small model on one core


@dataclass(frozen=True)
class ModelSource:
    """How a worker finds the model: in the same folder if its machine has that, else by name."""

    folder: str
    name: str
    precision: Precision
    pooling: tuple[str, ...]

    def load(self) -> Model:
        source = self.folder if Path(self.folder).is_dir() else self.name
        return load(source, precision=self.precision, pooling=self.pooling)


class EncodeWorker:
    """Holds a model, encodes blocks."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def ready(self) -> tuple[str, str]:
        """What the bits of a vector depend on besides the options."""
        self._model = self._source.load()
        return self._model.weights_hash, self._model.kernel

    def work(self, texts: list[str], options: EncodeOptions) -> EncodeReport:
        return self._model.encode_report(texts, options)


class ModelOnRay(Model):
    """The model here, for small questions and for facts; workers for everything larger than a block."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cluster: RayCluster,
        *,
        precision: Precision = "float32",
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        super().__init__(checkpoint, precision=precision)
        self._cluster, self._block_tokens = cluster, block_tokens
        folder, modes = str(checkpoint.folder.resolve()), checkpoint.pooling.modes
        self._source = ModelSource(folder, checkpoint.name, self.precision, modes)

    def encode_report(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **changes: Unpack[EncodeKeywords]
    ) -> EncodeReport:
        """As `Model.encode_report`; the same bits."""
        settings = EncodeOptions.of(options, changes)
        started, checked = perf_counter(), check_texts(texts)
        where: dict[str, int] = {}
        rows = np.fromiter((where.setdefault(text, len(where)) for text in checked), np.int64, len(checked))
        blocks = list(self.blocks(where))
        if len(blocks) < 2:
            return super().encode_report(checked, settings)
        progress = Progress(len(where), "texts", shown=settings.progress)
        parts = []
        try:
            for part in self.reports(iter(blocks), settings):
                parts.append(part)
                progress.add(len(part.tokens))
        except InputError:  # a text that is refused: said again of its place among all
            return super().encode_report(checked, settings)
        progress.close()
        whole = joined(parts)
        if settings.on_long == "warn":
            warn_of_long(whole.tokens[rows], whole.kept[rows], self._limit(settings))
        return EncodeReport(
            vectors=whole.vectors[rows],
            tokens=whole.tokens[rows],
            kept=whole.kept[rows],
            duplicates=len(checked) - len(where),
            seconds=perf_counter() - started,
        )

    def reports(self, blocks: Iterator[list[str]], options: EncodeOptions) -> Iterator[EncodeReport]:
        """One for each block, in order; `blocks` are read a little ahead of what was fetched."""
        quiet = "truncate" if options.on_long == "warn" else options.on_long
        theirs = replace(options, threads=self._cluster.threads, progress=False, on_long=quiet)
        pool = self._cluster.pool(EncodeWorker, self._source, key=self._source)
        pool.expect((self.weights_hash, self.kernel))
        return pool.in_order((block, theirs) for block in blocks)

    def here(self, texts: Sequence[str], options: EncodeOptions) -> EncodeReport:
        """On this machine, whatever their number."""
        return super().encode_report(texts, options)

    def blocks(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Texts in blocks of about `block_tokens`: work of about the same length, whatever the texts' is."""
        block: list[str] = []
        tokens, most = 0, self.max_length or self._block_tokens
        for text in texts:
            block.append(text)
            tokens += min(guessed_tokens(text), most)
            if tokens >= self._block_tokens:
                yield block
                block, tokens = [], 0
        if block:
            yield block


def load_on_ray(model: str | Path, cluster: RayCluster, *, precision: Precision = "float32") -> ModelOnRay:
    """The model of a name or in a folder, which every machine of the cluster must be able to find as well."""
    folder = find_model(model)
    name = given_name(model, folder)
    return ModelOnRay(read_checkpoint(folder, name=name), cluster, precision=precision)


def guessed_tokens(text: str) -> int:
    """Near enough to divide work: four letters a token, or one where a script is dense."""
    return 2 + (len(text) // 4 if text.isascii() else len(text))


def joined(reports: Sequence[EncodeReport]) -> EncodeReport:
    """The reports of blocks as one."""
    return EncodeReport(
        vectors=np.concatenate([report.vectors for report in reports]),
        tokens=np.concatenate([report.tokens for report in reports]),
        kept=np.concatenate([report.kept for report in reports]),
        duplicates=sum(report.duplicates for report in reports),
        seconds=sum(report.seconds for report in reports),
    )


class RowPrefetcher(Iterator[Row]):
    """Both halves of `encode_to_folder`: the rows that it takes, and the encoder that it asks for their vectors.

    While it writes a block, workers encode those that follow. Rows that it takes without asking for their vectors, as
    a job does that goes on where it was stopped, are not encoded.
    """

    def __init__(self, model: ModelOnRay, rows: TextRows, options: EncodeOptions) -> None:
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
