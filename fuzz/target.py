"""The definition of a target, and the table of all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parent.parent
CASES = ROOT / "fuzz" / "cases"
TARGET_FILES = ("checkpoints", "gguf", "texts", "arrays", "folders", "settings", "conditions", "http")
"""Modules of `fuzz.targets`; each adds its targets when it is imported."""

Kind = Literal["json", "lines", "text", "bytes", "http"]
"""How inputs are mutated, besides single bytes: see `mutate.py`."""


class WrongAnswerError(AssertionError):
    """A target's own rule is broken, such as two stores that answer differently."""


@dataclass(frozen=True)
class Job:
    """A target that is ready to run."""

    seeds: list[bytes]
    """Valid inputs: where mutation starts."""
    run: Callable[[bytes], object]
    """Runs one input. Only a GemelError may be raised."""
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Target:
    name: str
    kind: Kind
    make: Callable[[Path], Job]
    """Builds what the target needs in an empty folder."""
    covers: tuple[str, ...]
    """Modules whose lines are counted as coverage."""
    limit_seconds: float = 20.0
    """For one input; the machine may be busy."""
    limit_mb: int = 1500
    """Memory that one input may add."""
    postgres: bool = False
    """Can use a PostgreSQL server, whose address is in GEMEL_FUZZ_POSTGRES."""


TARGETS: dict[str, Target] = {}


def target(
    name: str, kind: Kind, *covers: str, **limits: Any
) -> Callable[[Callable[[Path], Job]], Callable[[Path], Job]]:
    """Adds a function that builds a job to the table."""

    def add(make: Callable[[Path], Job]) -> Callable[[Path], Job]:
        TARGETS[name] = Target(name, kind, make, covers, **limits)
        return make

    return add


def load_targets() -> dict[str, Target]:
    """The whole table, in a fixed order."""
    helpers = str(ROOT / "tests" / "support")  # tiny models, a PostgreSQL server and so on
    if helpers not in sys.path:
        sys.path.insert(0, helpers)
    for name in TARGET_FILES:
        import_module(f"fuzz.targets.{name}")
    if more := os.environ.get("GEMEL_FUZZ_TARGETS"):  # a module with further targets, for tests of the runner
        import_module(more)
    return TARGETS


def cases() -> list[tuple[str, Path]]:
    """Inputs that once broke a target: its name and the file."""
    return [(path.parent.name, path) for path in sorted(CASES.glob("*/*")) if path.is_file()]
