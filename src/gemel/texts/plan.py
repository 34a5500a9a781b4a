"""`plan`: the costs put on machines, with hours and money. A pure function of its question and the constants.

What a plan answers.

What breaks first: for each thing that ends somewhere, the number of texts up to which it holds, in words.

Numbers for a person: three digits and a unit.
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

BUSY = 0.5  # of a server's cores: with more, requests wait for one another

ENCODER = 300e6  # bytes of a process that encodes; measured in benchmarks/results/encode.json


def plan(question: PlanQuestion, constants: Constants | None = None) -> Plan:
    """What `question` costs. constants: None: those that come with the package."""
    known = constants or committed()
    parts = (_encode(question, known), _index(question, known), _pairs(question, known))
    limits = tuple(limits_of(question, known))
    return Plan(question, parts, _searching(question, known), limits, known)


def index_hours(question: PlanQuestion, known: Constants, texts: float) -> float:
    """One writer and one builder: only k-means and the search for each row's list use several cores."""
    alone = costs.write_seconds(question, known, texts) + costs.copy_seconds(known, texts)
    return (alone + costs.list_seconds(question, known, texts) / question.cores) / HOUR


def _encode(question: PlanQuestion, known: Constants) -> Part:
    core_hours = costs.encode_seconds(question, known, question.texts) / HOUR
    cores = question.cores * question.machines
    disk = costs.folder_disk(question, question.texts)
    return Part(
        "encode", core_hours, core_hours / cores, ENCODER, disk, core_hours * question.price_core_hour
    )


def _index(question: PlanQuestion, known: Constants) -> Part:
    texts = question.texts
    seconds = costs.write_seconds(question, known, texts) + costs.copy_seconds(known, texts)
    core_hours = (seconds + costs.list_seconds(question, known, texts)) / HOUR
    return Part(
        "index",
        core_hours,
        index_hours(question, known, texts),
        costs.index_memory(question, known, texts),
        costs.index_disk(question, known, texts),
        core_hours * question.price_core_hour,
    )


def _pairs(question: PlanQuestion, known: Constants) -> Part:
    core_hours = costs.pair_seconds(question, known, question.texts) / HOUR
    cores = question.cores * question.machines
    # The vectors are mapped, so the system may drop them; with less memory than this they are read again and again.
    memory = 4.0 * question.dim * question.texts
    return Part("pairs", core_hours, core_hours / cores, memory, 0.0, core_hours * question.price_core_hour)


