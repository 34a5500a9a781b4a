"""Few-shot classification on a CPU: the head alone, tuning on pairs, and SetFit in an environment of its own.

    python benchmarks/few_shot.py                            what is missing in results/few_shot.json
    python benchmarks/few_shot.py --sets cr,trec --draws 2   some of the data sets, fewer samples
    python benchmarks/few_shot.py --sides head,tuned         without SetFit
    python benchmarks/few_shot.py --quick                    does everything work? no results file

A draw chooses the examples of every class; all sides get the same ones, and are tested on the same texts, none of which
is an example. One thread; minutes are processor time, which depends far less on other load of the machine than
wall-clock time. The results file is written after every run, and a run that is in it is not done again. SetFit has its
own defaults, except that its pairs are limited: 20 of each kind per text, as in its paper, and 5 for 64 examples.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from comparison_flags import DATA, comparison, environments_of, result_file
from environments import InstallError
from machine import describe
from train import run
from trainers import interval

MODEL = "all-MiniLM-L6-v2"
PLAIN = "tinybert-4L-312"
"""Not trained on sentences."""
SETS = {
    "cr": ("senteval/cr",),
    "mr": ("senteval/mr",),
    "subj": ("senteval/subj",),
    "mpqa": ("senteval/mpqa",),
    "sst2": ("senteval/sst2-train", "senteval/sst2-test"),
    "trec": ("senteval/trec-train", "senteval/trec-test"),
    "agnews": ("clustering/agnews8000",),
    "searchsnippets": ("clustering/searchsnippets",),
}
"""Files: one, or one for the examples and one to test on."""
EXAMPLES = (8, 16, 64)
PAIRS = {8: 20, 16: 20, 64: 5}
"""SetFit's `num_iterations`: pairs of each kind per text."""
SIDES = ("head", "tuned", "setfit")
TESTED = 1000
"""The most test texts of a set."""


@dataclass(frozen=True)
class Job:
    """One classifier."""

    model: str
    data: str
    examples: int
    draw: int
    side: str

    @property
    def key(self) -> str:
        return f"{self.model} {self.data} {self.examples} {self.draw} {self.side}"


@dataclass(frozen=True)
class Sample:
    """The examples of a draw, and what the classifier is tested on."""

    texts: list[str]
    labels: list[str]
    test_texts: list[str]
    test_labels: list[str]


def read(path: Path) -> list[tuple[str, str]]:
    """(text, label) of every row."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    column = "text" if "text" in rows[0] else "sentence"
    return [(row[column], row["label"]) for row in rows]


def sample(train: list[tuple[str, str]], test: list[tuple[str, str]] | None, job: Job) -> Sample:
    """Examples by the draw; of a set without a test part, the test texts are the same in every draw."""
    rng = np.random.default_rng(7)
    if test is None:
        order = rng.permutation(len(train)).tolist()
        test = [train[row] for row in order[:TESTED]]
        train = [train[row] for row in order[TESTED:]]
    elif len(test) > TESTED:
        test = [test[row] for row in rng.permutation(len(test))[:TESTED].tolist()]
    rng = np.random.default_rng([job.examples, job.draw])
    tested, chosen = {text for text, _ in test}, []
    for label in sorted({label for _, label in train}):
        own = sorted({text for text, other in train if other == label} - tested)
        chosen += [(own[row], label) for row in rng.permutation(len(own))[: job.examples].tolist()]
    return Sample([text for text, _ in chosen], [label for _, label in chosen],
                  [text for text, _ in test], [label for _, label in test])  # fmt: skip


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Draw by draw, so that a stopped script has the same draws of all sides."""
    for draw in range(options.draws):
        for data in options.sets:
            for examples in options.examples:
                for side in options.sides:
                    yield Job(options.model, data, examples, draw, side)


def do(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    parts = [read(options.data / f"{name}.tsv.gz") for name in SETS[job.data]]
    data = sample(parts[0], parts[1] if len(parts) > 1 else None, job)
    source = str(DATA.parent / "weights" / PLAIN) if job.model == PLAIN else job.model
    if job.side == "setfit":
        request = {"model": folder_of(source), "seed": job.draw, "pairs": PAIRS[job.examples], **asdict(data)}
        return run(options.peer, "few_shot_setfit.py", {"request": write_request(request, options)}, 1)
    from gemel.sklearn import FewShotClassifier

    started = process_time()
    fitted = FewShotClassifier(source, tune=job.side == "tuned", threads=1, seed=job.draw)
    fitted.fit(data.texts, data.labels)
    seconds = process_time() - started
    right = fitted.predict(data.test_texts) == np.array(data.test_labels)
    return {"accuracy": float(right.mean()), "cpu_seconds": round(seconds, 1)}


def write_request(request: dict[str, Any], options: argparse.Namespace) -> str:
    """Thousands of texts are too long for an argument."""
    path: Path = options.work / "few-shot-request.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(request), encoding="utf-8")
    return str(path)


def folder_of(model: str) -> str:
    """The folder of a model that sentence-transformers reads."""
    import gemel

    return str(gemel.load(model).checkpoint.folder)


def summary(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per model, set and number of examples: accuracy of each side, minutes, and paired differences."""
    cells: dict[tuple[str, str, int], dict[str, dict[int, dict[str, Any]]]] = {}
    for key, result in runs.items():
        model, data, examples, draw, side = key.split()
        cells.setdefault((model, data, int(examples)), {}).setdefault(side, {})[int(draw)] = result
    rows = []
    for (model, data, examples), sides in cells.items():
        row: dict[str, Any] = {
            "model": model,
            "data": data,
            "examples": examples,
            "sides": {},
            "differences": {},
        }
        for side, draws in sides.items():
            accuracy = interval([100 * each["accuracy"] for each in draws.values()])
            minutes = float(np.mean([each["cpu_seconds"] for each in draws.values()])) / 60
            row["sides"][side] = {"accuracy": accuracy, "minutes": round(minutes, 2)}
        for one, other in (("tuned", "head"), ("tuned", "setfit")):
            both = sorted(sides.get(one, {}).keys() & sides.get(other, {}).keys())
            gains = [100 * (sides[one][draw]["accuracy"] - sides[other][draw]["accuracy"]) for draw in both]
            row["differences"][f"{one} - {other}"] = interval(gains)
        rows.append(row)
    return rows


def arguments() -> argparse.Namespace:
    parser = comparison(__doc__, "few_shot.json", data="senteval/, clustering/")
    add = parser.add_argument
    add("--model", default=MODEL, choices=(MODEL, PLAIN))
    add("--sets", type=lambda text: text.split(","), default=list(SETS))
    add("--examples", type=lambda text: [int(part) for part in text.split(",")], default=list(EXAMPLES))
    add("--sides", type=lambda text: text.split(","), default=list(SIDES))
    add("--draws", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.sets, options.examples, options.draws = ["cr"], [8], 1
    return options


def main() -> int:
    options = arguments()
    environments = environments_of(options)
    options.work = environments.folder / "work"
    if "setfit" in options.sides:
        try:
            options.peer = environments.python("setfit")
        except InstallError as error:
            print(f"SetFit cannot be installed: {error}", file=sys.stderr)
            return 1
    path = result_file(options)
    content: dict[str, Any] = {"machine": describe(), "tested": TESTED, "runs": {}}
    if path is not None and path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
    for job in jobs(options):
        if job.key in content["runs"]:
            continue
        content["runs"][job.key] = result = do(job, options)
        print(job.key, result, flush=True)
        content["rows"] = summary(content["runs"])
        if path is not None:
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
