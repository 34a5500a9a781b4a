"""What tuning on pairs gains over the head alone: few-shot classification of banking77, eight examples per class.

    python benchmarks/few_shot.py

Three draws of ten classes and their examples; every test text of those classes. One thread. Results:
results/few_shot.json.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gemel.sklearn import FewShotClassifier
from machine import describe

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared"
MODELS = {
    "tinybert-4L-312": str(SHARED / "weights" / "tinybert-4L-312"),
    "all-MiniLM-L6-v2": "all-MiniLM-L6-v2",
}
CLASSES, EXAMPLES = 10, 8
DRAWS = (1, 2, 3)  # settings were chosen on draw 0, of twenty classes


@dataclass(frozen=True)
class Draw:
    texts: list[str]
    labels: list[str]
    test_texts: list[str]
    test_labels: list[str]


def read(part: str) -> list[dict[str, str]]:
    path = SHARED / "data" / "classification" / f"banking77-{part}.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def draw(train: list[dict[str, str]], test: list[dict[str, str]], seed: int) -> Draw:
    """Classes and examples by the seed."""
    random = np.random.default_rng(seed)
    names = sorted({row["label"] for row in train})
    chosen = [names[position] for position in sorted(random.choice(len(names), CLASSES, replace=False))]
    rows = []
    for name in chosen:
        own = [row for row in train if row["label"] == name]
        rows += [own[position] for position in random.choice(len(own), EXAMPLES, replace=False)]
    tested = [row for row in test if row["label"] in chosen]
    return Draw(
        [row["text"] for row in rows],
        [row["label"] for row in rows],
        [row["text"] for row in tested],
        [row["label"] for row in tested],
    )


def measure(model: str, data: Draw, *, tune: bool) -> dict[str, Any]:
    started = perf_counter()
    fitted = FewShotClassifier(model, tune=tune, threads=1).fit(data.texts, data.labels)
    seconds = perf_counter() - started
    return {"accuracy": fitted.score(data.test_texts, data.test_labels), "seconds": round(seconds, 1)}


def main() -> int:
    train, test = read("train"), read("test")
    draws = [draw(train, test, seed) for seed in DRAWS]
    result: dict[str, Any] = {}
    for name, model in MODELS.items():
        result[name] = {"head": [], "tuned": []}
        for data in draws:
            result[name]["head"].append(measure(model, data, tune=False))
            result[name]["tuned"].append(measure(model, data, tune=True))
            print(name, result[name]["head"][-1], result[name]["tuned"][-1], flush=True)
    settings = FewShotClassifier().get_params()
    kept = {key: settings[key] for key in ("partners", "epochs", "batch_size", "learning_rate", "C")}
    content = {
        "machine": describe(),
        "data": "banking77",
        "classes": CLASSES,
        "examples": EXAMPLES,
        "test_texts": [len(each.test_texts) for each in draws],
        "settings": kept,
        "models": result,
    }
    (HERE / "results" / "few_shot.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