def _searching(question: PlanQuestion, known: Constants) -> Searching:
    texts = question.texts
    encode = costs.encode_seconds(question, known, 1)
    one = encode + costs.ask_seconds(question, known, texts)
    servers = max(1, ceil(question.queries_per_second * one / (BUSY * question.cores)))
    disk = costs.index_disk(question, known, texts) / 1e9 * question.price_gb_month
    return Searching(
        servers=servers,
        core_seconds=one,
        memory=costs.index_memory(question, known, texts),
        mapped=costs.mapped_bytes(question, texts),
        money_month=servers * question.cores * MONTH * question.price_core_hour + disk,
        exact_core_seconds=encode + costs.scan_seconds(question, known, texts),
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
    """Of one query: its text encoded, the lists asked."""
    memory: float
    """Bytes that each server cannot do without."""
    mapped: float
    """Bytes that each server should have in memory besides; else a query waits for the disk."""
    money_month: float
    """For the servers and the bytes on disk."""
    exact_core_seconds: float
    """Of one query that is compared with every vector instead."""


@dataclass(frozen=True)
class Limit:
    """Something that ends at a number of texts."""

    name: str
    texts: float
    """Up to this many it holds."""
    reached: bool
    """The question asks for more."""
    words: str
    """What happens then, and what to do."""
    hard: bool = True
    """Over it the work cannot be done so; else it is only slower."""


@dataclass(frozen=True)
class Plan:
    """Cores, hours, bytes and money, and what breaks first."""

    question: PlanQuestion
    parts: tuple[Part, ...]
    """encode, index, pairs"""
    searching: Searching
    limits: tuple[Limit, ...]
    """The one that is met first stands first."""
    constants: Constants

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


WEEK = 7 * 24 * HOUR

_MOST = 1e15


def limits_of(question: PlanQuestion, known: Constants) -> list[Limit]:
    """All limits, the lowest first. Work that takes more than a week counts as broken."""
    found = [
        make(question, known)
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


def _memory(question: PlanQuestion, known: Constants) -> Limit:
    texts = up_to(lambda n: costs.index_memory(question, known, n), question.memory_bytes)
    need = costs.index_memory(question, known, question.texts)
    return _limit(
        question,
        "memory of the index",
        texts,
        f"a server holds the codes and ids of all rows in memory: {size(need)} for this many. gemel does not divide "
        "an index over machines; take machines with more memory, fewer dimensions, or one index for each part of "
        "the texts with a program of yours in front",
    )


def _mapped(question: PlanQuestion, known: Constants) -> Limit:
    def both(texts: float) -> float:
        return costs.index_memory(question, known, texts) + costs.mapped_bytes(question, texts)

    return _limit(
        question,
        "vectors in memory",
        up_to(both, question.memory_bytes),
        f"exact vectors and texts ({size(costs.mapped_bytes(question, question.texts))}) no longer fit beside the "
        "codes; each query then reads some dozens of vectors from disk, so the disk decides the latency",
        hard=False,
    )


def _pair_limit(question: PlanQuestion, known: Constants) -> Limit:
    cores = question.cores * question.machines
    texts = up_to(lambda n: costs.pair_seconds(question, known, n) / cores, WEEK)
    takes = duration(costs.pair_seconds(question, known, question.texts) / cores / HOUR)
    return _limit(
        question,
        "the triangle of all pairs",
        texts,
        f"all pairs are n²/2 comparisons, {takes} for this many on {cores:,} cores; ten times the texts "
        "are a hundred times the work. Let an index propose the neighbours of each text "
        "(index.search_many), or compare within groups",
    )


def _writer(question: PlanQuestion, known: Constants) -> Limit:
    texts = up_to(lambda n: costs.write_seconds(question, known, n), WEEK)
    commits = question.texts / question.block
    return _limit(
        question,
        "one writer",
        texts,
        f"rows go in one commit after the other, and each of {commits:,.0f} commits looks through all ids that are "
        f"there: {duration(costs.write_seconds(question, known, question.texts) / HOUR)} on one core. Larger "
        "blocks help in proportion (--block)",
    )


def _manifests(question: PlanQuestion, known: Constants) -> Limit:
    def share(texts: float) -> float:
        return costs.manifest_bytes(question, known, texts) / (texts * 4 * question.dim)

    count = costs.fragments_of(question, question.texts)
    return _limit(
        question,
        "fragments",
        up_to(share, 1.0),
        f"each commit writes the list of all fragments anew ({count:,.0f} at the end); those lists together are "
        f"{size(costs.manifest_bytes(question, known, question.texts))}, more than the vectors from here on. "
        "Larger blocks, and `gemel index compact` now and then, help",
    )


def _lists(question: PlanQuestion, known: Constants) -> Limit:
    def seconds(texts: float) -> float:
        own = costs.list_seconds(question, known, texts) / question.cores
        return own + costs.copy_seconds(known, texts)

    return _limit(
        question,
        "building the lists",
        up_to(seconds, WEEK),
        f"one machine trains and fills all lists: {duration(seconds(question.texts) / HOUR)} on {question.cores} "
        "cores for this many, and again when a third of the rows has changed",
    )


def _encode_limit(question: PlanQuestion, known: Constants) -> Limit:
    cores = question.cores * question.machines
    texts = up_to(lambda n: costs.encode_seconds(question, known, n) / cores, WEEK)
    return _limit(
        question,
        "encoding",
        texts,
        f"{duration(costs.encode_seconds(question, known, question.texts) / cores / HOUR)} on {cores:,} cores for "
        "this many. It grows with the texts only and divides over machines; int8 or a smaller model helps",
    )


_BYTES = ("bytes", "kB", "MB", "GB", "TB", "PB")

_COUNTS = ((1e12, " T"), (1e9, " B"), (1e6, " M"))

_TIMES = ((24 * 365, "years"), (24, "days"), (1, "hours"), (1 / 60, "min"))


def size(count: float) -> str:
    """Bytes."""
    for unit in _BYTES[:-1]:
        if round(count, 1) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} {_BYTES[-1]}"


def amount(count: float) -> str:
    """A number: 950, 12,300, 4.56 M, 7.8 B."""
    for unit, name in _COUNTS:
        if count >= unit:
            return f"{count / unit:,.3g}{name}" if count < 1000 * unit else f"{count / unit:,.0f}{name}"
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def moment(seconds: float) -> str:
    """A short time."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def duration(hours: float) -> str:
    """A time, in the largest unit of which it has two."""
    for unit, name in _TIMES:
        if hours >= 2 * unit:
            count = hours / unit
            return f"{count:,.0f} {name}" if count >= 100 else f"{count:.3g} {name}"
    return moment(hours * 3600)
