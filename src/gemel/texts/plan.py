"""`plan`: what a number of texts costs on given machines, in hours, bytes and money, and what breaks first.

A pure function of a `PlanQuestion` (texts, network, machines) and of `Constants`: measured rates of one core, which
come with the package (plan_costs.json, written by benchmarks/plan_fit.py). docs/explanation/scale.md explains the
formulas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from math import ceil, pow, sqrt
from typing import Any, get_args

from gemel.errors import InputError
from gemel.options import Precision, check_choice, parse_bytes

HOUR = 3600.0

MONTH = 730.0  # hours

WEEK = 7 * 24 * HOUR

BUSY = 0.5  # share of a server's cores: with more, requests wait for one another

ENCODER = 300e6  # bytes of a process that encodes; measured in benchmarks/results/encode.json

# Of gemel.index.lance; a test compares them.
TRAINED_ON = 40  # vectors per list that k-means sees

ROUNDS = 10  # of k-means

SMALL = 8192  # rows of a fragment that is not merged with others

MANY_SMALL = 64  # fragments smaller than that are merged from this number on

_MOST = 1e15  # texts


def plan(question: PlanQuestion, constants: Constants | None = None) -> Plan:
    """The costs of `question`; constants None: those that come with the package."""
    costs = Costs(question, constants or committed())
    return Plan(question, costs.parts(), costs.searching(), tuple(costs.limits()), costs.rates)


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """Texts, network and machines of a plan; the network is all-MiniLM-L6-v2 by default."""

    texts: float
    """Number of texts; 1e9 is a way to write it."""
    mean_tokens: float = 20.0
    """Tokens of a text on average, special tokens included."""
    text_bytes: float | None = None
    """Bytes of a text on average. None: 4 per token."""
    dim: int = 384
    """Numbers of a stored vector."""
    layers: int = 6
    """Blocks of the network."""
    width: int = 384
    """Numbers of a token inside the network."""
    inner: int = 1536
    """Numbers of its feed-forward step."""
    precision: Precision = "float32"
    """Numbers used in the computation: float32, bfloat16 (float32 where the processor cannot) or int8 (fastest, nearly
    as good). bfloat16 is planned as float32, which it is at worst."""
    texts_per_second: float | None = None
    """Texts that one core encodes in a second, as `gemel bench` measures it. None: an estimate."""
    cores: int = 64
    """Cores of one machine."""
    memory: int | str = "256GB"
    """Memory of one machine."""
    machines: int = 1
    """Machines for encoding and pairs. Each one builds and has the whole index."""
    queries_per_second: float = 10.0
    """Searches, each with a text to encode."""
    block: int = 2048
    """Documents per commit of the index, as in `gemel index add`."""
    price_core_hour: float = 0.04
    """Money for a core for an hour."""
    price_gb_month: float = 0.02
    """Money for a gigabyte on disk for a month."""

    def __post_init__(self) -> None:
        for name in ("texts", "mean_tokens", "dim", "layers", "width", "inner", "cores", "machines"):
            if not 1 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a number of at least 1, got {getattr(self, name)!r}")
        if self.block < 1:
            raise InputError(f"block must be at least 1, got {self.block}")
        for name in ("queries_per_second", "price_core_hour", "price_gb_month"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must not be negative, got {getattr(self, name)!r}")
        if self.texts_per_second is not None and not 0 < self.texts_per_second < float("inf"):
            raise InputError(f"texts_per_second must be a number above 0, got {self.texts_per_second!r}")
        if self.text_bytes is not None and self.text_bytes < 0:
            raise InputError(f"text_bytes must not be negative, got {self.text_bytes!r}")
        check_choice("precision", self.precision, get_args(Precision))
        parse_bytes(self.memory)

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory)

    @property
    def bytes_of_text(self) -> float:
        return 4 * self.mean_tokens if self.text_bytes is None else self.text_bytes

    def flop(self, tokens: float) -> float:
        """Operations of the network for one text: its matrices for each token, and the attention."""
        weights = self.layers * (4 * self.width**2 + 2 * self.width * self.inner)
        return 2 * weights * tokens + self.layers * 4 * tokens**2 * self.width


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


@dataclass(frozen=True)
class Costs:
    """Core-seconds, bytes and counts for any number of texts, on the network and the machines of the question."""

    question: PlanQuestion
    rates: Constants

    @property
    def all_cores(self) -> int:
        return self.question.cores * self.question.machines

    def encode_seconds(self, texts: float) -> float:
        """Core-seconds to encode all texts."""
        question = self.question
        if question.texts_per_second is not None:
            return texts / question.texts_per_second
        precision = "int8" if question.precision == "int8" else "float32"
        return texts * question.flop(question.mean_tokens) / self.rates.encode_flop[precision]

    def pair_seconds(self, texts: float) -> float:
        """Core-seconds for the best pairs of all: half a square."""
        return texts * (texts - 1) / 2 * self.question.dim / self.rates.pair_products

    def scan_seconds(self, texts: float) -> float:
        """Core-seconds for one query that is compared with every vector."""
        return self.rates.search_seconds + texts * self.question.dim / self.rates.search_products

    def write_seconds(self, texts: float) -> float:
        """Core-seconds of the one writer: each row, merges, and two lookups of all stored ids per commit."""
        block, rates = self.question.block, self.rates
        commits = texts / block
        merged = texts if block < SMALL and commits > MANY_SMALL else 0.0
        lookups = 2 * commits * texts / 2
        return texts * rates.write_seconds + merged * rates.merge_seconds + lookups * rates.look_seconds

    def list_seconds(self, texts: float) -> float:
        """Core-seconds of k-means and of assigning each row to its list; these use all cores of a machine."""
        lists = lists_of(texts)
        products = (ROUNDS * TRAINED_ON * lists + texts) * lists * self.question.dim
        return products / self.rates.list_products

    def copy_seconds(self, texts: float) -> float:
        """Further core-seconds of building: reading, copying, coding, measuring how many lists to visit."""
        return texts * self.rates.build_seconds

    def ask_seconds(self, texts: float) -> float:
        """Core-seconds for one query in the index, its text encoded already."""
        rates = self.rates
        codes = min(texts, rates.asked_codes * pow(texts / rates.asked_at, rates.asked_power))
        centroids = lists_of(texts) * self.question.dim / rates.list_products
        return rates.ask_seconds + centroids + codes * rates.code_seconds

    def index_memory(self, texts: float) -> float:
        """Bytes that a searching process needs in memory."""
        rates = self.rates
        return rates.base_memory + texts * (rates.code_bytes * self.question.dim + rates.row_memory)

    def mapped_bytes(self, texts: float) -> float:
        """Bytes of vectors and texts that are read from memory-mapped files."""
        return texts * (4 * self.question.dim + self.question.bytes_of_text)

    def index_disk(self, texts: float) -> float:
        """Bytes while it is built: the table, the table merged, and the copy for search."""
        row = self.rates.code_bytes * self.question.dim + self.rates.row_disk
        return 3 * self.mapped_bytes(texts) + texts * row

    def fragments(self, texts: float) -> float:
        """Files of rows before they are compacted."""
        return texts / max(SMALL, self.question.block)

    def manifest_bytes(self, texts: float) -> float:
        """Bytes that all commits together write to list the fragments."""
        return texts / self.question.block * self.fragments(texts) / 2 * self.rates.fragment_bytes

    def parts(self) -> tuple[Part, ...]:
        """Encoding, the index and all pairs."""
        question, texts = self.question, self.question.texts
        encode, pairs = self.encode_seconds(texts) / HOUR, self.pair_seconds(texts) / HOUR
        # Only k-means and the assignment of rows to lists use several cores.
        alone = self.write_seconds(texts) + self.copy_seconds(texts)
        lists = self.list_seconds(texts)
        hours = (alone + lists / question.cores) / HOUR
        folder = texts * (4 * question.dim + 16)  # float32 vectors, with a short id each
        # The vectors of pairs are memory-mapped; with less memory they are read again and again.
        vectors = 4.0 * question.dim * texts
        rows = (
            ("encode", encode, encode / self.all_cores, ENCODER, folder),
            ("index", (alone + lists) / HOUR, hours, self.index_memory(texts), self.index_disk(texts)),
            ("pairs", pairs, pairs / self.all_cores, vectors, 0.0),
        )
        return tuple(Part(*row, money=row[1] * question.price_core_hour) for row in rows)

    def searching(self) -> Searching:
        """What the rate of searches takes."""
        question, texts = self.question, self.question.texts
        encode = self.encode_seconds(1)
        one = encode + self.ask_seconds(texts)
        servers = max(1, ceil(question.queries_per_second * one / (BUSY * question.cores)))
        disk = self.index_disk(texts) / 1e9 * question.price_gb_month
        return Searching(
            servers=servers,
            core_seconds=one,
            memory=self.index_memory(texts),
            mapped=self.mapped_bytes(texts),
            money_month=servers * question.cores * MONTH * question.price_core_hour + disk,
            exact_core_seconds=encode + self.scan_seconds(texts),
        )

    def limits(self) -> list[Limit]:
        """All limits, the lowest first. Work that takes more than a week counts as impossible."""
        limits = [*self._index_limits(), *self._memory_limits(), *self._work_limits()]
        return sorted(limits, key=lambda limit: limit.texts)

    def _limit(
        self, name: str, grows: Callable[[float], float], most: float, words: str, *, hard: bool = True
    ) -> Limit:
        texts = up_to(grows, most)
        return Limit(name, texts, self.question.texts > texts, words, hard)

    def _memory_limits(self) -> Iterator[Limit]:
        texts, memory = self.question.texts, self.question.memory_bytes
        yield self._limit(
            "memory of the index",
            self.index_memory,
            memory,
            f"a server has the codes and ids of all rows in memory: {size(self.index_memory(texts))} for this many. "
            "gemel does not distribute an index over machines; take machines with more memory, fewer dimensions, or "
            "one index for each part of the texts with a program of yours in front",
        )
        yield self._limit(
            "vectors in memory",
            lambda n: self.index_memory(n) + self.mapped_bytes(n),
            memory,
            f"exact vectors and texts ({size(self.mapped_bytes(texts))}) no longer fit beside the "
            "codes; each query then reads some dozens of vectors from disk, so the disk decides the latency",
            hard=False,
        )

    def _work_limits(self) -> Iterator[Limit]:
        texts, cores = self.question.texts, self.all_cores
        yield self._limit(
            "the triangle of all pairs",
            lambda n: self.pair_seconds(n) / cores,
            WEEK,
            f"all pairs are n²/2 comparisons, {duration(self.pair_seconds(texts) / cores / HOUR)} for this many on "
            f"{cores:,} cores; ten times the texts are a hundred times the work. Let an index propose the neighbors "
            "of each text (index.search_many), or compare within groups",
        )
        yield self._limit(
            "encoding",
            lambda n: self.encode_seconds(n) / cores,
            WEEK,
            f"{duration(self.encode_seconds(texts) / cores / HOUR)} on {cores:,} cores for "
            "this many. It grows with the texts only and divides over machines; int8 or a smaller model helps",
        )

    def _index_limits(self) -> Iterator[Limit]:
        question, texts = self.question, self.question.texts
        yield self._limit(
            "one writer",
            self.write_seconds,
            WEEK,
            f"rows go in one commit after the other, and each of {texts / question.block:,.0f} commits searches all "
            f"stored ids: {duration(self.write_seconds(texts) / HOUR)} on one core. Larger "
            "blocks help in proportion (--block)",
        )
        yield self._limit(
            "fragments",
            lambda n: self.manifest_bytes(n) / (n * 4 * question.dim),
            1.0,
            f"each commit writes the list of all fragments again ({self.fragments(texts):,.0f} at the end); those "
            f"lists together are {size(self.manifest_bytes(texts))}, more than the vectors from here on. "
            "Larger blocks, and `gemel index compact` now and then, help",
        )

        def build(n: float) -> float:
            return self.list_seconds(n) / question.cores + self.copy_seconds(n)

        yield self._limit(
            "building the lists",
            build,
            WEEK,
            f"one machine trains and fills all lists: {duration(build(texts) / HOUR)} on {question.cores} "
            "cores for this many, and again when a third of the rows has changed",
        )


def lists_of(texts: float) -> float:
    """Lists of the approximate index."""
    return max(1.0, min(4 * sqrt(texts), texts / 200))


def up_to(grows: Callable[[float], float], most: float) -> float:
    """The number of texts up to which a growing cost stays within `most`."""
    low, high = 1.0, _MOST
    if grows(high) <= most:
        return high
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if grows(middle) <= most else (low, middle)
    return low


@dataclass(frozen=True)
class Constants:
    """Measured rates of one core; a row is a passage of the index."""

    source: str
    """Where the numbers come from."""
    encode_flop: Mapping[str, float]
    """Operations of the network per second, by precision."""
    pair_products: float
    """Multiply-adds per second of `similar_pairs`, as if it computed every one."""
    search_products: float
    """Multiply-adds per second of exact `search`."""
    search_seconds: float
    """Of exact search, per query besides its products."""
    list_products: float
    """Multiply-adds per second of faiss, which trains and fills the lists."""
    write_seconds: float
    """Per row that is written to the index."""
    merge_seconds: float
    """Per row whose small fragment is merged with others."""
    look_seconds: float
    """Per stored row that is searched for a new id."""
    build_seconds: float
    """Per row when lists are built, besides their products."""
    ask_seconds: float
    """Per query in lists, whatever their size."""
    code_seconds: float
    """Per code that a query scores."""
    asked_at: float
    """Rows of the largest index that was measured."""
    asked_codes: float
    """Codes that a query scored there."""
    asked_power: float
    """How the scored codes grow: rows to this power."""
    code_bytes: float
    """Of a code, per dimension of the vector."""
    row_memory: float
    """Bytes per row in memory besides its code."""
    base_memory: float
    """Bytes of a process with a model and an index of no rows."""
    row_disk: float
    """Bytes per row on disk besides vectors, texts and code."""
    fragment_bytes: float
    """Of a fragment in the list that each commit writes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@cache
def committed() -> Constants:
    """The constants that come with the package."""
    text = files("gemel.texts").joinpath("plan_costs.json").read_text(encoding="utf-8")
    return Constants(**json.loads(text))


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
