"""The shape of every task: `load` reads data, `score` runs an encoder on it.

A task is defined in one file, registered where it is defined, and found by the name that users type. `TASK_FILES` names
the file of each task, so that only the one that is asked for is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gemel.errors import InputError
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
    """The tasks of this name in a file or folder of data. A setting that is None is left at the task's default."""
    if name in TASK_FILES:
        import_module(f"gemel.evaluation.{TASK_FILES[name]}")
    elif name not in TASKS:
        close = get_close_matches(name, TASK_FILES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"unknown task {name!r}.{hint} Known: {', '.join(sorted({*TASK_FILES, *TASKS}))}")
    load, given = TASKS[name], {key: value for key, value in settings.items() if value is not None}
    known = [each.name for each in signature(load).parameters.values() if each.kind is each.KEYWORD_ONLY]
    for key in given:
        if key not in known:
            raise InputError(f"task {name!r} has no setting {key!r}. It has {', '.join(known) or 'none'}")
    return load(Path(data), **given)
