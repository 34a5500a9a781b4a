"""The batcher: texts of many requests in, each request's vectors out. Knows neither HTTP nor the network.

Lives on one event loop. A text that was computed a moment ago for a client, or is being computed for it, is not
computed again; what other clients sent makes no difference.

One request on its way through the batcher: the rows it has, and the jobs it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from gemel.encoder.batches import usable_cores
from gemel.encoder.engines.port import MixingEngine
from gemel.encoder.tokenizer import Windows, check_texts
from gemel.errors import InputError
from gemel.model import Model, PreparedTexts
from gemel.serve.cache import Known, VectorCache
from gemel.serve.counters import Figures
from gemel.serve.limits import EncodeFailed, Limits, Overloaded, TooLarge, TooLate, late
from gemel.serve.port import Ask, BatchKey, BatchKeys, Embedded
from gemel.serve.queue import Job, Priority, QueueState
from gemel.serve.workers import Finished, Workers
from gemel.types import Vectors

SMALL_TEXTS = 8  # a request of at most so many texts goes before larger ones,

SMALL_TOKENS = 512  # if it has at most so many tokens

INLINE_CHARACTERS = 4000  # tokenised at once; more goes to a thread, so that the event loop answers others

PIECE = 128  # texts tokenised between two looks at whether the client is still there,

PIECE_CHARACTERS = (
    100_000  # if they have at most so many characters: tokens take many times the memory of a text
)


class Batcher:
    """One for a model. Made inside the event loop that uses it."""

    def __init__(
        self,
        model: Model,
        limits: Limits,
        figures: Figures,
        *,
        threads: int | None = None,
        cache_bytes: int = 64_000_000,
    ) -> None:
        self.threads = threads or usable_cores()
        self.cache = VectorCache(cache_bytes)
        self._model, self._limits, self._figures = model, limits, figures
        self._kinds = BatchKeys(self.threads, lambda options: model.prepare([], options))
        self._loop = asyncio.get_running_loop()
        self._flying: dict[bytes, Job] = {}
        self._arriving = 0  # tokens of requests that are being tokenised, guessed
        self._tokenising = ThreadPoolExecutor(1, thread_name_prefix="gemel-tokenise")
        self.workers = Workers(
            self._compute,
            self._deliver,
            threads=self.threads,
            batch_tokens=model.engine.batch_tokens,
            mixed=isinstance(model.engine, MixingEngine),
        )

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait."""
        return self.workers.waiting.tokens + self._arriving

    async def embed(self, texts: Sequence[str], ask: Ask, *, urgent: bool = False) -> Embedded:
        """See `Services.embed`. `urgent` goes before everything, past a full queue too, and is not remembered."""
        started = perf_counter()
        checked = self._check(texts)
        kind = self._kinds.of(ask)
        request = PendingRequest(len(checked), ask.dim or self._model.dim, self._loop.create_future())
        seconds = min(ask.seconds or self._limits.seconds, self._limits.seconds)
        deadline = self._loop.call_later(seconds, request.fail, TooLate(late(seconds)))
        try:
            missing = self._join(request, kind.keys(checked, ask.client))
            if missing:
                new = [checked[rows[0]] for rows in missing.values()]
                windows = await self._tokenise(new, kind, urgent)
                self._begin(request, missing, windows, kind, ask.client, urgent)
            if request.missing:
                await request.future
            self._check_tokens(int(request.tokens.sum()))
            if not ask.cut:
                _refuse_cut(request)
        except BaseException as error:
            self._leave(request, error)
            raise
        finally:
            deadline.cancel()
        self._figures.stage("total", perf_counter() - started)
        self._figures.texts.add(len(checked))
        return request.embedded()

    async def close(self) -> None:
        """Ends the threads; what waits is never answered."""
        await asyncio.to_thread(self.workers.stop)
        self._tokenising.shutdown(wait=False, cancel_futures=True)

    # In: checked, looked up, tokenised, queued.

    def _check(self, texts: Sequence[str]) -> list[str]:
        limits = self._limits
        if len(texts) > limits.texts and not isinstance(texts, str):
            raise TooLarge(
                f"the request has {len(texts):,} texts, at most {limits.texts:,} are taken at once"
            )
        checked = check_texts(texts)
        for position, text in enumerate(checked):
            if len(text) > limits.characters:
                raise TooLarge(
                    f"texts[{position}] has {len(text):,} characters, at most {limits.characters:,} are taken"
                )
        return checked

    def _join(self, request: PendingRequest, keys: Sequence[bytes]) -> dict[bytes, list[int]]:
        """Rows that are known are filled, those under way are waited for; the rest is returned by key."""
        missing: dict[bytes, list[int]] = {}
        for row, key in enumerate(keys):
            known = self.cache.get(key)
            if known is not None:
                request.put(row, known)
                self._figures.cache_hits += 1
            elif key in self._flying:
                request.wait_for(self._flying[key], row)
                self._figures.shared += 1
            else:
                missing.setdefault(key, []).append(row)
        self._figures.cache_misses += len(missing)
        return missing

    async def _tokenise(self, texts: list[str], kind: BatchKey, urgent: bool) -> Sequence[Windows]:
        characters = sum(map(len, texts))
        guess = characters // 4 + len(texts)
        if not urgent:
            self._admit(guess)
        started = perf_counter()
        self._arriving += guess
        try:
            if characters <= INLINE_CHARACTERS:
                windows = self._model.prepare(texts, kind.options).windows
            else:
                windows = await self._tokenise_aside(texts, kind)
        finally:
            self._arriving -= guess
        self._figures.stage("tokenise", perf_counter() - started)
        self._check_tokens(sum(window.tokens for window in windows))
        if not urgent:
            self._admit(sum(window.kept for window in windows))
        return windows

    def _check_tokens(self, tokens: int) -> None:
        """Of what is new, before it is computed; of all texts at the end, so that the answer does not depend on what
        others asked for a moment ago."""
        if tokens > self._limits.tokens:
            raise TooLarge(f"the request has {tokens:,} tokens, at most {self._limits.tokens:,} are taken")

    async def _tokenise_aside(self, texts: list[str], kind: BatchKey) -> tuple[Windows, ...]:
        """In pieces, so that two large requests take turns and one that is cancelled ends soon."""
        found: list[Windows] = []
        tokens = 0
        for part in _pieces(texts):
            prepared = await self._loop.run_in_executor(
                self._tokenising, self._model.prepare, part, kind.options
            )
            found.extend(prepared.windows)
            tokens += sum(window.tokens for window in prepared.windows)
            self._check_tokens(tokens)
        return tuple(found)

    def _admit(self, tokens: int) -> None:
        most, waiting = self._limits.queue_tokens, self.queue_tokens
        if waiting and waiting + tokens > most:
            self._figures.rejected["queue"] += 1
            seconds = max(1.0, self.workers.wait_seconds())
            raise Overloaded(
                f"{waiting:,} tokens are waiting and at most {most:,} may. Try again in {seconds:.0f} s",
                seconds,
            )

    def _begin(
        self,
        request: PendingRequest,
        missing: dict[bytes, list[int]],
        windows: Sequence[Windows],
        kind: BatchKey,
        client: str,
        urgent: bool,
    ) -> None:
        if request.future.done():  # the deadline passed while it was tokenised
            return
        small = len(windows) <= SMALL_TEXTS and sum(window.kept for window in windows) <= SMALL_TOKENS
        rank = Priority.URGENT if urgent else Priority.SMALL if small else Priority.LARGE
        now, jobs = perf_counter(), []
        for (key, rows), window in zip(missing.items(), windows, strict=True):
            job = self._flying.get(key)
            if job is None:
                job = self._flying[key] = Job(key, window, kind, client, rank, now)
                jobs.append(job)
            for row in rows:
                request.wait_for(job, row)
        if jobs:
            self.workers.put(jobs)

    # On a worker's thread.

    def _compute(self, kind: BatchKey, windows: Sequence[Windows], alone: bool) -> Vectors:
        return self._model.run(PreparedTexts(tuple(windows), kind.alone if alone else kind.options))

    def _deliver(self, finished: Finished) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, finished)

    # Out: vectors to those who wait, or to nobody.

    def _finish(self, finished: Finished) -> None:
        figures, tokens = self._figures, 0
        for job, result in zip(finished.jobs, finished.results, strict=True):
            self._flying.pop(job.key, None)
            figures.stage("queue", finished.taken - job.queued)
            tokens += job.length
            if isinstance(result, Exception):
                figures.failed_batches += 1
                for request, row in job.waiters:
                    request.fail_row(row, result)
                continue
            known = Known(np.array(result), job.windows.tokens, job.windows.kept)
            if job.rank is not Priority.URGENT:
                self.cache.put(job.key, known)
            for request, row in job.waiters:
                request.put(row, known)
        figures.stage("compute", finished.seconds)
        figures.batch_texts.add(len(finished.jobs))
        figures.tokens.add(tokens)

    def _leave(self, request: PendingRequest, error: BaseException) -> None:
        """The request failed or its client went away: what only it waits for is not computed."""
        if isinstance(error, TooLate):
            self._figures.rejected["deadline"] += 1
        alone = request.leave()
        self.workers.drop(alone)
        for job in alone:
            if job.state is QueueState.DROPPED and self._flying.get(job.key) is job:
                del self._flying[job.key]


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in lists of at most PIECE texts and PIECE_CHARACTERS characters, or of one that is longer."""
    piece: list[str] = []
    characters = 0
    for text in texts:
        if piece and (len(piece) == PIECE or characters + len(text) > PIECE_CHARACTERS):
            yield piece
            piece, characters = [], 0
        piece.append(text)
        characters += len(text)
    yield piece


def _refuse_cut(request: PendingRequest) -> None:
    lost = np.flatnonzero(request.kept < request.tokens)
    if len(lost):
        row = int(lost[0])
        raise InputError(
            f"texts[{row}] has {request.tokens[row]:,} tokens, the model reads {request.kept[row]:,}. "
            "Shorten it, or let it be cut"
        )


class PendingRequest:
    """Used by the answering thread only."""

    __slots__ = ("_jobs", "future", "kept", "missing", "tokens", "vectors")

    def __init__(self, rows: int, dim: int, future: asyncio.Future[None]) -> None:
        self.vectors = np.empty((rows, dim), dtype=np.float32)
        self.tokens = np.zeros(rows, dtype=np.int64)
        self.kept = np.zeros(rows, dtype=np.int64)
        self.missing = rows
        self.future = future
        self._jobs: list[Job] = []

    def wait_for(self, job: Job, row: int) -> None:
        job.waiters.append((self, row))
        self._jobs.append(job)

    def put(self, row: int, known: Known) -> None:
        self.vectors[row], self.tokens[row], self.kept[row] = known.vector, known.tokens, known.kept
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(None)

    def fail_row(self, row: int, error: Exception) -> None:
        """An error of ours keeps its words; of any other nothing leaves the server."""
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
            self.future.exception()  # seen, also when nobody waits yet

    def leave(self) -> list[Job]:
        """Wait for nothing any more; returns the jobs that now nobody waits for."""
        left = []
        for job in self._jobs:
            job.waiters = [(request, row) for request, row in job.waiters if request is not self]
            if not job.waiters:
                left.append(job)
        self._jobs = []
        return left

    def embedded(self) -> Embedded:
        return Embedded(self.vectors, self.tokens, self.kept)
