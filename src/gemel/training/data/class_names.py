"""Names of classes: how they are written, and their order, which is the same in every run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

NLI = ("entailment", "neutral", "contradiction")
UNLABELLED = ("", "-", "None", "nan")  # "-" in SNLI: the annotators did not agree


def plain_name(value: Any) -> str:  # noqa: ANN401 - a label as it stands in the data
    """The label as a name: no space around it, whole numbers without a point, NLI's names in lower case."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    name = str(value).strip()
    return name.lower() if name.lower() in NLI else name


def ordered(names: Collection[str]) -> tuple[str, ...]:
    """NLI's in their usual order, numbers by value, others by the alphabet."""
    if set(names) <= set(NLI):
        return tuple(name for name in NLI if name in names)
    if all(name.lstrip("-").isdigit() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))
