"""`plan`: what a number of texts costs on given machines, in hours, bytes and money, and what breaks first.

A pure function of its question and the constants of plan_costs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from gemel.texts import plan_costs as costs
from gemel.texts.plan_costs import Constants, PlanQuestion, committed

HOUR = 3600.0

MONTH = 730.0  # hours

BUSY = 0.5  # share of a server's cores: with more, requests wait for one another

ENCODER = 300e6  # bytes of a process that encodes; measured in benchmarks/results/encode.json

WEEK = 7 * 24 * HOUR

_MOST = 1e15  # texts


def plan(question: PlanQuestion, constants: Constants | None = None) -> Plan:
    """The costs of `question`; constants None: those that come with the package."""
    rates = constants or committed()
    parts = (_encode(question, rates), _index(question, rates), _pairs(question, rates))
    limits = tuple(limits_of(question, rates))
    return Plan(question, parts, _searching(question, rates), limits, rates)


def index_hours(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Hours of one writer and one builder: only k-means and the assignment of rows to lists use several cores."""
    alone = costs.write_seconds(question, rates, texts) + costs.copy_seconds(rates, texts)
    return (alone + costs.list_seconds(question, rates, texts) / question.cores) / HOUR


def _encode(question: PlanQuestion, rates: Constants) -> Part:
    core_hours = costs.encode_seconds(question, rates, question.texts) / HOUR
    cores = question.cores * question.machines
    disk = costs.folder_disk(question, question.texts)
    return Part(
        "encode", core_hours, core_hours / cores, ENCODER, disk, core_hours * question.price_core_hour
    )


def _index(question: PlanQuestion, rates: Constants) -> Part:
    texts = question.texts
    seconds = costs.write_seconds(question, rates, texts) + costs.copy_seconds(rates, texts)
    core_hours = (seconds + costs.list_seconds(question, rates, texts)) / HOUR
    return Part(
        "index",
        core_hours,
        index_hours(question, rates, texts),
        costs.index_memory(question, rates, texts),
        costs.index_disk(question, rates, texts),
        core_hours * question.price_core_hour,
    )


def _pairs(question: PlanQuestion, rates: Constants) -> Part:
    core_hours = costs.pair_seconds(question, rates, question.texts) / HOUR
    cores = question.cores * question.machines
    # The vectors are memory-mapped; with less memory than this they are read again and again.
    memory = 4.0 * question.dim * question.texts
    return Part("pairs", core_hours, core_hours / cores, memory, 0.0, core_hours * question.price_core_hour)


def _searching(question: PlanQuestion, rates: Constants) -> Searching:
    texts = question.texts
    encode = costs.encode_seconds(question, rates, 1)
    one = encode + costs.ask_seconds(question, rates, texts)
    servers = max(1, ceil(question.queries_per_second * one / (BUSY * question.cores)))
    disk = costs.index_disk(question, rates, texts) / 1e9 * question.price_gb_month
    return Searching(
        servers=servers,
        core_seconds=one,
        memory=costs.index_memory(question, rates, texts),
        mapped=costs.mapped_bytes(question, texts),
        money_month=servers * question.cores * MONTH * question.price_core_hour + disk,
        exact_core_seconds=encode + costs.scan_seconds(question, rates, texts),
    )


@dataclass(frozen=True)
class Part:
    """One piece of work that is done once."""

    name: str
    core_hours: float
    hours: float
    """On the machines of the question."""
    memory: float
    """Bytes in one machine."""
    disk: float
    """Bytes, all together; 0: nothing is left there."""
    money: float
    """For the cores, while they work."""


@dataclass(frozen=True)
class Searching:
    """What a rate of searches takes, month after month."""

    servers: int
    """Machines, each with the whole index, with their cores half used."""
    core_seconds: float
    """Of one query: its text encoded, the lists searched."""
    memory: float
    """Bytes that each server needs."""
    mapped: float
    """Further bytes that each server should have in memory, or queries wait for the disk."""
    money_month: float
    """For the servers and the bytes on disk."""
    exact_core_seconds: float
    """Of one query that is compared with every vector instead."""


@dataclass(frozen=True)
class Limit:
    """A number of texts up to which something works."""

    name: str
    texts: float
    """It works up to this many."""
    reached: bool
    """The question has more."""
    words: str
    """What happens then, and what to do."""
    hard: bool = True
    """Above it the work cannot be done this way; False: it is only slower."""


@dataclass(frozen=True)
class Plan:
    """The result of `plan`: cores, hours, bytes and money, and what breaks first."""

    question: PlanQuestion
    parts: tuple[Part, ...]
    """encode, index, pairs"""
    searching: Searching
    limits: tuple[Limit, ...]
    """The lowest first."""
    constants: Constants

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def limits_of(question: PlanQuestion, rates: Constants) -> list[Limit]:
    """All limits, the lowest first. Work that takes more than a week counts as impossible."""
    found = [
        make(question, rates)
        for make in (_memory, _mapped, _pair_limit, _writer, _manifests, _lists, _encode_limit)
    ]
    return sorted(found, key=lambda limit: limit.texts)


