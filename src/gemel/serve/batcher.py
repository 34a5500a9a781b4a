"""The batcher: texts of many requests in, the vectors of each request out. Knows neither HTTP nor the network.

What is computed for a text is an array: a vector, or those weights of words that are not zero. A batcher runs on one
event loop, with the workers of `queue.py` behind it. A text that was encoded a moment ago for a client, or
is being encoded for it, is not encoded again; what other clients sent makes no difference.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.engines.engine import Engine, MixingEngine
from gemel.encoder.tokenizer import PreparedTexts, Windows, check_texts
from gemel.errors import InputError
from gemel.files.machine import usable_cores
from gemel.options import EncodeOptions
from gemel.serve.options import DeadlineExceeded, EncodeFailed, Limits, Overloaded, deadline_message
from gemel.serve.queue import BatchKey, Cores, FinishedBatch, Priority, QueuedText, QueueState, Workers
from gemel.serve.telemetry import Counters
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.texts.sparse_model import SparseModel

TextArray: TypeAlias = NDArray[Any]
"""What is computed for one text: (dim,) float32, or (weights,) of WORD_WEIGHT."""

WORD_WEIGHT = np.dtype([("index", np.int32), ("value", np.float32)])
"""One weight of a sparse vector: its column and what is there."""

TABLE_TOKENS = 8192  # of a batch where no network runs

SMALL_TEXTS = 8  # a request of at most so many texts goes before larger ones,
SMALL_TOKENS = 512  # if it has at most so many tokens
INLINE_CHARACTERS = (
    4000  # tokenized on the event loop; more goes to a thread, as others are answered meanwhile
)
CHUNK_TEXTS = 128  # texts tokenized between two checks whether the client is still connected,
CHUNK_CHARACTERS = 100_000  # if they have at most so many: tokens take many times the memory of a text
MOST_BATCH_KEYS = 256  # that are remembered; a client may invent prompts without end
CACHE_OVERHEAD = 400  # bytes of a cached vector beside its numbers: key, entry of the dictionary, objects


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How the texts of one request are encoded."""

    prompt_name: str | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dim: int | None = None
    truncate: bool = True
    """False: a text over the model's length is refused; else it is truncated and counted in `EmbedResult.kept`."""


@dataclass(frozen=True, eq=False)
class EmbedResult:
    """Vectors in the order of the texts, bit for bit those of `Model.encode`."""

    vectors: Vectors
    tokens: Sequence[int]
    """Of each text before truncation, special tokens included."""
    kept: Sequence[int]
    """Of each text as the model reads it."""

    @property
    def total_tokens(self) -> int:
        return sum(self.kept)


@dataclass(frozen=True, eq=False)
class TextArrays:
    """The array of each text, in their order, and its tokens as in EmbedResult."""

    rows: Sequence[TextArray]
    tokens: Sequence[int]
    kept: Sequence[int]

    @property
    def total_tokens(self) -> int:
        return sum(self.kept)


class BatchedModel(Protocol):
    """What a batcher runs: a `Model`, or a `SparseArrays`."""

    @property
    def dim(self) -> int: ...

    @property
    def engine(self) -> Engine | None:
        """None: no network runs."""
        ...

    def prepare(self, texts: Sequence[str], options: EncodeOptions) -> PreparedTexts: ...

    def run(self, prepared: PreparedTexts) -> Iterable[TextArray]:
        """One array per text."""
        ...


class SparseArrays:
    """A sparse encoder for a batcher: the weights of a text are one array of WORD_WEIGHT, in the order of columns."""

    def __init__(self, model: SparseModel) -> None:
        self.dim, self.engine, self.prepare = model.dim, model.engine, model.prepare
        self._run = model.run

    def run(self, prepared: PreparedTexts) -> list[TextArray]:
        found = self._run(prepared)
        weights = np.empty(len(found.values), dtype=WORD_WEIGHT)
        weights["index"], weights["value"] = found.indices, found.values
        return np.split(weights, found.indptr[1:-1])


