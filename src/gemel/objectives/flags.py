"""All settings of all objectives, for a command line that takes any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from gemel.objectives.table import OBJECTIVE_FILES, objective_class


@dataclass(frozen=True)
class Setting:
    """One name that some objectives have a setting for."""

    name: str
    annotation: object
    defaults: Mapping[str, Any]
    """Objective to its default."""
    owner: type
    """The class whose docstring of the field explains it."""


def all_settings() -> list[Setting]:
    """Every setting once, by name; objectives that share a name share its meaning."""
    found: dict[str, Setting] = {}
    for name in sorted(OBJECTIVE_FILES):
        cls = objective_class(name)
        types = get_type_hints(cls)
        for field in fields(cls):  # type: ignore[arg-type]
            known = found.get(field.name)
            defaults = {**(known.defaults if known else {}), name: field.default}
            found[field.name] = Setting(
                field.name, types[field.name], defaults, known.owner if known else cls
            )
    return [found[name] for name in sorted(found)]
