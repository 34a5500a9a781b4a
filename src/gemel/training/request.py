"""What to train, on what, and into which folder; how is said by TrainOptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["twin", "cross"]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train, on what, and into which folder; how is said by TrainOptions."""

    model: str | Path
    data: Any
    objective: str
    out: Path
    kind: Kind = "twin"
    settings: Mapping[str, Any] | None = None
    """Of the objective."""
    columns: Mapping[str, str] | None = None
    """Role to column, where the names do not say it."""
    score_range: tuple[float, float] | None = None
    """The lowest and the highest score that there can be; None: seen from the data."""
    pooling: str | None = None
    eval_data: Sequence[str | Path] = ()
    eval_task: str = "sts"
    resume: bool = False
