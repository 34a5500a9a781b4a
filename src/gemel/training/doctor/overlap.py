"""Words that two texts share, as a witness: it is a poor judge of one pair and a good one of two thousand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemel.training.doctor.diagnosis import Finding, percent
from gemel.training.doctor.evidence import Evidence

_LEAST = 30  # rows to judge by
_CLEAR = 0.1  # overlaps this far apart differ


def scores_against_words(evidence: Evidence) -> Iterator[Finding]:
    """Scores, or labels 0 and 1, that fall as texts share more words."""
    if evidence.needs.label not in ("score", "binary") or len(evidence.sample_rows) < _LEAST:
        return
    overlap = evidence.overlap(0, 1)
    labels = np.asarray(evidence.sample.label, dtype=np.float64)
    if overlap.std() == 0 or labels.std() == 0:
        return
    together = float(np.corrcoef(overlap, labels)[0, 1])
    if together < -0.1:
        yield Finding(
            "warning",
            f"labels fall as the two texts share more words (correlation {together:.2f}, {len(labels):,} rows)",
            examples=evidence.show(evidence.sample_rows[np.argsort(-overlap, kind="stable")]),
            advice="Is the scale reversed? Labels must grow with similarity",
        )


def positives_against_negatives(evidence: Evidence) -> Iterator[Finding]:
    """Negatives that share more words with the anchor than positives do."""
    if evidence.roles[:3] != ("anchor", "positive", "negative"):
        return
    more = evidence.overlap(0, 2) - evidence.overlap(0, 1)
    clear = np.abs(more) > _CLEAR
    share = float((more[clear] > 0).mean()) if clear.any() else 0.0
    if clear.sum() >= _LEAST and share > 2 / 3:
        yield Finding(
            "warning",
            f"in {percent(share)} of {int(clear.sum()):,} rows that differ, the negative shares more words with the "
            "anchor than the positive does",
            examples=evidence.show(evidence.sample_rows[np.argsort(-more, kind="stable")]),
            advice="Are positive and negative swapped? If negatives were chosen for their words, all is well",
        )


def premises_against_hypotheses(evidence: Evidence) -> Iterator[Finding]:
    """Hypotheses that are longer than their premises: people write them the other way."""
    if "entailment" not in evidence.examples.classes or len(evidence.sample_rows) < _LEAST:
        return
    left, right = ([len(words) for words in column] for column in evidence.words[:2])
    longer = np.array(right) - np.array(left)
    if (longer != 0).sum() >= _LEAST and (longer > 0).sum() > 0.75 * (longer != 0).sum():
        share = percent(float((longer > 0).mean()))
        yield Finding(
            "warning",
            f"in {share} of {len(longer):,} rows the hypothesis is longer than the premise",
            examples=evidence.show(evidence.sample_rows[np.argsort(-longer, kind="stable")]),
            advice="Are the two columns swapped? The first text is the one that entails",
        )
