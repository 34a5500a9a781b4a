"""Which extras of gemel are installed, read from what pip knows of the package."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_NOT_ON = re.compile(r"sys_platform\s*!=\s*['\"]([^'\"]+)['\"]")
_FOR_DEVELOPERS = "test"


@dataclass(frozen=True)
class Extra:
    """An extra, and what of it is not there."""

    name: str
    missing: tuple[str, ...]

    @property
    def installed(self) -> bool:
        return not self.missing


def version_of(package: str) -> str | None:
    """None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras() -> list[Extra]:
    """Every extra that users install, in the order of the package; none where gemel runs without being installed."""
    try:
        facts = metadata("gemel")
    except PackageNotFoundError:
        return []
    needs = _needs(facts.get_all("Requires-Dist") or [])
    names = [name for name in facts.get_all("Provides-Extra") or [] if not name.startswith(_FOR_DEVELOPERS)]
    return [
        Extra(name, tuple(package for package in _packages(name, needs) if version_of(package) is None))
        for name in names
    ]


def _needs(lines: list[str]) -> dict[str, list[tuple[str, list[str]]]]:
    """Extra -> (package, extras of that package) of each of its requirements on this system."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        package, extra, not_on = (
            _REQUIREMENT.match(requirement),
            _EXTRA.search(marker),
            _NOT_ON.search(marker),
        )
        if package and extra and not (not_on and not_on[1] == sys.platform):
            inner = [name.strip() for name in (package[2] or "").split(",") if name.strip()]
            found.setdefault(extra[1], []).append((package[1], inner))
    return found


def _packages(extra: str, needs: dict[str, list[tuple[str, list[str]]]]) -> list[str]:
    """Packages of an extra, those of gemel's own extras that it names among them, each once."""
    found: dict[str, None] = {}
    for package, inner in needs.get(extra, []):
        if package == "gemel":
            found |= dict.fromkeys(name for each in inner for name in _packages(each, needs))
        else:
            found[package] = None
    return list(found)
