"""`repair_index`: an index that cannot be opened or written to, made usable again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemel.index.binding import bind
from gemel.index.coder import ModelCoder
from gemel.index.opening import place_of
from gemel.index.port import Header, Place
from gemel.model import Model, load
from gemel.options import EncodeOptions


@dataclass(frozen=True)
class Repaired:
    """What `repair_index` did."""

    place: str
    actions: tuple[str, ...]
    """One line each; none: nothing was damaged."""

    def lines(self) -> list[str]:
        """For a person."""
        return list(self.actions) or ["nothing is damaged, nothing was done"]


def repair_index(
    place: str | Path | Place, *, model: Model | str | Path | None = None, table: str | None = None
) -> Repaired:
    """Rebuild a lost index.json, give up rows that cannot be read, build word index and cache again where damaged.

    What can be read is kept, and tables that are not chosen are moved aside, not deleted. Copy the folder first if
    what cannot be read is worth an expert's time. Close other handles to the index before.

    model: the one that made the index, for a table that has lost what it says of itself.
    table: the one to keep (`rows-2.lance`), where index.json is lost and there are several.
    """
    home = place_of(place)
    try:
        return Repaired(home.name, tuple(home.repair(table, None if model is None else _header(model))))
    finally:
        home.close()


def _header(model: Model | str | Path) -> Header:
    coder = ModelCoder(model if isinstance(model, Model) else load(model), EncodeOptions(), None)
    return Header(coder.dim, {}, bind(coder).to_json())
