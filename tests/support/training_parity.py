"""Ten steps of training that gemel and sentence-transformers both take: rows, settings, start, and what is compared.

`python tests/support/training_parity_reference.py` writes sentence-transformers' figures to `training_parity.json`;
`test_training_parity.py` computes gemel's and compares. This file imports neither. Both compute in float64, so
that rounding, which differs from processor to processor, hides no difference and makes none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiny import TEXT, tiny_bert

REFERENCE = Path(__file__).with_suffix(".json")
WORDS = TEXT.split()
STEPS = 10
BATCH = 4
WIDTH = 16
LABELS = 3


KEY_BIAS = "attention.self.key.bias"  # adds the same number to all scores of a softmax


@dataclass(frozen=True)
class Case:
    """One training of `STEPS` steps."""

    peer: str
    """The loss of sentence-transformers."""
    peer_settings: Mapping[str, Any]
    objective: str
    settings: Mapping[str, Any]
    roles: tuple[str, ...]
    label: str | None = None
    warmup: float = 0.2
    weight_decay: float = 0.0
    clip: float = 1.0
    accumulate: int = 1
    schedule: str = "linear"
    learning_rate: float = 1e-4
    without_gradient: tuple[str, ...] = (KEY_BIAS,)
    """Weights whose gradient is zero except for rounding. Adam makes normal steps of that: not compared."""

    def rows(self) -> list[dict[str, Any]]:
        """The rows in the order in which they are learned. Each fourth repeats the first text of the row before it."""
        rng = np.random.default_rng(len(self.peer))
        rows: list[dict[str, Any]] = []
        for number in range(STEPS * BATCH * self.accumulate):
            row: dict[str, Any] = {role: sentence(rng) for role in self.roles}
            if number % 4 == 1 and self.label is not None:
                row[self.roles[0]] = rows[-1][self.roles[0]]
            if number % 8 == 7 and self.label is not None:
                row[self.roles[1]] = row[self.roles[0]]
            if self.label == "class":
                row["label"] = int(rng.integers(LABELS))
            elif self.label == "score":
                row["label"] = round(float(rng.random()), 3)
            rows.append(row)
        return rows


PAIR = ("left", "right")
TRIPLET = ("anchor", "positive", "negative")
SOFTMAX = Case("SoftmaxLoss", {}, "classification", {"bias": True}, PAIR, "class")
CASES = {
    "softmax": SOFTMAX,
    "softmax-accumulated-decayed": Case(
        "SoftmaxLoss", {}, "classification", {"bias": True}, PAIR, "class", accumulate=2, weight_decay=0.1
    ),
    "cosine": Case("CosineSimilarityLoss", {}, "regression", {}, PAIR, "score", clip=0.05),
    "triplet": Case(
        "TripletLoss", {"triplet_margin": 1.0}, "triplet", {"margin": 1.0}, TRIPLET,
        without_gradient=(KEY_BIAS, "layer.1.output.LayerNorm.bias"),  # moves all vectors by the same amount
    ),
    "ranking": Case(
        "MultipleNegativesRankingLoss", {"scale": 20.0}, "in-batch-ranking", {"temperature": 0.05}, TRIPLET,
        schedule="cosine",
    ),
}  # fmt: skip
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
"""gemel's name to transformers'."""


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, size=int(rng.integers(2, 12))))


def start_model(folder: Path) -> Path:
    """The checkpoint that both start from."""
    return tiny_bert(folder, seed=3, layers=2, width=WIDTH, heads=2, normalize=False)


def start_head() -> dict[str, NDArray[np.float64]]:
    """Weights of the head of `SoftmaxLoss`, large enough for its gradient to matter next to that of the network."""
    rng = np.random.default_rng(11)
    weight = rng.normal(0, 0.3, (LABELS, 3 * WIDTH))
    return {"head.weight": weight, "head.bias": rng.normal(0, 0.1, LABELS)}


def figures(case: Case, arrays: Iterable[tuple[str, NDArray[np.float64]]]) -> dict[str, list[float]]:
    """Of each group of weights the norm, and the products with three rows of random signs: any error changes them."""
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for name, array in sorted(arrays):
        if not name.endswith(case.without_gradient):
            groups.setdefault(group_of(name), []).append(array.astype(np.float64).ravel())
    result = {}
    for group, parts in groups.items():
        values = np.concatenate(parts)
        signs = np.random.default_rng(len(values)).choice([-1.0, 1.0], size=(3, len(values)))
        result[group] = [short(float(each)) for each in (np.linalg.norm(values), *(signs @ values))]
    return result


def group_of(name: str) -> str:
    """embeddings, head, or the attention or feed-forward half of a layer."""
    parts = name.split(".")
    if parts[0] != "encoder":
        return parts[0]
    return f"layer {parts[2]} {'attention' if parts[3] == 'attention' else 'feed-forward'}"


def short(value: float) -> float:
    """Nine digits: far more than is compared."""
    return float(f"{value:.9g}")


def read_reference() -> dict[str, Any]:
    reference: dict[str, Any] = json.loads(REFERENCE.read_text(encoding="utf-8"))
    return reference
