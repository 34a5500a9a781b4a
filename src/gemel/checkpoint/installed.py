"""Models that installed wheels of `gemel models wheel` carry: found by their entry point, used where they lie.

Nothing of the package is imported. Only a name that is not in the cache is looked for here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gemel.errors import ModelError

GROUP = "gemel.models"
"""The group of entry points: a model's name = the package whose folder `model` holds it."""
INSIDE = "model"


@dataclass(frozen=True)
class InstalledModel:
    """A model in site-packages."""

    name: str
    folder: Path
    package: str
    """What pip calls the wheel."""
    version: str


def installed_models() -> list[InstalledModel]:
    """Every model that an installed wheel carries, by name."""
    from importlib.metadata import entry_points

    found = []
    for point in entry_points(group=GROUP):
        home = point.dist
        if home is None or not re.fullmatch(r"[A-Za-z_]\w*", point.value):
            continue
        folder = Path(str(home.locate_file(f"{point.value}/{INSIDE}")))
        if folder.is_dir():
            found.append(InstalledModel(point.name, folder, home.name, home.version))
    return sorted(found, key=lambda model: (model.name, model.package))


def find_installed(name: str) -> InstalledModel | None:
    """The installed model of this name; two of them are refused, since nobody could say which was meant."""
    found = [model for model in installed_models() if model.name == name]
    if len(found) > 1:
        packages = ", ".join(model.package for model in found)
        raise ModelError(f"{name!r} is carried by {len(found)} packages: {packages}. Uninstall all but one")
    return found[0] if found else None
