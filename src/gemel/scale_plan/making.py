"""`plan`: the costs put on machines, with hours and money. A pure function of its question and the constants."""

from __future__ import annotations

from math import ceil

from gemel.scale_plan import costs
from gemel.scale_plan.breaking import limits_of
from gemel.scale_plan.constants import Constants, committed
from gemel.scale_plan.question import Question
from gemel.scale_plan.result import Part, Plan, Searching

HOUR = 3600.0
MONTH = 730.0  # hours
BUSY = 0.5  # of a server's cores: with more, requests wait for one another
ENCODER = 300e6  # bytes of a process that encodes; measured in benchmarks/results/encode.json


def plan(question: Question, constants: Constants | None = None) -> Plan:
    """What `question` costs. constants: None: those that come with the package."""
    known = constants or committed()
    parts = (_encode(question, known), _index(question, known), _pairs(question, known))
    limits = tuple(limits_of(question, known))
    return Plan(question, parts, _searching(question, known), limits, known)


def index_hours(question: Question, known: Constants, texts: float) -> float:
    """One writer and one builder: only k-means and the search for each row's list use several cores."""
    alone = costs.write_seconds(question, known, texts) + costs.copy_seconds(known, texts)
    return (alone + costs.list_seconds(question, known, texts) / question.cores) / HOUR


def _encode(question: Question, known: Constants) -> Part:
    core_hours = costs.encode_seconds(question, known, question.texts) / HOUR
    cores = question.cores * question.machines
    disk = costs.folder_disk(question, question.texts)
    return Part(
        "encode", core_hours, core_hours / cores, ENCODER, disk, core_hours * question.price_core_hour
    )


def _index(question: Question, known: Constants) -> Part:
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


def _pairs(question: Question, known: Constants) -> Part:
    core_hours = costs.pair_seconds(question, known, question.texts) / HOUR
    cores = question.cores * question.machines
    # The vectors are mapped, so the system may drop them; with less memory than this they are read again and again.
    memory = 4.0 * question.dim * question.texts
    return Part("pairs", core_hours, core_hours / cores, memory, 0.0, core_hours * question.price_core_hour)


def _searching(question: Question, known: Constants) -> Searching:
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
