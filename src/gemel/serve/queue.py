"""The queue of texts and the worker threads that encode them in batches.

Small requests go first, clients take turns, and texts with the same options (and, for most engines, the same number of
tokens) share a batch. A worker takes the next batch as soon as it is done with one; a batch that fails is divided until
the text that fails is alone. Knows neither HTTP nor the network.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from gemel.encoder.tokenizer import Windows
from gemel.options import EncodeOptions

LARGE_TURN = 4  # every so many batches begin with a large request, so that small ones cannot starve it
BATCH_SECONDS = 0.025  # of work in a batch
MIXED_SECONDS = 0.008  # the same while single queries come too: they wait for at most one of these
MIXED_MEMORY = 1.0  # seconds after a single query during which more are expected
COMPANY_SECONDS = 0.002  # how long a small batch waits for more texts, when more are on their way
FIRST_GUESS = 4000.0  # tokens per second and core, before anything was measured
LEARNING = 0.1  # weight of the newest batch in the measured speed

log = logging.getLogger("gemel.serve")


# What waits.


class Priority(IntEnum):
    """Who goes first."""

    URGENT = 0
    """The server's own health check."""
    SMALL = 1
    LARGE = 2


class QueueState(IntEnum):
    WAITING = 0
    TAKEN = 1
    DROPPED = 2


@dataclass(frozen=True, eq=False, slots=True)
class BatchKey:
    """Texts with the same key may share a batch, and a vector if they are equal: their options are the same.

    Compared by identity: two keys of equal options only lose the chance to share.
    """

    options: EncodeOptions
    """For one worker of several."""
    alone: EncodeOptions
    """For a text that has all cores to itself."""
    salt: bytes

    def cache_keys(self, texts: Iterable[str], client: str) -> list[bytes]:
        """The keys of texts under these options, for one client only.

        A text that one client sent must not make another client's answer faster: that would reveal that it was sent.
        """
        person = hashlib.blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return [
            hashlib.blake2b(text.encode(), digest_size=16, salt=self.salt, person=person).digest()
            for text in texts
        ]


@dataclass(slots=True, eq=False)
class QueuedText:
    """One text to encode, and who waits for it."""

    key: bytes
    windows: Windows
    batch_key: BatchKey
    client: str
    priority: Priority
    queued: float
    state: QueueState = QueueState.WAITING
    waiters: list[tuple[Any, int]] = field(default_factory=list)
    """Each a request and the row of its answer."""

    @property
    def length(self) -> int:
        return self.windows.kept

    @property
    def waiting(self) -> bool:
        return self.state is QueueState.WAITING


class ClientItem(Protocol):
    """An item of a RoundRobin."""

    @property
    def client(self) -> str: ...

    @property
    def waiting(self) -> bool:
        """False: it was taken or given up elsewhere, and is skipped."""
        ...


Item = TypeVar("Item", bound=ClientItem)


