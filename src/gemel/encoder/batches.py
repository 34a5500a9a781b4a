"""Token ids of many texts through an engine, in batches of texts of exactly the same length: nothing is ever padded.

Batches run on lanes: threads that take the next batch when they are done with one. An engine call releases the GIL and
uses one core, so there are as many lanes as cores; which lane runs a batch changes no bit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.engines.engine import Engine, MixingEngine
from gemel.encoder.head import check_finite
from gemel.encoder.tokenizer import TextPreparer, TokenIds, warn_of_long
from gemel.errors import InputError
from gemel.options import EncodeOptions, parse_bytes
from gemel.types import TokenEmbeddings, Vectors

Positions = NDArray[np.int64]

Batch = TypeVar("Batch")

Item = TypeVar("Item")

Keep: TypeAlias = Callable[[Positions, Vectors], None]
"""Takes the hidden states (b, t, width) of the texts at these positions."""


def run(
    engine: Engine,
    pieces: Sequence[TokenIds],
    keep: Keep,
    *,
    lanes: Lanes,
    threads: int | None,
    memory: int | str,
    seen: Positions | None = None,
) -> None:
    """Hidden states of all pieces, batch by batch, passed to `keep(positions, hidden)` from any lane.

    `threads` None: all usable cores. A piece without tokens is never passed on. `seen`: of each piece, how many tokens
    its tokens see, for a `MixingEngine`; None: all.
    """
    from gemel.files.machine import usable_cores

    threads = threads or usable_cores()
    filled = [len(piece) for piece in pieces]
    share = -(-sum(filled) // threads)  # few texts: every lane gets some
    room = parse_bytes(memory) // threads
    tokens = min(engine.batch_tokens, share)

    def rows_for(length: int) -> int:
        return min(tokens // length, room // engine.bytes_per_text(length)) if length else 1

    groups = [group for group in same_length_batches(filled, rows_for) if filled[group[0]]]
    mixing = engine if isinstance(engine, MixingEngine) else None
    batches = [[group] for group in groups]
    if mixing is not None and len(groups) > 1:
        sizes = [(len(group), filled[group[0]]) for group in groups]
        # An upper bound of the bytes of a joined batch: as if every text were alone.
        costs = [(count * length, count * mixing.bytes_per_text(length)) for count, length in sizes]
        batches = joined_batches(groups, costs, (tokens, room))
    spare = max(1, threads // max(1, len(batches)))  # a single text gets all cores

    def work(batch: list[Positions]) -> None:
        ids = [np.stack([pieces[position] for position in group]) for group in batch]
        if mixing is None:
            states = [engine.hidden(each, spare) for each in ids]
        else:
            states = mixing.hidden_many(
                ids, spare, None if seen is None else [seen[group] for group in batch]
            )
        for group, hidden in zip(batch, states, strict=True):
            keep(group, hidden)

    lanes.run(work, batches, threads)


@dataclass(frozen=True)
class TokenReader:
    """A model up to its hidden states: `run(pieces, keep=...)` passes them on as `run` does."""

    checkpoint: Checkpoint
    preparer: TextPreparer
    run: Callable[..., None]
    width: int


def token_embeddings(
    reader: TokenReader, texts: Sequence[str], options: EncodeOptions
) -> list[TokenEmbeddings]:
    """The hidden states of each text, which is cut where it is long."""
    if options.on_long == "chunk":
        raise InputError(
            "token vectors of a text in chunks are not defined. Use on_long='warn' or 'truncate'"
        )
    windows = reader.preparer.windows(texts, options)
    if options.on_long == "warn":
        tokens, kept = np.array([(each.tokens, each.kept) for each in windows]).reshape(-1, 2).T
        warn_of_long(tokens, kept, reader.preparer.limit(options))
    vectors: list[Vectors] = [np.zeros((0, reader.width), np.float32)] * len(texts)

    def keep(positions: Positions, hidden: Vectors) -> None:
        check_finite(hidden, reader.checkpoint)
        for position, states in zip(positions, hidden, strict=True):
            vectors[position] = states.copy()

    pieces = [window.pieces[0] for window in windows]
    reader.run(pieces, keep=keep)
    skipped = reader.preparer.prompt_tokens(options)
    return [
        TokenEmbeddings(tuple(reader.preparer.tokenizer.names(piece)), states, skipped)
        for piece, states in zip(pieces, vectors, strict=True)
    ]


def distinct_rows(items: Sequence[Item]) -> tuple[list[Item], Positions]:
    """The items without repetition, in order, and the position among them of each item."""
    where: dict[Item, int] = {}
    rows = np.fromiter((where.setdefault(item, len(where)) for item in items), np.int64, len(items))
    return list(where), rows


def same_length_batches(lengths: Sequence[int], rows_for: Callable[[int], int]) -> list[Positions]:
    """Positions grouped by exact length, at most `rows_for(length)` per batch, longest first.

    Longest first, so that the work left for the end is small and the cores finish together.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    ordered = np.asarray(lengths, dtype=np.int64)[order]
    borders = np.flatnonzero(np.diff(ordered)) + 1
    batches: list[Positions] = []
    for group in np.split(order, borders):
        if len(group):
            rows = max(1, rows_for(int(lengths[group[0]])))
            batches.extend(group[start : start + rows] for start in range(0, len(group), rows))
    return batches


def joined_batches(
    groups: Sequence[Positions], costs: Sequence[tuple[int, int]], limits: tuple[int, int]
) -> list[list[Positions]]:
    """Adjacent groups in one batch while the sums of their costs (tokens, bytes) stay within the limits."""
    batches: list[list[Positions]] = []
    tokens = size = 0
    for group, (more_tokens, more_bytes) in zip(groups, costs, strict=True):
        if batches and tokens + more_tokens <= limits[0] and size + more_bytes <= limits[1]:
            batches[-1].append(group)
            tokens, size = tokens + more_tokens, size + more_bytes
        else:
            batches.append([group])
            tokens, size = more_tokens, more_bytes
    return batches


class Lanes:
    """A pool of threads that lives between calls, because each thread has its working memory."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self._process = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[Batch], None], batches: Sequence[Batch], threads: int) -> None:
        """`work(batch)` for all batches; the first error stops all lanes and is raised."""
        if threads == 1 or len(batches) <= 1:
            for batch in batches:
                work(batch)
            return
        waiting, lock = iter(batches), threading.Lock()
        futures = [
            self._lanes(threads).submit(_drain, work, waiting, lock)
            for _ in range(min(threads, len(batches)))
        ]
        try:
            for future in futures:
                future.result()
        finally:
            with lock:  # after an error nothing more is started
                for _ in waiting:
                    pass

    def _lanes(self, threads: int) -> ThreadPoolExecutor:
        with self._lock:
            # A forked child has no threads of its parent, so a pool belongs to one process.
            if self._pool is None or self._threads < threads or self._process != os.getpid():
                self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gemel-lane")
                self._threads, self._process = threads, os.getpid()
            return self._pool


def _drain(work: Callable[[Batch], None], waiting: Iterable[Batch], lock: threading.Lock) -> None:
    source = iter(waiting)
    while True:
        with lock:
            batch = next(source, None)
        if batch is None:
            return
        work(batch)
