"""What there is to choose from: each objective with the columns it needs, for a command and a page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gemel.objectives.table import OBJECTIVE_FILES, Needs, Objective, objective_class


@dataclass(frozen=True)
class Listed:
    """An objective and the columns it needs, under the settings that `when` says."""

    name: str
    when: dict[str, tuple[str, ...]]
    """Setting to values; empty for the defaults."""
    needs: Needs
    about: str
    """One line."""

    @property
    def columns(self) -> str:
        """The text columns in words."""
        more = f" (+ more {self.needs.more}s)" if self.needs.more else ""
        return ", ".join(self.needs.texts) + more

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "when": {setting: list(values) for setting, values in self.when.items()},
            "texts": list(self.needs.texts),
            "more": self.needs.more,
            "label": self.needs.label,
            "about": self.about,
        }


def listed() -> list[Listed]:
    """All objectives by name; one that needs other columns under another setting stands there again."""
    return [row for name in sorted(OBJECTIVE_FILES) for row in _forms(name, objective_class(name))]


def _forms(name: str, cls: type[Objective]) -> list[Listed]:
    about = (cls.__doc__ or "").partition("\n")[0]
    rows = [Listed(name, {}, cls().needs, about)]
    types = get_type_hints(cls)
    for field in fields(cls):  # type: ignore[arg-type]
        if get_origin(types[field.name]) is not Literal:
            continue
        others: dict[Needs, tuple[str, ...]] = {}
        for value in get_args(types[field.name]):
            needs = cls(**{field.name: value}).needs
            if needs != rows[0].needs:
                others[needs] = (*others.get(needs, ()), value)
        rows += [Listed(name, {field.name: values}, needs, about) for needs, values in others.items()]
    return rows
