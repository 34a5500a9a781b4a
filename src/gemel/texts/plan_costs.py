"""What encoding, an index, pairs and searches cost: formulas for core-seconds, bytes and counts.

`PlanQuestion` describes the texts, the network and the machines; `Constants` are measured rates of one core, which come
with the package (plan_costs.json, made by benchmarks/plan_fit.py). docs/explanation/scale.md explains the formulas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from math import pow, sqrt
from typing import Any

from gemel.errors import InputError
from gemel.options import Precision, parse_bytes


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
    """Numbers used in the computation: float32, or int8 (faster, nearly as good)."""
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
        if self.precision not in ("float32", "int8"):
            raise InputError(f"precision must be one of float32, int8, got {self.precision!r}")
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


# Of gemel.index.lance; a test compares them.
TRAINED_ON = 40  # vectors per list that k-means sees

ROUNDS = 10  # of k-means

SMALL = 8192  # rows of a fragment that is not merged with others

MANY_SMALL = 64  # fragments smaller than that are merged from this number on


def encode_seconds(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Core-seconds to encode all texts."""
    if question.texts_per_second is not None:
        return texts / question.texts_per_second
    return texts * question.flop(question.mean_tokens) / rates.encode_flop[question.precision]


def pair_seconds(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Core-seconds for the best pairs of all: half a square."""
    return texts * (texts - 1) / 2 * question.dim / rates.pair_products


def scan_seconds(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Core-seconds for one query that is compared with every vector."""
    return rates.search_seconds + texts * question.dim / rates.search_products


def lists_of(texts: float) -> float:
    """Lists of the approximate index."""
    return max(1.0, min(4 * sqrt(texts), texts / 200))


def write_seconds(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Core-seconds of the one writer: each row, merges, and two lookups of all stored ids per commit."""
    commits = texts / question.block
    merged = texts if question.block < SMALL and commits > MANY_SMALL else 0.0
    lookups = 2 * commits * texts / 2
    return texts * rates.write_seconds + merged * rates.merge_seconds + lookups * rates.look_seconds


def list_seconds(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Core-seconds of k-means and of assigning each row to its list; these use all cores of a machine."""
    lists = lists_of(texts)
    products = (ROUNDS * TRAINED_ON * lists + texts) * lists * question.dim
    return products / rates.list_products


def copy_seconds(rates: Constants, texts: float) -> float:
    """Further core-seconds of building: reading, copying, coding, measuring how many lists to visit."""
    return texts * rates.build_seconds


def ask_seconds(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Core-seconds for one query in the index, its text encoded already."""
    codes = min(texts, rates.asked_codes * pow(texts / rates.asked_at, rates.asked_power))
    centroids = lists_of(texts) * question.dim / rates.list_products
    return rates.ask_seconds + centroids + codes * rates.code_seconds


def index_memory(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Bytes that a searching process needs in memory."""
    return rates.base_memory + texts * (rates.code_bytes * question.dim + rates.row_memory)


def mapped_bytes(question: PlanQuestion, texts: float) -> float:
    """Bytes of vectors and texts that are read from memory-mapped files."""
    return texts * (4 * question.dim + question.bytes_of_text)


def index_disk(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Bytes while it is built: the table, the table merged, and the copy for search."""
    row = 3 * (4 * question.dim + question.bytes_of_text) + rates.code_bytes * question.dim + rates.row_disk
    return texts * row


def folder_disk(question: PlanQuestion, texts: float) -> float:
    """Bytes of a folder of float32 vectors, with a short id each."""
    return texts * (4 * question.dim + 16)


def fragments_of(question: PlanQuestion, texts: float) -> float:
    """Files of rows before they are compacted."""
    return texts / max(SMALL, question.block)


def manifest_bytes(question: PlanQuestion, rates: Constants, texts: float) -> float:
    """Bytes that all commits together write to list the fragments."""
    commits = texts / question.block
    return commits * fragments_of(question, texts) / 2 * rates.fragment_bytes


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