class RoundRobin(Generic[Item]):
    """Items in turns between clients: the client that waited longest goes next, with its oldest item."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Item]] = OrderedDict()

    def put(self, item: Item) -> None:
        items = self._clients.get(item.client)
        if items is None:
            items = self._clients[item.client] = deque()
        items.append(item)

    def next(self, fits: Callable[[Item], bool] | None = None) -> Item | None:
        """The next item. None: there is none, or the next does not fit."""
        while self._clients:
            client, items = next(iter(self._clients.items()))
            while items and not items[0].waiting:
                items.popleft()
            if items:
                if fits is not None and not fits(items[0]):
                    return None
                item = items.popleft()
                if items:
                    self._clients.move_to_end(client)
                else:
                    del self._clients[client]
                return item
            del self._clients[client]
        return None

    def prune(self) -> bool:
        """Forget items at the front that no longer wait. False: nothing is left."""
        for client in list(self._clients):
            items = self._clients[client]
            while items and not items[0].waiting:
                items.popleft()
            if not items:
                del self._clients[client]
        return bool(self._clients)


class Queue:
    """All texts that wait, and which of them go next. Takes no lock: its owner does."""

    def __init__(self, *, mixed: bool = False) -> None:
        """`mixed`: texts of several lengths share a batch, as the engine takes them in one call."""
        self._mixed = mixed
        self.tokens = 0
        self.count = [0 for _ in Priority]
        self._priorities: list[RoundRobin[QueuedText]] = [RoundRobin() for _ in Priority]
        self._groups: dict[tuple[int, BatchKey], list[RoundRobin[QueuedText]]] = {}
        self._batches = 0

    def __len__(self) -> int:
        return sum(self.count)

    def put(self, text: QueuedText) -> None:
        self.tokens += text.length
        self.count[text.priority] += 1
        self._priorities[text.priority].put(text)
        group = self._groups.get(self._group(text))
        if group is None:
            group = self._groups[self._group(text)] = [RoundRobin() for _ in Priority]
        group[text.priority].put(text)

    def take(self, budget: int) -> list[QueuedText]:
        """Texts of one batch key and, unless mixed, of one length: `budget` tokens together, or a longer text alone.

        Texts of a large request do not join a small one, which would wait for their end. Empty: none waits.
        """
        first = self._first()
        if first is None:
            return []
        batch, room = [first], budget - first.length
        for turns in self._groups[self._group(first)][: first.priority + 1]:
            while room > 0 and (text := turns.next(lambda other: other.length <= room)) is not None:  # noqa: B023
                self._remove(text, QueueState.TAKEN)
                batch.append(text)
                room -= text.length
        self._prune_group(first)
        return batch

    def drop(self, text: QueuedText) -> None:
        """Remove a text that nobody waits for any more."""
        if text.waiting:
            self._remove(text, QueueState.DROPPED)
            self._priorities[text.priority].prune()
            self._prune_group(text)

    def _first(self) -> QueuedText | None:
        self._batches += 1
        order = list(Priority)
        if self._batches % LARGE_TURN == 0 and not self.count[Priority.URGENT]:
            order.reverse()
        for priority in order:
            if self.count[priority] and (text := self._priorities[priority].next()) is not None:
                self._remove(text, QueueState.TAKEN)
                return text
        return None

    def _remove(self, text: QueuedText, state: QueueState) -> None:
        text.state = state
        self.tokens -= text.length
        self.count[text.priority] -= 1

    def _prune_group(self, text: QueuedText) -> None:
        group = self._groups.get(self._group(text))
        if group is not None and not sum(turns.prune() for turns in group):  # prunes all of them
            del self._groups[self._group(text)]

    def _group(self, text: QueuedText) -> tuple[int, BatchKey]:
        return 0 if self._mixed else text.length, text.batch_key


# Who computes it.

Compute = Callable[[BatchKey, Sequence[Windows], bool], Iterable[NDArray[Any]]]
"""One array for each of the texts of a batch key; the last argument: all cores are free for them."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedBatch:
    """For each text of a batch its array, or why there is none."""

    texts: Sequence[QueuedText]
    results: Sequence[NDArray[Any] | Exception]
    taken: float
    seconds: float


