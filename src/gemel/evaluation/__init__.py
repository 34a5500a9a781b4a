"""Tasks, metrics, statistics and reports: `gemel.evaluate` runs them on models."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    hint = (
        f". Evaluators of sentence-transformers: gemel.compat.evaluation.{name}"
        if "Evaluator" in name
        else ""
    )
    raise AttributeError(f"module 'gemel.evaluation' has no attribute {name!r}{hint}")
