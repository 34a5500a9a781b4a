"""The shape of every task: `load` reads data, `score` runs an encoder on it.

A task is defined in one file, registered where it is defined, and found by the name that users type. `TASK_FILES` names
the file of each task, so that only the one that is asked for is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gemel.evaluation.scores import Scores
from gemel.registry import Table
from gemel.types import Encoder


class Task(Protocol):
    """Data that was read and checked, ready for any encoder."""

    def score(self, encoder: Encoder) -> Scores:
        """The numbers of one encoder; the same encoder and data give the same numbers."""
        ...


LoadTask: TypeAlias = Callable[..., list[Task]]
"""`load(path, **settings) -> tasks`: one for each data set found in a file or folder."""

TASKS: Table[LoadTask] = Table("task")
"""Filled by the decorator `@TASKS.add("name")` on each task's `load`."""

TASK_FILES = {
    "arguments": "arguments",
    "binary-pairs": "binary_pairs",
    "clustering": "clustering",
    "duplicates": "duplicates",
    "mining": "mining",
    "nli": "nli",
    "reranking": "reranking",
    "retrieval": "retrieval",
    "sts": "sts",
    "transfer": "transfer",
    "translation": "translation",
    "triplets": "triplets",
}
"""Task to the module of this package that defines it."""


def load_task(name: str, data: str | Path, **settings: Any) -> list[Task]:
    """The tasks of this name in a file or folder of data."""
    if name in TASK_FILES:
        import_module(f"gemel.evaluation.{TASK_FILES[name]}")
    elif name not in TASKS:
        for file in TASK_FILES.values():  # so that the error can list them all
            import_module(f"gemel.evaluation.{file}")
    return TASKS[name](Path(data), **settings)
