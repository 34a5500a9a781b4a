"""Estimators for scikit-learn: `SentenceVectors`, a transformer, and `FewShotClassifier`. Extra `evaluate`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gemel.errors import MissingExtra

__all__ = ["FewShotClassifier", "SentenceVectors"]

_MODULES = {"FewShotClassifier": "few_shot", "SentenceVectors": "vectors"}

if TYPE_CHECKING:
    from gemel.sklearn.few_shot import FewShotClassifier as FewShotClassifier
    from gemel.sklearn.vectors import SentenceVectors as SentenceVectors


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute can be anything
    if name not in _MODULES:
        raise AttributeError(f"module 'gemel.sklearn' has no attribute {name!r}")
    try:
        return getattr(import_module(f"gemel.sklearn.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        raise MissingExtra(f"gemel.sklearn.{name}", "scikit-learn", "evaluate") from error


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
