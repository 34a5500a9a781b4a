"""A model that encodes on the workers of a Ray cluster, and rows that are encoded ahead of the job that writes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, Unpack

import numpy as np

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model, given_name
from gemel.encoder.batches import distinct_rows
from gemel.encoder.tokenizer import PreparedTexts, Windows, check_texts, warn_of_long
from gemel.errors import GemelError, InputError
from gemel.files.rows import Row, TextRows
from gemel.integrations.ray.cluster import RayCluster
from gemel.model import Model, load
from gemel.options import EncodeKeywords, EncodeOptions, Precision
from gemel.terminal import Progress
from gemel.types import AnyVectors, EncodeReport, Vectors

Item = TypeVar("Item")

BLOCK_TOKENS = 16_384  # of a task: a few seconds of a small model on one core


@dataclass(frozen=True)
class ModelSource:
    """How a worker loads the model: from the same folder if it exists there, else by name."""

    folder: str
    name: str
    precision: Precision
    pooling: tuple[str, ...]
    task: str | None

    def load(self) -> Model:
        source = self.folder if Path(self.folder).is_dir() else self.name
        return load(source, precision=self.precision, pooling=self.pooling, task=self.task)


class EncodeWorker:
    """A worker with a model, which encodes blocks of texts."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def ready(self) -> tuple[str, str]:
        """Load the model; returns what the bits of a vector depend on besides the options."""
        self._model = self._source.load()
        return self._model.weights_hash, self._model.kernel

    def work(self, block: list[str] | tuple[Windows, ...], options: EncodeOptions) -> EncodeReport | Vectors:
        """The report of texts, or the vectors of texts that are tokenized already."""
        if isinstance(block, tuple):
            return self._model.run(PreparedTexts(block, options))
        return self._model.encode_report(block, options)


