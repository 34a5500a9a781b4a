"""What a job on a cluster did, counted while it runs: for the line at its end and for a machine as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Counts:
    """Grows while the job runs."""

    tasks: int = 0
    """Finished, each counted once."""
    retries: int = 0
    """Times that a task was given out again because its worker was lost."""
    workers_lost: int = 0


@dataclass(frozen=True)
class JobSummary:
    """The whole job."""

    verb: str
    rows: int
    """Texts, documents or queries that this run was about."""
    tasks: int
    retries: int
    workers: int
    workers_lost: int
    nodes: int
    """Of the cluster when the job began."""
    nodes_lost: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line for a person."""
        lost = (
            f", {self.retries:,} tasks done again ({self.workers_lost:,} workers and {self.nodes_lost:,} nodes lost)"
            if self.retries or self.workers_lost or self.nodes_lost
            else ""
        )
        return (
            f"on Ray: {self.tasks:,} tasks on {self.workers:,} workers of {self.nodes:,} nodes{lost}, "
            f"{self.seconds:.1f} s"
        )
