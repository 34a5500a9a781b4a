"""How good thresholds for duplicates are: without labels, with 200 labels, and for cosines compared with margins.

    python benchmarks/thresholds.py [--data FOLDER]    measure, and write the table of docs/how-to/choose-a-threshold.md
    python benchmarks/thresholds.py --table            write the table only; --check fails where it is stale

Three corpora of texts whose duplicates are known: titles of bug reports, questions, sentences of news. Pairs that
people marked as equal, and those that follow from them, count as correct, all others as wrong; corpora of this kind
have many duplicates that nobody marked, so true precisions are higher than these.

Labels are drawn 100 times, at random from as many of the best pairs as there are texts. `covered` is the share of draws
whose interval contains the precision that the threshold has in truth. A margin is the cosine minus half the mean cosine
of both texts to their second to fifth nearest neighbors. The form of the margin was chosen on qqp-test, mrpc-test and
the bug reports. Results: results/thresholds.json.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gemel
from machine import describe

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "how-to" / "choose-a-threshold.md"
OPENING, CLOSING = "<!-- thresholds -->", "<!-- /thresholds -->"
MODEL = "all-MiniLM-L6-v2"
LABELS, DRAWS, TARGETS = 200, 100, (0.5, 0.7, 0.9)
LOWEST = 0.4  # pairs with a lower cosine are not looked at


@dataclass(frozen=True)
class Corpus:
    name: str
    texts: list[str]
    groups: NDArray[np.int64]
    """Texts of one group are duplicates."""

    @property
    def duplicates(self) -> int:
        counts = np.bincount(self.groups)
        return int((counts * (counts - 1) // 2).sum())


@dataclass(frozen=True)
class Ranked:
    """All pairs of a corpus by one score, best first."""

    scores: NDArray[np.float64]
    correct: NDArray[np.bool_]
    total: int

    def at(self, threshold: float) -> dict[str, float]:
        above = self.scores >= threshold
        hits = int(self.correct[above].sum())
        return {
            "threshold": round(float(threshold), 4),
            "pairs": int(above.sum()),
            "precision": round(hits / max(int(above.sum()), 1), 4),
            "recall": round(hits / self.total, 4),
        }


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def corpus(name: str, texts: dict[str, str], equal: Iterable[tuple[str, str]]) -> Corpus:
    """Groups are what the equal pairs connect."""
    parent = {key: key for key in texts}

    def root(key: str) -> str:
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for left, right in equal:
        parent[root(left)] = root(right)
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(root(key), len(numbers)) for key in texts]
    return Corpus(name, list(texts.values()), np.asarray(groups))


def corpora(data: Path) -> list[Corpus]:
    bugs = read(data / "retrieval" / "openoffice-duplicate-bugs.tsv.gz")
    titles = {row["bug_id"]: row["title"] for row in bugs} | {
        row["dup_of_id"]: row["dup_title"] for row in bugs
    }
    made = [corpus("openoffice titles", titles, ((row["bug_id"], row["dup_of_id"]) for row in bugs))]
    for name, left, right in (
        ("qqp-dev", "question1", "question2"),
        ("mrpc-train", "sentence1", "sentence2"),
    ):
        rows = read(data / "paraphrase" / f"{name}.tsv.gz")
        texts = {row[side]: row[side] for row in rows for side in (left, right)}
        made.append(corpus(name, texts, ((row[left], row[right]) for row in rows if row["label"] == "1")))
    return made


def ranked(given: Corpus, vectors: NDArray[np.float32]) -> dict[str, Ranked]:
    pairs = gemel.similar_pairs(vectors, min_score=LOWEST)
    crowd = gemel.search(vectors, vectors, 6).score[:, 2:].mean(axis=1)
    correct = given.groups[pairs.left] == given.groups[pairs.right]
    by_score = {
        "cosine": pairs.score.astype(np.float64),
        "margin": pairs.score - (crowd[pairs.left] + crowd[pairs.right]).astype(np.float64) / 4,
    }
    made = {}
    for name, scores in by_score.items():
        order = np.argsort(-scores, kind="stable")
        made[name] = Ranked(scores[order], correct[order], given.duplicates)
    return made


def average_precision(pairs: Ranked) -> float:
    hits = np.cumsum(pairs.correct)
    return float((hits / np.arange(1, len(hits) + 1))[pairs.correct].sum() / pairs.total)


def by_labels(pairs: Ranked, texts: int, target: float) -> dict[str, Any]:
    """What thresholds from labels are worth, over many draws of them."""
    draws, covered, refused = [], 0, 0
    for seed in range(DRAWS):
        chosen = np.random.default_rng(seed).choice(min(texts, len(pairs.scores)), LABELS, replace=False)
        labels = [(float(pairs.scores[at]), int(pairs.correct[at])) for at in chosen]
        try:
            cut = gemel.precision_threshold(labels, pairs.scores, target)
        except gemel.InputError:
            refused += 1
            continue
        draws.append(pairs.at(cut.threshold))
        covered += cut.low <= draws[-1]["precision"] <= cut.high
    result: dict[str, Any] = {"target": target, "labels": LABELS, "draws": DRAWS, "refused": refused}
    if draws:
        result |= {
            key: round(float(np.mean([one[key] for one in draws])), 4)
            for key in ("threshold", "pairs", "precision", "recall")
        }
        result["precision_deviation"] = round(float(np.std([one["precision"] for one in draws])), 4)
        result["covered"] = round(covered / len(draws), 3)
    return result


def measure(given: Corpus, model: gemel.Model) -> dict[str, Any]:
    vectors = model.encode(given.texts, on_long="truncate")
    calibration = gemel.calibrate(vectors)
    result: dict[str, Any] = {"texts": len(given.texts), "duplicates": given.duplicates, "scores": {}}
    for name, pairs in ranked(given, vectors).items():
        entry: dict[str, Any] = {"average_precision": round(average_precision(pairs), 4)}
        if name == "cosine":
            entry["expected_false_1"] = pairs.at(calibration.threshold(1))
            entry["expected_false_100"] = pairs.at(calibration.threshold(100))
        entry["by_labels"] = [by_labels(pairs, len(given.texts), target) for target in TARGETS]
        result["scores"][name] = entry
    return result


def table(corpora: dict[str, Any]) -> str:
    """Markdown: what each rule finds on each corpus."""
    lines = [
        "| corpus | rule | threshold | pairs found | precision | recall |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, entry in corpora.items():
        cosine = entry["scores"]["cosine"]
        rules = {"`expected_false=1`": cosine["expected_false_1"]}
        for target in TARGETS[:2]:
            for score, title in (("cosine", "cosine"), ("margin", "margin")):
                rows = entry["scores"][score]["by_labels"]
                rules[f"{LABELS} labels, target {target}, {title}"] = next(
                    row for row in rows if row["target"] == target
                )
        title = f"{name}: {entry['texts']:,} texts, {entry['duplicates']:,} known duplicate pairs"
        for rule, row in rules.items():
            numbers = (
                f"{row['threshold']:.3f} | {row['pairs']:,.0f} | {row['precision']:.2f} | {row['recall']:.2f}"
            )
            lines.append(f"| {title} | {rule} | {numbers} |")
            title = ""
    return "\n".join(lines)


def write_table(corpora: dict[str, Any], *, check: bool) -> bool:
    """Put the table into its page; True if it was there already."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(OPENING)
    after = rest.partition(CLOSING)[2]
    made = f"{before}{OPENING}\n{table(corpora)}\n{CLOSING}{after}"
    if not check:
        PAGE.write_text(made, encoding="utf-8")
    return made == text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "thresholds.json")
    parser.add_argument("--table", action="store_true", help="write the table from the results file")
    parser.add_argument("--check", action="store_true", help="is the table that of the results file?")
    options = parser.parse_args()
    if options.table or options.check:
        found = json.loads(options.out.read_text(encoding="utf-8"))
        return 0 if write_table(found["corpora"], check=options.check) or options.table else 1
    model = gemel.load(MODEL)
    results = {given.name: measure(given, model) for given in corpora(options.data)}
    found = {"model": MODEL, "machine": describe(), "corpora": results}
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_table(results, check=False)
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
