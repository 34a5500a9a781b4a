"""Every setting of scoring pairs with a cross-encoder, once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from gemel.errors import InputError
from gemel.options import EncodeOptions, Precision


@dataclass(frozen=True, kw_only=True)
class CrossOptions:
    """How pairs are scored. None of it but `precision` and `max_length` changes a bit of a result."""

    precision: Precision | None = None
    """Numbers used in the computation: float32 or int8. None: as chosen at load."""
    max_length: int | None = None
    """Tokens of a pair that count, marks included. None: as the checkpoint says."""
    on_long: Literal["warn", "error", "truncate"] = "warn"
    """A pair over `max_length`: warn and cut, error, or truncate without a word. The longer text is cut first."""
    threads: int | None = None
    """Pairs are scored on this many cores. None: all that the process may use."""
    memory: int | str = "256MB"
    """Working memory for activations, all threads together, in bytes or as "1GB"."""
    progress: bool = False
    """Show pairs per second and the time left on standard error."""

    def __post_init__(self) -> None:
        EncodeOptions(**asdict(self))  # the same rules, in the same words
        if self.on_long not in ("warn", "error", "truncate"):
            raise InputError(f"on_long must be one of warn, error, truncate for pairs, got {self.on_long!r}")


def changed(options: CrossOptions | None, changes: dict[str, Any]) -> CrossOptions:
    """The options with some fields replaced; a name that is no field gets a helpful error."""
    known = [field.name for field in fields(CrossOptions)]
    for name in changes:
        if name not in known:
            raise InputError(f"unknown option {name!r} of a cross-encoder. Known: {', '.join(known)}")
    return replace(options or CrossOptions(), **changes)