class ModelOnRay(Model):
    """A `Model` that encodes more than one block of texts on workers, and less in this process."""

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
        self._source = ModelSource(folder, checkpoint.name, self.precision, modes, checkpoint.task)

    def encode_report(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **changes: Unpack[EncodeKeywords]
    ) -> EncodeReport:
        """`Model.encode_report` on the cluster, bit-exact."""
        settings = EncodeOptions.of(options, changes)
        started, checked = perf_counter(), check_texts(texts)
        distinct, rows = distinct_rows(checked)
        blocks = list(self.blocks(distinct))
        if len(blocks) < 2:
            return super().encode_report(checked, settings)
        progress = Progress(len(distinct), "texts", shown=settings.progress)
        parts = []
        try:
            for part in self.on_workers(blocks, settings):
                parts.append(part)
                progress.add(len(part.tokens))
        except InputError:  # a bad text: the error must name its position among all texts
            return super().encode_report(checked, settings)
        progress.close()
        report = join_reports(parts)
        if settings.on_long == "warn":
            warn_of_long(report.tokens[rows], report.kept[rows], self._preparer.limit(settings))
        return EncodeReport(
            vectors=report.vectors[rows],
            tokens=report.tokens[rows],
            kept=report.kept[rows],
            duplicates=len(checked) - len(distinct),
            seconds=perf_counter() - started,
        )

    def run(self, prepared: PreparedTexts) -> Vectors:
        """`Model.run` on the cluster, bit-exact."""
        blocks = list(self._blocks((windows, windows.kept) for windows in prepared.windows))
        if len(blocks) < 2:
            return super().run(prepared)
        return np.concatenate(list(self.on_workers(map(tuple, blocks), prepared.options)))

    def on_workers(self, blocks: Iterable[Any], options: EncodeOptions) -> Iterator[Any]:
        """One report per block of texts, or vectors per block of windows, in order; a few blocks are read ahead."""
        quiet = "truncate" if options.on_long == "warn" else options.on_long
        worker_options = replace(options, threads=self._cluster.threads, progress=False, on_long=quiet)
        pool = self._cluster.pool(EncodeWorker, self._source, key=self._source)
        pool.expect((self.weights_hash, self.kernel))
        return pool.in_order((block, worker_options) for block in blocks)

    def here(self, texts: Sequence[str], options: EncodeOptions) -> EncodeReport:
        """`encode_report` in this process, for any number of texts."""
        return super().encode_report(texts, options)

    def blocks(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Texts in blocks of about `block_tokens` tokens, so that all take about the same time."""
        most = self.max_length or self._block_tokens
        return self._blocks((text, min(estimated_tokens(text), most)) for text in texts)

    def _blocks(self, sized: Iterable[tuple[Item, int]]) -> Iterator[list[Item]]:
        block: list[Item] = []
        total = 0
        for item, tokens in sized:
            block.append(item)
            total += tokens
            if total >= self._block_tokens:
                yield block
                block, total = [], 0
        if block:
            yield block


def load_on_ray(
    model: str | Path, cluster: RayCluster, *, precision: Precision = "float32", task: str | None = None
) -> ModelOnRay:
    """The model of a name or folder, which every machine of the cluster must be able to load."""
    folder = find_model(model)
    name = given_name(model, folder)
    return ModelOnRay(read_checkpoint(folder, name=name, task=task), cluster, precision=precision)


def estimated_tokens(text: str) -> int:
    """A rough number to divide work by: four characters per token for ASCII, else one."""
    return 2 + (len(text) // 4 if text.isascii() else len(text))


def join_reports(reports: Sequence[EncodeReport]) -> EncodeReport:
    """The reports of blocks as one report."""
    return EncodeReport(
        vectors=np.concatenate([report.vectors for report in reports]),
        tokens=np.concatenate([report.tokens for report in reports]),
        kept=np.concatenate([report.kept for report in reports]),
        duplicates=sum(report.duplicates for report in reports),
        seconds=sum(report.seconds for report in reports),
    )


class RowPrefetcher(Iterator[Row]):
    """Rows and encoder of `encode_to_folder`: while it writes a block, workers encode the next ones.

    Rows that are read without encoding them, as when a job is resumed, are not sent to workers.
    """

    def __init__(self, model: ModelOnRay, rows: TextRows, options: EncodeOptions) -> None:
        self._model, self._rows, self._options = model, rows, options
        self._read: deque[Row] = deque()  # sent to workers, not yet read by the job
        self._unsent: deque[str] = deque()  # read by the job, not yet sent to workers
        self._sent: deque[str] = deque()  # sent to workers, vectors not yet returned
        self._taken = 0
        self._reports: Iterator[EncodeReport] | None = None
        self._ready: deque[EncodeReport] = deque()
        self._refused = False
        self._bad: GemelError | None = None  # of the row after those that were read ahead

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
        """The part of the input that was read by the job."""
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
        """The vectors of the rows that were read last."""
        return self.encode_report(texts).vectors

    def encode_report(self, texts: list[str], _: EncodeOptions | None = None) -> EncodeReport:
        """The report of the rows that were read last."""
        if not texts or self._refused:
            return self._model.here(texts, self._options)
        if self._reports is None:
            blocks = self._model.blocks(self._record(chain(texts, self._read_ahead())))
            self._reports = self._model.on_workers(blocks, self._options)
        try:
            while sum(len(report.tokens) for report in self._ready) < len(texts):
                self._ready.append(next(self._reports))
        except InputError:  # the error must name its position in the input, when its row is reached
            self._refused = True
            return self._model.here(texts, self._options)
        sent = [self._sent.popleft() for _ in texts]
        assert sent == texts, "vectors must be of the rows that were read last"
        report = join_reports(self._ready)
        self._ready = deque([_part(report, slice(len(texts), None), 0)])
        return _part(report, slice(len(texts)), report.duplicates)

    def _record(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            self._sent.append(text)
            yield text

    def _read_ahead(self) -> Iterator[str]:
        """Texts read ahead. A row that cannot be read ends them; its error is raised when the job reaches it."""
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
