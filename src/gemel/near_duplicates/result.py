"""The answer: which texts stay, which go, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import MissingExtra
from gemel.types import Vectors

if TYPE_CHECKING:
    import pandas

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Spared:
    """Two texts that are near, but contradict each other, so neither is a duplicate of the other."""

    left: int
    right: int
    score: float
    probability: float
    """Of the contradiction, by the model's relation head; the larger of both directions."""


@dataclass(frozen=True)
class DuplicateGroup:
    """A kept text and those removed for it, by position."""

    kept: int
    removed: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Deduped:
    """Positions of n texts."""

    texts: int
    kept: Positions
    """Ascending."""
    removed: Positions
    """Ascending; the next three go with it."""
    duplicate_of: Positions
    """The kept text that each is a duplicate of."""
    score: Vectors
    """Their cosine; 1 for an exact duplicate."""
    exact: NDArray[np.bool_]
    """The same text, but for what was to be ignored."""
    spared: tuple[Spared, ...]
    """Pairs that were near enough but contradict each other, most similar first; empty without a relation head."""
    settings: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.kept)

    def groups(self) -> list[DuplicateGroup]:
        """Largest first, then by the position of the kept text; texts without a duplicate are in none."""
        order = np.argsort(self.duplicate_of, kind="stable")
        kept, starts = np.unique(self.duplicate_of[order], return_index=True)
        parts = np.split(self.removed[order], starts[1:]) if len(kept) else []
        found = [
            DuplicateGroup(int(one), tuple(part.tolist())) for one, part in zip(kept, parts, strict=True)
        ]
        return sorted(found, key=lambda group: (-len(group.removed), group.kept))

    def summary(self) -> str:
        """One line for a person."""
        same = int(self.exact.sum())
        parts = [
            f"{self.texts:,} texts: {len(self.kept):,} kept",
            f"{len(self.removed):,} removed ({same:,} exact, {len(self.removed) - same:,} near duplicates)",
        ]
        if self.spared:
            parts.append(f"{len(self.spared):,} near pairs kept apart because they contradict each other")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Everything, by position."""
        return {
            "texts": self.texts,
            "kept": len(self.kept),
            "removed": len(self.removed),
            "exact": int(self.exact.sum()),
            "settings": dict(self.settings),
            "duplicates": [
                {
                    "position": int(position),
                    "duplicate_of": int(other),
                    "reason": "exact" if same else "near",
                    "score": round(float(score), 6),
                }
                for position, other, same, score in zip(
                    self.removed, self.duplicate_of, self.exact, self.score, strict=True
                )
            ],
            "spared": [asdict(pair) for pair in self.spared],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each removed text."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        names = ("removed", "duplicate_of", "score", "exact")
        return pandas.DataFrame({name: getattr(self, name) for name in names})
