"""The formulas: core-seconds, bytes and counts out of a question and the constants. docs/explanation/scale.md says why.

Nothing here knows of money, hours or words.
"""

from __future__ import annotations

from math import pow, sqrt

from gemel.scale_plan.constants import Constants
from gemel.scale_plan.question import Question

# Of gemel.index.lance; a test compares them.
TRAINED_ON = 40  # vectors a list that k-means sees
ROUNDS = 10  # of k-means
SMALL = 8192  # rows of a fragment that is not merged with others
MANY_SMALL = 64  # fragments below it, from which on they are merged


def encode_seconds(question: Question, known: Constants, texts: float) -> float:
    """Core-seconds."""
    return texts * question.flop(question.mean_tokens) / known.encode_flop[question.precision]


def pair_seconds(question: Question, known: Constants, texts: float) -> float:
    """Core-seconds for the best pairs of all: half a square."""
    return texts * (texts - 1) / 2 * question.dim / known.pair_products


def scan_seconds(question: Question, known: Constants, texts: float) -> float:
    """Core-seconds for one query that is compared with every vector."""
    return known.search_seconds + texts * question.dim / known.search_products


def lists_of(texts: float) -> float:
    return max(1.0, min(4 * sqrt(texts), texts / 200))


def write_seconds(question: Question, known: Constants, texts: float) -> float:
    """Core-seconds of the one writer: each row, merges, and each commit's two looks at the ids that are there."""
    commits = texts / question.block
    merged = texts if question.block < SMALL and commits > MANY_SMALL else 0.0
    looks = 2 * commits * texts / 2
    return texts * known.write_seconds + merged * known.merge_seconds + looks * known.look_seconds


def list_seconds(question: Question, known: Constants, texts: float) -> float:
    """Core-seconds of k-means and of finding each row its list; these use all cores of a machine."""
    lists = lists_of(texts)
    products = (ROUNDS * TRAINED_ON * lists + texts) * lists * question.dim
    return products / known.list_products


def copy_seconds(known: Constants, texts: float) -> float:
    """Core-seconds of building besides: reading, copying, coding, trying how many lists to visit."""
    return texts * known.build_seconds


def ask_seconds(question: Question, known: Constants, texts: float) -> float:
    """Core-seconds for one query in the index, its text encoded already."""
    codes = min(texts, known.asked_codes * pow(texts / known.asked_at, known.asked_power))
    centres = lists_of(texts) * question.dim / known.list_products
    return known.ask_seconds + centres + codes * known.code_seconds


def index_memory(question: Question, known: Constants, texts: float) -> float:
    """Bytes that a process which searches cannot do without."""
    return known.base_memory + texts * (known.code_bytes * question.dim + known.row_memory)


def mapped_bytes(question: Question, texts: float) -> float:
    """Bytes of vectors and texts that are read from files: from memory while there is room for them."""
    return texts * (4 * question.dim + question.bytes_of_text)


def index_disk(question: Question, known: Constants, texts: float) -> float:
    """Bytes while it is built: the table, the table merged, and the copy for search."""
    row = 3 * (4 * question.dim + question.bytes_of_text) + known.code_bytes * question.dim + known.row_disk
    return texts * row


def folder_disk(question: Question, texts: float) -> float:
    """Bytes of a folder of float32 vectors, with a short id each."""
    return texts * (4 * question.dim + 16)


def fragments_of(question: Question, texts: float) -> float:
    """Files of rows before they are compacted."""
    return texts / max(SMALL, question.block)


def manifest_bytes(question: Question, known: Constants, texts: float) -> float:
    """Bytes that all commits together write to say which fragments there are."""
    commits = texts / question.block
    return commits * fragments_of(question, texts) / 2 * known.fragment_bytes