def up_to(grows: Callable[[float], float], most: float) -> float:
    """The number of texts up to which a growing cost stays within `most`."""
    low, high = 1.0, _MOST
    if grows(high) <= most:
        return high
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if grows(middle) <= most else (low, middle)
    return low


def _limit(question: PlanQuestion, name: str, texts: float, words: str, *, hard: bool = True) -> Limit:
    return Limit(name, texts, question.texts > texts, words, hard)


def _memory(question: PlanQuestion, rates: Constants) -> Limit:
    texts = up_to(lambda n: costs.index_memory(question, rates, n), question.memory_bytes)
    need = costs.index_memory(question, rates, question.texts)
    return _limit(
        question,
        "memory of the index",
        texts,
        f"a server has the codes and ids of all rows in memory: {size(need)} for this many. gemel does not distribute "
        "an index over machines; take machines with more memory, fewer dimensions, or one index for each part of "
        "the texts with a program of yours in front",
    )


def _mapped(question: PlanQuestion, rates: Constants) -> Limit:
    def both(texts: float) -> float:
        return costs.index_memory(question, rates, texts) + costs.mapped_bytes(question, texts)

    return _limit(
        question,
        "vectors in memory",
        up_to(both, question.memory_bytes),
        f"exact vectors and texts ({size(costs.mapped_bytes(question, question.texts))}) no longer fit beside the "
        "codes; each query then reads some dozens of vectors from disk, so the disk decides the latency",
        hard=False,
    )


def _pair_limit(question: PlanQuestion, rates: Constants) -> Limit:
    cores = question.cores * question.machines
    texts = up_to(lambda n: costs.pair_seconds(question, rates, n) / cores, WEEK)
    takes = duration(costs.pair_seconds(question, rates, question.texts) / cores / HOUR)
    return _limit(
        question,
        "the triangle of all pairs",
        texts,
        f"all pairs are n²/2 comparisons, {takes} for this many on {cores:,} cores; ten times the texts "
        "are a hundred times the work. Let an index propose the neighbors of each text "
        "(index.search_many), or compare within groups",
    )


def _writer(question: PlanQuestion, rates: Constants) -> Limit:
    texts = up_to(lambda n: costs.write_seconds(question, rates, n), WEEK)
    commits = question.texts / question.block
    return _limit(
        question,
        "one writer",
        texts,
        f"rows go in one commit after the other, and each of {commits:,.0f} commits searches all stored "
        f"ids: {duration(costs.write_seconds(question, rates, question.texts) / HOUR)} on one core. Larger "
        "blocks help in proportion (--block)",
    )


def _manifests(question: PlanQuestion, rates: Constants) -> Limit:
    def share(texts: float) -> float:
        return costs.manifest_bytes(question, rates, texts) / (texts * 4 * question.dim)

    count = costs.fragments_of(question, question.texts)
    return _limit(
        question,
        "fragments",
        up_to(share, 1.0),
        f"each commit writes the list of all fragments again ({count:,.0f} at the end); those lists together are "
        f"{size(costs.manifest_bytes(question, rates, question.texts))}, more than the vectors from here on. "
        "Larger blocks, and `gemel index compact` now and then, help",
    )


def _lists(question: PlanQuestion, rates: Constants) -> Limit:
    def seconds(texts: float) -> float:
        own = costs.list_seconds(question, rates, texts) / question.cores
        return own + costs.copy_seconds(rates, texts)

    return _limit(
        question,
        "building the lists",
        up_to(seconds, WEEK),
        f"one machine trains and fills all lists: {duration(seconds(question.texts) / HOUR)} on {question.cores} "
        "cores for this many, and again when a third of the rows has changed",
    )


def _encode_limit(question: PlanQuestion, rates: Constants) -> Limit:
    cores = question.cores * question.machines
    texts = up_to(lambda n: costs.encode_seconds(question, rates, n) / cores, WEEK)
    return _limit(
        question,
        "encoding",
        texts,
        f"{duration(costs.encode_seconds(question, rates, question.texts) / cores / HOUR)} on {cores:,} cores for "
        "this many. It grows with the texts only and divides over machines; int8 or a smaller model helps",
    )


_BYTES = ("bytes", "kB", "MB", "GB", "TB", "PB")

_COUNTS = ((1e12, " T"), (1e9, " B"), (1e6, " M"))

_TIMES = ((24 * 365, "years"), (24, "days"), (1, "hours"), (1 / 60, "min"))


def size(count: float) -> str:
    """A number of bytes, as text: three digits and a unit."""
    for unit in _BYTES[:-1]:
        if round(count, 1) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} {_BYTES[-1]}"


def amount(count: float) -> str:
    """A number as text: 950, 12,300, 4.56 M, 7.8 B."""
    for unit, name in _COUNTS:
        if count >= unit:
            return f"{count / unit:,.3g}{name}" if count < 1000 * unit else f"{count / unit:,.0f}{name}"
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def moment(seconds: float) -> str:
    """Seconds as text, in seconds or milliseconds."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def duration(hours: float) -> str:
    """Hours as text, in the largest unit of which there are at least two."""
    for unit, name in _TIMES:
        if hours >= 2 * unit:
            count = hours / unit
            return f"{count:,.0f} {name}" if count >= 100 else f"{count:.3g} {name}"
    return moment(hours * 3600)
