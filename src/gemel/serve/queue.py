"""Texts that wait for a worker: the small requests first, in turns between clients, those that fit together.

Knows neither HTTP nor vectors, and takes no lock: its owner does.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from gemel.encoder.tokenizer import Windows
from gemel.serve.port import BatchKey

LARGE_TURN = 4  # every so many batches begin with a large request, so that small ones cannot starve it


class Priority(IntEnum):
    """Who goes first."""

    URGENT = 0
    """The server's own question whether it still computes."""
    SMALL = 1
    LARGE = 2


class QueueState(IntEnum):
    WAITING = 0
    TAKEN = 1
    DROPPED = 2


@dataclass(slots=True, eq=False)
class Job:
    """One text to compute, and who waits for it."""

    key: bytes
    windows: Windows
    kind: BatchKey
    client: str
    rank: Priority
    queued: float
    state: QueueState = QueueState.WAITING
    waiters: list[tuple[Any, int]] = field(default_factory=list)
    """Each a request and the row of its answer."""

    @property
    def length(self) -> int:
        return self.windows.kept


class Turns:
    """Jobs in turns between clients; of one client, the oldest first."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Job]] = OrderedDict()

    def put(self, job: Job) -> None:
        jobs = self._clients.get(job.client)
        if jobs is None:
            jobs = self._clients[job.client] = deque()
        jobs.append(job)

    def next(self, room: int | None = None) -> Job | None:
        """The next job that still waits. None: there is none, or the next is over `room` tokens."""
        while self._clients:
            client, jobs = next(iter(self._clients.items()))
            while jobs and jobs[0].state is not QueueState.WAITING:
                jobs.popleft()
            if not jobs:
                del self._clients[client]
                continue
            if room is not None and jobs[0].length > room:
                return None
            self._clients.move_to_end(client)
            return jobs.popleft()
        return None

    def tidy(self) -> bool:
        """Forget jobs at the front that no longer wait; False: nothing is left."""
        for client in list(self._clients):
            jobs = self._clients[client]
            while jobs and jobs[0].state is not QueueState.WAITING:
                jobs.popleft()
            if not jobs:
                del self._clients[client]
        return bool(self._clients)


class Waiting:
    """All jobs that wait, and which of them go next."""

    def __init__(self, *, mixed: bool = False) -> None:
        """`mixed`: texts of several lengths go into one batch, as the engine takes them in one call."""
        self._mixed = mixed
        self.tokens = 0
        self.count = [0 for _ in Priority]
        self._ranks = [Turns() for _ in Priority]
        self._groups: dict[tuple[int, BatchKey], list[Turns]] = {}
        self._turn = 0

    def __len__(self) -> int:
        return sum(self.count)

    def put(self, job: Job) -> None:
        self.tokens += job.length
        self.count[job.rank] += 1
        self._ranks[job.rank].put(job)
        group = self._groups.get(self._key(job))
        if group is None:
            group = self._groups[self._key(job)] = [Turns() for _ in Priority]
        group[job.rank].put(job)

    def take(self, budget: int) -> list[Job]:
        """Jobs of one kind and, unless mixed, of one length: `budget` tokens together, or a longer one alone.

        Empty: none waits.
        """
        first = self._first()
        if first is None:
            return []
        group = self._groups[self._key(first)]
        batch, room = [first], budget - first.length
        for turns in group:
            while room > 0 and (job := turns.next(room)) is not None:
                self._leaves(job, QueueState.TAKEN)
                batch.append(job)
                room -= job.length
        self._tidy(first)
        return batch

    def drop(self, job: Job) -> None:
        """Nobody waits for this one any more."""
        if job.state is QueueState.WAITING:
            self._leaves(job, QueueState.DROPPED)
            self._ranks[job.rank].tidy()
            self._tidy(job)

    def _first(self) -> Job | None:
        self._turn += 1
        order = list(Priority)
        if self._turn % LARGE_TURN == 0 and not self.count[Priority.URGENT]:
            order.reverse()
        for rank in order:
            if self.count[rank] and (job := self._ranks[rank].next()) is not None:
                self._leaves(job, QueueState.TAKEN)
                return job
        return None

    def _leaves(self, job: Job, state: QueueState) -> None:
        job.state = state
        self.tokens -= job.length
        self.count[job.rank] -= 1

    def _tidy(self, job: Job) -> None:
        group = self._groups.get(self._key(job))
        if group is not None and not sum(turns.tidy() for turns in group):  # all are tidied
            del self._groups[self._key(job)]

    def _key(self, job: Job) -> tuple[int, BatchKey]:
        return 0 if self._mixed else job.length, job.kind
