"""What pairs.py measures: cases, and the systems that take part in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class System:
    name: str
    title: str
    kind: str
    """A row of SYSTEMS in peers/pairs_peer.py."""
    environment: str | None = None
    """None: the runner's own, where gemel is installed."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    task: Literal["pairs", "search"]
    data: Literal["clustered", "captions"]
    count: int
    ask: dict[str, Any]
    systems: tuple[str, ...]
    queries: int = 0
    rounds: int | None = None
    """None: as many as the run has."""


SYSTEMS = {
    system.name: system
    for system in (
        System("gemel", "gemel", "ours"),
        System("gemel-float32", "gemel, plain float32", "ours", options={"prune": False}),
        System("sentence-transformers", "sentence-transformers", "sentence-transformers", "pairs"),
        System("faiss", "faiss IndexFlatIP", "faiss", "pairs"),
        System("numpy", "numpy triangle", "numpy"),
        System("sgemm-numpy", "only the products, numpy", "products", options={"library": "numpy"}),
        System("sgemm-torch", "only the products, torch", "products", "pairs", {"library": "torch"}),
    )
}
LIMITS = ("sgemm-numpy", "sgemm-torch")

_OURS = ("gemel", "gemel-float32")
_ALL = (*_OURS, "sentence-transformers", "numpy", *LIMITS)
_SEARCH = (*_OURS, "faiss", "sentence-transformers")


def cases(*, quick: bool) -> list[Case]:
    """`quick`: the same with few rows, to check that everything works."""
    ten, fifty, most = (500, 1000, 3000) if quick else (10_000, 50_000, 200_000)
    many, queries = (5000, 100) if quick else (1_000_000, 1000)
    k, near = {"k": 1000}, {"min_score": 0.75}
    return [
        Case("pairs-10k", f"best 1,000 pairs of {ten:,}", "pairs", "clustered", ten, k, _ALL),
        Case("pairs-50k", f"best 1,000 pairs of {fifty:,}", "pairs", "clustered", fifty, k, _ALL),
        Case("captions", f"best 1,000 pairs of {fifty:,} captions", "pairs", "captions", fifty, k, _ALL),
        Case(
            "threshold-50k", f"all pairs of {fifty:,} from 0.75 on", "pairs", "clustered", fifty, near,
            (*_OURS, "numpy", *LIMITS),
        ),
        Case("pairs-200k", f"best 1,000 pairs of {most:,}", "pairs", "clustered", most, k, _OURS, rounds=1),
        Case(
            "search-50k", f"{queries:,} queries in {fifty:,}", "search", "clustered", fifty, {"k": 10},
            _SEARCH, queries,
        ),
        Case(
            "search-1m", f"{queries:,} queries in {many:,}", "search", "clustered", many, {"k": 10},
            _SEARCH, queries, 3,
        ),
    ]  # fmt: skip