class Cores:
    """The cores that the workers of all models of a process share: at most so many batches are computed at once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.lock = threading.Lock()
        """Of all queues of these workers."""
        self.workers: list[Workers] = []
        self._turn = 0

    @property
    def all_idle(self) -> bool:
        """Nothing is computed and nothing waits, for any model."""
        return not any(workers.busy or len(workers.queue) for workers in self.workers)

    def free_for(self, workers: Workers) -> bool:
        """A core is free, and no other model that waits was served longer ago."""
        if sum(each.busy for each in self.workers) >= self.count:
            return False
        return not any(len(each.queue) and each.turn < workers.turn for each in self.workers)

    def take(self, workers: Workers) -> None:
        """One more batch of these workers begins."""
        self._turn += 1
        workers.turn, workers.busy = self._turn, workers.busy + 1
        self.wake_others(workers)

    def wake_others(self, workers: Workers) -> None:
        """After a change that may let the workers of another model begin."""
        for each in self.workers:
            if each is not workers and len(each.queue):
                each.ready.notify()


class Workers:
    """Threads over one queue. `deliver` is called from these threads."""

    def __init__(
        self,
        compute: Compute,
        deliver: Callable[[FinishedBatch], None],
        *,
        cores: Cores,
        batch_tokens: int,
        mixed: bool = False,
    ) -> None:
        """`mixed`: the engine takes texts of several lengths in one call."""
        self.queue = Queue(mixed=mixed)
        self.tokens_per_second = FIRST_GUESS
        """Of one worker, measured."""
        self.busy = 0
        self.turn = 0
        """When the last batch began, counted over all models."""
        self.ready = threading.Condition(cores.lock)
        self._cores = cores
        self._compute, self._deliver = compute, deliver
        self._batch_tokens = batch_tokens
        self._last_single = self._last_put = -1e9
        self._gap = 1.0  # seconds between two arrivals, measured
        self._stopped = False
        self._running = [
            threading.Thread(target=self._work, name=f"gemel-worker-{number}", daemon=True)
            for number in range(cores.count)
        ]
        with cores.lock:
            cores.workers.append(self)
        for thread in self._running:
            thread.start()

    def put(self, texts: Sequence[QueuedText]) -> None:
        """From any thread; the texts begin at once if a worker is idle."""
        with self.ready:
            now = perf_counter()
            self._gap += LEARNING * (min(now - self._last_put, 1.0) - self._gap)
            self._last_put = now
            if texts[0].priority is not Priority.LARGE:
                self._last_single = now
            for text in texts:
                self.queue.put(text)
            self.ready.notify(len(texts))

    def drop(self, texts: Sequence[QueuedText]) -> None:
        """Remove texts that still wait and that nobody wants."""
        with self.ready:
            for text in texts:
                self.queue.drop(text)
            self._cores.wake_others(self)

    def wait_seconds(self) -> float:
        """An estimate of the seconds until everything that waits now is done."""
        return self.queue.tokens / (self.tokens_per_second * self._cores.count)

    def stop(self) -> None:
        """Begin no further batch, and wait for those that run."""
        with self.ready:
            self._stopped = True
            self.ready.notify_all()
        for thread in self._running:
            thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            texts, alone = batch
            taken = perf_counter()
            try:
                results = self._results(texts, alone)
            finally:
                seconds = perf_counter() - taken
                with self.ready:
                    self.busy -= 1
                    speed = sum(text.length for text in texts) / max(seconds, 1e-9)
                    self.tokens_per_second += LEARNING * (speed - self.tokens_per_second)
                    self._cores.wake_others(self)
            self._deliver(FinishedBatch(texts, results, taken, seconds))

    def _next(self) -> tuple[list[QueuedText], bool] | None:
        """The next batch, and whether it has all cores; None: the workers were stopped."""
        with self.ready:
            while not self._stopped:
                if not len(self.queue) or not self._cores.free_for(self):
                    self.ready.wait()
                    continue
                self._wait_for_more()
                if not self._cores.free_for(self):
                    continue
                texts = self.queue.take(self._budget())
                if texts:
                    alone = self._cores.all_idle
                    self._cores.take(self)
                    if len(self.queue):
                        self.ready.notify()  # this thread may have been woken instead of an idle one
                    return texts, alone
            return None

    def _wait_for_more(self) -> None:
        """A moment, and only while others compute, little waits, and another text is likely to come within it."""
        end = perf_counter() + COMPANY_SECONDS
        while self.busy and self._gap < COMPANY_SECONDS and self._little_waits() and not self._stopped:
            left = end - perf_counter()
            if left <= 0:
                return
            self.ready.wait(left)

    def _little_waits(self) -> bool:
        queue = self.queue
        return 0 < queue.tokens < self._batch_tokens // 4 and not queue.count[Priority.URGENT]

    def _budget(self) -> int:
        """Tokens of the next batch: a full one where only small requests wait, as these finish sooner together."""
        if not self.queue.count[Priority.LARGE]:
            return self._batch_tokens
        mixed = perf_counter() - self._last_single < MIXED_MEMORY
        tokens = int(self.tokens_per_second * (MIXED_SECONDS if mixed else BATCH_SECONDS))
        # Never so few that the batches themselves make the measured speed fall.
        return max(self._batch_tokens // (8 if mixed else 4), min(self._batch_tokens, tokens))

    def _results(self, texts: Sequence[QueuedText], alone: bool) -> list[NDArray[Any] | Exception]:
        try:
            return list(self._compute(texts[0].batch_key, [text.windows for text in texts], alone))
        except Exception as error:
            if len(texts) == 1:
                log.error("a text of %d tokens fails: %s", texts[0].length, type(error).__name__)
                return [error]
        half = len(texts) // 2
        return [*self._results(texts[:half], alone), *self._results(texts[half:], alone)]
