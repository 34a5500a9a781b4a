"""Does it harm a model to put rows of similar length into a batch? Seeds of short trainings on NLI, scored on STSb.

    python benchmarks/train_grouping.py                                what is missing in results/train_grouping.json
    python benchmarks/train_grouping.py --batches 64 --seeds 5         another batch size, fewer seeds
    python benchmarks/train_grouping.py --sides grouped,shuffled       without sentence-transformers
    python benchmarks/train_grouping.py --quick                        does everything work? no results file

Three sides: gemel with `group_by_length`, gemel without, and sentence-transformers' trainer with its defaults; the
same weights, rows, number of steps and learning rate. A seed decides the order of the rows, the dropout and the head.
Each run is a separate process with one thread. The results file is written after every run, and a run that is in it
is not done again, so the script can be stopped at any time. Quality is the Spearman correlation on the development
set of STSb of the last model, computed by gemel for all sides. Speed is pairs per second of processor time: it
depends far less on other load of the machine than wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from comparison_flags import DATA, comparison, environments_of, result_file
from environments import InstallError
from machine import describe
from train import run, score, write_rows

STEPS = 600
MODEL = "tinybert-4L-312"
LEARNING_RATE = 1e-4
SIDES: dict[str, dict[str, Any] | None] = {
    "grouped": {"group_by_length": True},
    "shuffled": {"group_by_length": False},
    "sentence-transformers": None,
}
"""Options of gemel; None: the peer."""


@dataclass(frozen=True)
class Job:
    """One training."""

    batch: int
    seed: int
    side: str


class Results:
    """The file of all runs; safe to add to from several threads."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = Lock()
        self.content: dict[str, Any] = {
            "machine": describe(), "model": MODEL, "steps": STEPS, "learning_rate": LEARNING_RATE, "threads": 1,
            "batches": {},
        }  # fmt: skip
        if path is not None and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))

    def __contains__(self, job: Job) -> bool:
        return str(job.seed) in self._sides(job.batch).get(job.side, {})

    def add(self, job: Job, result: dict[str, Any]) -> None:
        with self._lock:
            batch = self.content["batches"].setdefault(str(job.batch), {"runs": {}})
            batch["runs"].setdefault(job.side, {})[str(job.seed)] = result
            batch["summary"] = summary(batch["runs"])
            self._write()

    def add_labels(self, batch: int, shares: dict[str, float]) -> None:
        with self._lock:
            self.content["batches"].setdefault(str(batch), {"runs": {}})["largest_label_share"] = shares
            self._write()

    def _sides(self, batch: int) -> dict[str, Any]:
        actual: dict[str, Any] = self.content["batches"].get(str(batch), {"runs": {}})["runs"]
        return actual

    def _write(self) -> None:
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(self._path)


def summary(runs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Mean and 95 % interval of each side, and of the difference of each two sides over the seeds that both have."""
    scores = {
        side: {int(seed): each["stsb_dev"] for seed, each in actual.items()} for side, actual in runs.items()
    }
    sides = {
        side: {
            "stsb_dev": interval(list(actual.values())),
            "pairs_per_cpu_second": interval([each["pairs_per_cpu_second"] for each in runs[side].values()]),
        }
        for side, actual in scores.items()
    }
    names = [side for side in SIDES if side in scores]
    pairs = [(left, right) for position, left in enumerate(names) for right in names[position + 1 :]]
    differences = {}
    for left, right in pairs:
        common = sorted(scores[left].keys() & scores[right].keys())
        differences[f"{right} - {left}"] = interval([scores[right][n] - scores[left][n] for n in common])
    return {"sides": sides, "differences": differences}


def interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean with its 95 % interval by Student's t; no interval for fewer than two values."""
    from scipy.stats import t

    count = len(values)
    if not count:
        return {"n": 0}
    mean = math.fsum(values) / count
    if count < 2:
        return {"n": count, "mean": mean}
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return {"n": count, "mean": mean, "low": mean - half, "high": mean + half, "deviation": deviation}


def largest_label_share(rows: Path, batch: int) -> dict[str, float]:
    """The share of the most frequent label of a batch, mean over the batches of the first epoch of seed 0."""
    import numpy as np

    from gemel.training.data import open_examples
    from gemel.training.objectives.base import make_objective
    from gemel.training.sampler import EpochSampler

    examples = open_examples(str(rows), make_objective("classification").needs)
    actual = {}
    for side, settings in SIDES.items():
        if settings is None:
            continue
        epoch = EpochSampler([examples], batch_size=batch, seed=0, **settings).epoch(0)
        counts = [np.bincount(np.asarray(examples.batch(draw.rows).label)) for draw in epoch]
        actual[side] = round(float(np.mean([count.max() / count.sum() for count in counts])), 4)
    return actual


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Seed by seed, so that a stopped script has the same seeds of all sides."""
    for batch in options.batches:
        for seed in range(options.first_seed, options.seeds):
            for side in options.sides:
                yield Job(batch, seed, side)


def do(job: Job, python: Path, rows: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    request = {
        "model": str(options.weights / MODEL),
        "rows": str(rows),
        "out": str(folder / f"{job.side}-{job.batch}-{job.seed}"),
        "batch": job.batch,
        "steps": options.steps,
        "learning_rate": LEARNING_RATE,
        "seed": job.seed,
        "threads": 1,
        "options": SIDES[job.side] or {},
    }
    script = "train_st.py" if SIDES[job.side] is None else "train_gemel.py"
    result = run(python, script, request, 1)
    result["stsb_dev"] = score(result.pop("folder"), options.data)
    return {name: round(value, 4) for name, value in result.items()}


def arguments() -> argparse.Namespace:
    parser = comparison(__doc__, "train_grouping.json", data="nli/, sts/")
    add = parser.add_argument
    add("--weights", type=Path, default=DATA.parent / "weights")
    add("--seeds", type=int, default=10, help="seeds below this")
    add("--first-seed", type=int, default=0)
    add("--batches", type=lambda text: [int(each) for each in text.split(",")], default=[16])
    add("--sides", type=lambda text: text.split(","), default=list(SIDES))
    add("--workers", type=int, default=2, help="runs at a time")
    add("--peer", type=Path, help="an interpreter that has sentence-transformers[train]")
    options = parser.parse_args()
    options.steps = 6 if options.quick else STEPS
    options.seeds = 2 if options.quick else options.seeds
    return options


def interpreters(options: argparse.Namespace) -> dict[str, Path]:
    """The interpreter of each side."""
    actual = {side: Path(sys.executable) for side in options.sides}
    for side in options.sides:
        if SIDES[side] is None:
            actual[side] = options.peer or environments_of(options).python("sttrain")
    return actual


def main() -> int:
    options = arguments()
    try:
        pythons = interpreters(options)
    except InstallError as error:
        print(f"the peer cannot be installed: {error}", file=sys.stderr)
        return 1
    results = Results(result_file(options))
    with tempfile.TemporaryDirectory() as folder:
        rows = {batch: Path(folder) / f"rows-{batch}.tsv" for batch in options.batches}
        for batch, path in rows.items():
            write_rows(options.data, path, batch * options.steps)
            results.add_labels(batch, largest_label_share(path, batch))

        def one(job: Job) -> None:
            if job in results:
                return
            result = do(job, pythons[job.side], rows[job.batch], Path(folder), options)
            results.add(job, result)
            print(f"{job}: {result}", flush=True)

        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(one, list(jobs(options))))
    for batch, each in results.content["batches"].items():
        print(f"batch {batch}: {json.dumps(each.get('summary'), indent=1)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
