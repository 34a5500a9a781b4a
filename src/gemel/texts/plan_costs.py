"""What a plan is asked for: how many texts, which network, which machines, what they cost.

The formulas: core-seconds, bytes and counts out of a question and the constants. docs/explanation/scale.md says why.

Nothing here knows of money, hours or words.

What the formulas know of a processor: numbers that were measured, and where they come from.

They come with the package (`plan_costs.json`, made by benchmarks/plan_fit.py from committed results).
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
    """The defaults of the network are those of all-MiniLM-L6-v2."""

    texts: float
    """Texts in all; 1e9 is a way to write it."""
    mean_tokens: float = 20.0
    """Tokens of a text on average, marks included."""
    text_bytes: float | None = None
    """Bytes of a text on average. None: 4 a token."""
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
    """Machines for encoding and pairs. An index is built and held whole by each."""
    queries_per_second: float = 10.0
    """Searches, each with a text to encode."""
    block: int = 2048
    """Documents a commit of the index, as in `gemel index add`."""
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
TRAINED_ON = 40  # vectors a list that k-means sees

ROUNDS = 10  # of k-means

SMALL = 8192  # rows of a fragment that is not merged with others

MANY_SMALL = 64  # fragments below it, from which on they are merged


def encode_seconds(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Core-seconds."""
    if question.texts_per_second is not None:
        return texts / question.texts_per_second
    return texts * question.flop(question.mean_tokens) / known.encode_flop[question.precision]


def pair_seconds(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Core-seconds for the best pairs of all: half a square."""
    return texts * (texts - 1) / 2 * question.dim / known.pair_products


def scan_seconds(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Core-seconds for one query that is compared with every vector."""
    return known.search_seconds + texts * question.dim / known.search_products


def lists_of(texts: float) -> float:
    return max(1.0, min(4 * sqrt(texts), texts / 200))


def write_seconds(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Core-seconds of the one writer: each row, merges, and each commit's two looks at the ids that are there."""
    commits = texts / question.block
    merged = texts if question.block < SMALL and commits > MANY_SMALL else 0.0
    looks = 2 * commits * texts / 2
    return texts * known.write_seconds + merged * known.merge_seconds + looks * known.look_seconds


def list_seconds(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Core-seconds of k-means and of finding each row its list; these use all cores of a machine."""
    lists = lists_of(texts)
    products = (ROUNDS * TRAINED_ON * lists + texts) * lists * question.dim
    return products / known.list_products


def copy_seconds(known: Constants, texts: float) -> float:
    """Core-seconds of building besides: reading, copying, coding, trying how many lists to visit."""
    return texts * known.build_seconds


def ask_seconds(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Core-seconds for one query in the index, its text encoded already."""
    codes = min(texts, known.asked_codes * pow(texts / known.asked_at, known.asked_power))
    centres = lists_of(texts) * question.dim / known.list_products
    return known.ask_seconds + centres + codes * known.code_seconds


def index_memory(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Bytes that a process which searches cannot do without."""
    return known.base_memory + texts * (known.code_bytes * question.dim + known.row_memory)


def mapped_bytes(question: PlanQuestion, texts: float) -> float:
    """Bytes of vectors and texts that are read from files: from memory while there is room for them."""
    return texts * (4 * question.dim + question.bytes_of_text)


def index_disk(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Bytes while it is built: the table, the table merged, and the copy for search."""
    row = 3 * (4 * question.dim + question.bytes_of_text) + known.code_bytes * question.dim + known.row_disk
    return texts * row


def folder_disk(question: PlanQuestion, texts: float) -> float:
    """Bytes of a folder of float32 vectors, with a short id each."""
    return texts * (4 * question.dim + 16)


def fragments_of(question: PlanQuestion, texts: float) -> float:
    """Files of rows before they are compacted."""
    return texts / max(SMALL, question.block)


def manifest_bytes(question: PlanQuestion, known: Constants, texts: float) -> float:
    """Bytes that all commits together write to say which fragments there are."""
    commits = texts / question.block
    return commits * fragments_of(question, texts) / 2 * known.fragment_bytes


@dataclass(frozen=True)
class Constants:
    """Rates are those of one core; a row is a passage of the index."""

    source: str
    """Where the numbers come from, for a person."""
    encode_flop: Mapping[str, float]
    """Operations of the network a second, by precision."""
    pair_products: float
    """Multiply-adds a second of `similar_pairs`, as if it computed every one."""
    search_products: float
    """The same of exact `search`."""
    search_seconds: float
    """Of exact search, for a query besides its products."""
    list_products: float
    """Multiply-adds a second of faiss, which trains and fills the lists."""
    write_seconds: float
    """For a row that is written to the index."""
    merge_seconds: float
    """For a row whose small fragment is merged with others."""
    look_seconds: float
    """For a stored row that is looked at to see whether a new id is there."""
    build_seconds: float
    """For a row when lists are built, besides their products."""
    ask_seconds: float
    """For a query in lists, whatever their size."""
    code_seconds: float
    """For a code that a query looks at."""
    asked_at: float
    """Rows of the largest index that was asked."""
    asked_codes: float
    """Codes that a query looked at there."""
    asked_power: float
    """How the looked-at codes grow: rows to this power."""
    code_bytes: float
    """Of a code, for each number of the vector."""
    row_memory: float
    """Bytes for a row in memory besides its code."""
    base_memory: float
    """Bytes of a process with a model and an index of no rows."""
    row_disk: float
    """Bytes for a row on disk besides vectors, texts and code."""
    fragment_bytes: float
    """Of a fragment in the list that each commit writes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@cache
def committed() -> Constants:
    """Those that come with the package."""
    text = files("gemel.texts").joinpath("plan_costs.json").read_text(encoding="utf-8")
    return Constants(**json.loads(text))
