"""Pairs that the model will be scored on and that it is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gemel.training.data.texts import text_hash
from gemel.training.doctor.diagnosis import Finding, Level, percent
from gemel.training.doctor.evidence import Evidence, fold, mixed

_MOST = 0.5


def leaked_pairs(evidence: Evidence, pairs: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Pairs in either order, whatever their case and white space."""
    if not evidence.paired:
        return
    held = np.array([sorted((text_hash(fold(a)), text_hash(fold(b)))) for a, b in pairs], dtype=np.uint64)
    if not len(held):
        return
    scored = np.unique(mixed(held))
    leaked = np.zeros(len(evidence), dtype=bool)
    met = np.zeros(len(scored), dtype=bool)
    for column in range(1, len(evidence.roles)):
        keys = mixed(np.sort(evidence.folded[:, [0, column]], axis=1))
        leaked |= np.isin(keys, scored)
        met |= np.isin(scored, keys)
    if not leaked.any():
        return
    level: Level = "error" if met.mean() >= _MOST else "warning"
    part = f"{int(met.sum()):,} of {len(scored):,} ({percent(float(met.mean()))})"
    yield evidence.finding(
        level,
        f"evaluation pairs among the training data: {part}",
        np.flatnonzero(leaked),
        "Scores on them say how well the model remembers: take them out of the training data",
    )
