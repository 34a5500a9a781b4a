"""What a plan answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemel.scale_plan.constants import Constants
from gemel.scale_plan.question import Question


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

    question: Question
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
