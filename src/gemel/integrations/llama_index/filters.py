"""LlamaIndex's metadata filters as conditions of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.vector_stores.types import FilterOperator, MetadataFilters

from gemel.errors import InputError

_OPERATORS = {
    FilterOperator.EQ: "=",
    FilterOperator.NE: "!=",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "not in",
}


def condition_of(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """What `Index.search` takes as `where`; None where there is nothing to ask for."""
    if filters is None or not filters.filters:
        return None
    parts = [part for part in (_part(each) for each in filters.filters) if part is not None]
    joined = str(getattr(filters.condition, "value", filters.condition) or "and")
    if not parts:
        return None
    return {"not": {"or": parts}} if joined == "not" else {joined: parts}


def all_of(*conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """All of those that are not None."""
    said: Sequence[dict[str, Any]] = [each for each in conditions if each is not None]
    return {"and": list(said)} if said else None


def _part(given: Any) -> dict[str, Any] | None:  # noqa: ANN401 - MetadataFilter or MetadataFilters
    if isinstance(given, MetadataFilters):
        return condition_of(given)
    if given.operator == FilterOperator.IS_EMPTY:
        return {given.key: None}
    if given.operator not in _OPERATORS:
        known = ", ".join(operator.value for operator in (*_OPERATORS, FilterOperator.IS_EMPTY))
        raise InputError(
            f"an index cannot filter {given.key!r} by {given.operator.value!r}. It knows: {known}"
        )
    return {given.key: {_OPERATORS[given.operator]: given.value}}
