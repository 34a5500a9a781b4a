"""What breaks first: for each thing that ends somewhere, the number of texts up to which it holds, in words."""

from __future__ import annotations

from collections.abc import Callable

from gemel.scale_plan import costs
from gemel.scale_plan.constants import Constants
from gemel.scale_plan.question import Question
from gemel.scale_plan.result import Limit
from gemel.scale_plan.words import duration, size

HOUR = 3600.0
WEEK = 7 * 24 * HOUR
_MOST = 1e15


def limits_of(question: Question, known: Constants) -> list[Limit]:
    """All limits, the lowest first. Work that takes more than a week counts as broken."""
    found = [
        make(question, known) for make in (_memory, _mapped, _pairs, _writer, _manifests, _lists, _encode)
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


def _limit(question: Question, name: str, texts: float, words: str, *, hard: bool = True) -> Limit:
    return Limit(name, texts, question.texts > texts, words, hard)


def _memory(question: Question, known: Constants) -> Limit:
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


def _mapped(question: Question, known: Constants) -> Limit:
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


def _pairs(question: Question, known: Constants) -> Limit:
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


def _writer(question: Question, known: Constants) -> Limit:
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


def _manifests(question: Question, known: Constants) -> Limit:
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


def _lists(question: Question, known: Constants) -> Limit:
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


def _encode(question: Question, known: Constants) -> Limit:
    cores = question.cores * question.machines
    texts = up_to(lambda n: costs.encode_seconds(question, known, n) / cores, WEEK)
    return _limit(
        question,
        "encoding",
        texts,
        f"{duration(costs.encode_seconds(question, known, question.texts) / cores / HOUR)} on {cores:,} cores for "
        "this many. It grows with the texts only and divides over machines; int8 or a smaller model helps",
    )