class Capacity:
    """What the batchers of one process share: cores, memory for recent vectors, and room for tokens that wait."""

    def __init__(self, *, threads: int | None = None, cache_bytes: int = 64_000_000) -> None:
        self.cores = Cores(threads or usable_cores())
        self.cache = VectorCache(cache_bytes)
        self.batchers: list[Batcher] = []

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait, for all models."""
        return sum(batcher.queue_tokens for batcher in self.batchers)

    @property
    def queue_texts(self) -> int:
        """Texts that wait, for all models."""
        return sum(len(batcher.workers.queue) for batcher in self.batchers)

    @property
    def busy(self) -> int:
        """Workers that compute now."""
        return sum(batcher.workers.busy for batcher in self.batchers)


class Batcher:
    """The batcher of one model. Made inside the event loop that uses it."""

    def __init__(self, model: BatchedModel, limits: Limits, counters: Counters, capacity: Capacity) -> None:
        self.cache = capacity.cache
        self._capacity = capacity
        self._model, self._limits, self._counters = model, limits, counters
        # Equal texts of two models share the cache, but never a vector.
        self._batch_keys = BatchKeys(
            capacity.cores.count, lambda options: model.prepare([], options), model=len(capacity.batchers)
        )
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[bytes, QueuedText] = {}
        self._arriving = 0  # tokens of requests that are being tokenized, estimated
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="gemel-tokenize")
        self.workers = Workers(
            self._compute,
            self._deliver,
            cores=capacity.cores,
            batch_tokens=TABLE_TOKENS if model.engine is None else model.engine.batch_tokens,
            mixed=isinstance(model.engine, MixingEngine),
        )
        capacity.batchers.append(self)

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait."""
        return self.workers.queue.tokens + self._arriving

    async def embed(
        self, texts: Sequence[str], options: EmbedOptions, *, client: str = "", urgent: bool = False
    ) -> EmbedResult:
        """See `Call.embed`: the arrays of `rows`, all of the same length, as one."""
        result = await self.rows(texts, options, client=client, urgent=urgent)
        none = np.empty((0, options.dim or self._model.dim), dtype=np.float32)
        return EmbedResult(np.stack(result.rows) if result.rows else none, result.tokens, result.kept)

    async def rows(
        self, texts: Sequence[str], options: EmbedOptions, *, client: str = "", urgent: bool = False
    ) -> TextArrays:
        """What the model computes for each text. `urgent` goes before everything, past a full queue too, and is not
        cached.

        `client`, the name of a key or an address, is for fairness between clients and never logged with texts. How many
        texts there are and how long each is was checked by the caller; tokens are counted here.
        """
        started = perf_counter()
        checked = check_texts(texts)
        batch_key = self._batch_keys.of(options)
        request = PendingRequest(len(checked), self._loop.create_future())
        seconds = self._limits.seconds
        deadline = self._loop.call_later(seconds, request.fail, DeadlineExceeded(deadline_message(seconds)))
        try:
            missing = self._join(request, batch_key.cache_keys(checked, client))
            if missing:
                new = [checked[rows[0]] for rows in missing.values()]
                windows = await self._tokenize(new, batch_key, urgent)
                self._enqueue(request, missing, windows, batch_key, client, urgent)
            if request.missing:
                await request.future
            # All texts count, so that the answer does not depend on what was cached.
            self._limits.check_tokens(sum(request.tokens))
            if not options.truncate:
                _refuse_truncated(request)
        except BaseException as error:
            self._abandon(request, error)
            raise
        finally:
            deadline.cancel()
        self._counters.stages["total"].add(perf_counter() - started)
        self._counters.texts.add(len(checked))
        return TextArrays(request.rows, request.tokens, request.kept)

    async def close(self) -> None:
        """End the threads; what waits is never answered."""
        await asyncio.to_thread(self.workers.stop)
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    # In: looked up, tokenized, queued.

    def _join(self, request: PendingRequest, keys: Sequence[bytes]) -> dict[bytes, list[int]]:
        """Fill the rows whose vectors are cached, wait for those in flight, and return the rows of the rest by key."""
        missing: dict[bytes, list[int]] = {}
        for row, key in enumerate(keys):
            cached = self.cache.get(key)
            if cached is not None:
                request.put(row, cached)
                self._counters.cache_hits += 1
            elif key in self._in_flight:
                request.wait_for(self._in_flight[key], row)
                self._counters.shared += 1
            else:
                missing.setdefault(key, []).append(row)
        self._counters.cache_misses += len(missing)
        return missing

    async def _tokenize(self, texts: list[str], batch_key: BatchKey, urgent: bool) -> Sequence[Windows]:
        characters = sum(map(len, texts))
        estimate = characters // 4 + len(texts)
        if not urgent:
            self._admit(estimate)
        started = perf_counter()
        self._arriving += estimate
        try:
            if characters <= INLINE_CHARACTERS:
                windows = self._model.prepare(texts, batch_key.options).windows
            else:
                windows = await self._tokenize_in_thread(texts, batch_key)
        finally:
            self._arriving -= estimate
        self._counters.stages["tokenize"].add(perf_counter() - started)
        self._limits.check_tokens(sum(window.tokens for window in windows))
        if not urgent:
            self._admit(sum(window.kept for window in windows))
        return windows

    async def _tokenize_in_thread(self, texts: list[str], batch_key: BatchKey) -> tuple[Windows, ...]:
        """In chunks, so that two large requests take turns and one that is cancelled ends soon."""
        windows: list[Windows] = []
        tokens = 0
        for chunk in _chunks(texts):
            prepared = await self._loop.run_in_executor(
                self._tokenizing, self._model.prepare, chunk, batch_key.options
            )
            windows.extend(prepared.windows)
            tokens += sum(window.tokens for window in prepared.windows)
            self._limits.check_tokens(tokens)
        return tuple(windows)

    def _admit(self, tokens: int) -> None:
        most, waiting = self._limits.queue_tokens, self._capacity.queue_tokens
        if waiting and waiting + tokens > most:
            self._counters.rejected["queue"] += 1
            seconds = max(1.0, self.workers.wait_seconds())
            raise Overloaded(
                f"{waiting:,} tokens are waiting and at most {most:,} may. Try again in {seconds:.0f} s",
                seconds,
            )

    def _enqueue(
        self,
        request: PendingRequest,
        missing: dict[bytes, list[int]],
        windows: Sequence[Windows],
        batch_key: BatchKey,
        client: str,
        urgent: bool,
    ) -> None:
        if request.future.done():  # the deadline passed while it was tokenized
            return
        small = len(windows) <= SMALL_TEXTS and sum(window.kept for window in windows) <= SMALL_TOKENS
        priority = Priority.URGENT if urgent else Priority.SMALL if small else Priority.LARGE
        now, new = perf_counter(), []
        for (key, rows), window in zip(missing.items(), windows, strict=True):
            text = self._in_flight.get(key)
            if text is None:
                text = self._in_flight[key] = QueuedText(key, window, batch_key, client, priority, now)
                new.append(text)
            for row in rows:
                request.wait_for(text, row)
        if new:
            self.workers.put(new)

    # On the thread of a worker.

    def _compute(self, batch_key: BatchKey, windows: Sequence[Windows], alone: bool) -> Iterable[TextArray]:
        return self._model.run(PreparedTexts(tuple(windows), batch_key.alone if alone else batch_key.options))

    def _deliver(self, finished: FinishedBatch) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, finished)

    # Out: vectors to the requests that wait for them.

    def _finish(self, finished: FinishedBatch) -> None:
        counters, tokens = self._counters, 0
        for text, result in zip(finished.texts, finished.results, strict=True):
            self._in_flight.pop(text.key, None)
            counters.stages["queue"].add(finished.taken - text.queued)
            tokens += text.length
            if isinstance(result, Exception):
                counters.failed_batches += 1
                for request, row in text.waiters:
                    request.fail_row(row, result)
                continue
            cached = CachedVector(np.array(result), text.windows.tokens, text.windows.kept)
            if text.priority is not Priority.URGENT:
                self.cache.put(text.key, cached)
            for request, row in text.waiters:
                request.put(row, cached)
        counters.stages["compute"].add(finished.seconds)
        counters.batch_texts.add(len(finished.texts))
        counters.tokens.add(tokens)

    def _abandon(self, request: PendingRequest, error: BaseException) -> None:
        """The request failed or its client disconnected: texts that only it waits for are not encoded."""
        if isinstance(error, DeadlineExceeded):
            self._counters.rejected["deadline"] += 1
        unwanted = request.leave()
        self.workers.drop(unwanted)
        for text in unwanted:
            if text.state is QueueState.DROPPED and self._in_flight.get(text.key) is text:
                del self._in_flight[text.key]


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Lists of at most CHUNK_TEXTS texts and CHUNK_CHARACTERS characters, or of one text that is longer."""
    chunk: list[str] = []
    characters = 0
    for text in texts:
        if chunk and (len(chunk) == CHUNK_TEXTS or characters + len(text) > CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(text)
        characters += len(text)
    yield chunk


def _refuse_truncated(request: PendingRequest) -> None:
    for row, (tokens, kept) in enumerate(zip(request.tokens, request.kept, strict=True)):
        if kept < tokens:
            raise InputError(
                f"texts[{row}] has {tokens:,} tokens, the model reads {kept:,}. Shorten it, or let it be cut"
            )


_NOTHING: TextArray = np.empty(0, dtype=np.float32)  # of a text that is not computed yet


class PendingRequest:
    """One request in the batcher: the rows it has, and the texts it waits for. Used on the event loop only."""

    __slots__ = ("_texts", "future", "kept", "missing", "rows", "tokens")

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.rows: list[TextArray] = [_NOTHING] * count
        self.tokens, self.kept = [0] * count, [0] * count
        self.missing = count
        self.future = future
        self._texts: list[QueuedText] = []

    def wait_for(self, text: QueuedText, row: int) -> None:
        text.waiters.append((self, row))
        self._texts.append(text)

    def put(self, row: int, cached: CachedVector) -> None:
        self.rows[row], self.tokens[row], self.kept[row] = cached.vector, cached.tokens, cached.kept
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(None)

    def fail_row(self, row: int, error: Exception) -> None:
        """The message of an InputError reaches the client; that of any other error does not leave the server."""
        if isinstance(error, InputError):
            self.fail(error)
        else:
            self.fail(
                EncodeFailed(
                    f"texts[{row}] could not be encoded; the other texts of the server are not affected"
                )
            )

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # marks it as retrieved, also when nobody waits yet

    def leave(self) -> list[QueuedText]:
        """Wait for nothing any more. Returns the texts that nobody waits for now."""
        unwanted = []
        for text in self._texts:
            text.waiters = [(request, row) for request, row in text.waiters if request is not self]
            if not text.waiters:
                unwanted.append(text)
        self._texts = []
        return unwanted


class BatchKeys:
    """The batch key of each combination of options, made once."""

    def __init__(self, threads: int, check: Callable[[EncodeOptions], object], *, model: int = 0) -> None:
        """`check` refuses options that the model does not have; `model` tells the keys of models apart."""
        self._threads, self._check, self._model = threads, check, model
        self._keys: dict[tuple[object, ...], BatchKey] = {}

    def of(self, options: EmbedOptions) -> BatchKey:
        values = (options.prompt_name, options.prompt, options.normalize, options.dim)
        key = self._keys.get(values)
        if key is None:
            prompt_name, prompt, normalize, dim = values
            single = EncodeOptions(
                prompt_name=prompt_name,
                prompt=prompt,
                normalize=normalize,
                dim=dim,
                on_long="truncate",
                threads=1,
            )
            self._check(single)
            salt = hashlib.blake2b(
                repr((self._model, *values)).encode("utf-8", "surrogatepass"), digest_size=16
            ).digest()
            if len(self._keys) >= MOST_BATCH_KEYS:
                self._keys.clear()
            key = self._keys[values] = BatchKey(single, replace(single, threads=self._threads), salt)
        return key


@dataclass(frozen=True, slots=True, eq=False)
class CachedVector:
    """The array of one text, and its number of tokens before and after truncation."""

    vector: TextArray
    tokens: int
    kept: int


class VectorCache:
    """Vectors of recent texts, bounded by bytes; the least recently used goes first. Used on the event loop only."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._vectors: OrderedDict[bytes, CachedVector] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def get(self, key: bytes) -> CachedVector | None:
        cached = self._vectors.get(key)
        if cached is not None:
            self._vectors.move_to_end(key)
        return cached

    def put(self, key: bytes, cached: CachedVector) -> None:
        size = cached.vector.nbytes + CACHE_OVERHEAD
        if size > self.most_bytes or key in self._vectors:
            return
        self._vectors[key] = cached
        self.bytes += size
        while self.bytes > self.most_bytes:
            _, old = self._vectors.popitem(last=False)
            self.bytes -= old.vector.nbytes + CACHE_OVERHEAD
