"""Is a model trained by gemel as good as one by sentence-transformers? Seeds of trainings on NLI, scored on STSb.

    python benchmarks/trainers.py                              what is missing in results/trainers.json
    python benchmarks/trainers.py --cells default --seeds 5    one setting, fewer seeds
    python benchmarks/trainers.py --sides gemel,grouped        without sentence-transformers
    python benchmarks/trainers.py --curves                     both without dropout from the same start, step by step
    python benchmarks/trainers.py --dropout                    loss and gradient of one batch under many dropout masks
    python benchmarks/trainers.py --quick                      does everything work? no results file

A cell is a batch size, a number of steps, a learning rate and the dropout; a side is a trainer with its options. All
sides have the same weights and rows. Of one seed, all but `grouped` also have the same order of the rows, and all have
the same first weights of the head, so that sides can be compared seed by seed; dropout masks differ. Each run is a
process with one thread, and the sides take turns. The results file is written after every run, and a run that is in
it is not done again, so the script can be stopped at any time. Quality is the Spearman correlation on the development
set of STSb of the last model, computed by gemel for all sides; effective rank and mean cosine are those of its texts,
the loss is the mean of the last quarter of the steps.
Speed is pairs per second of processor time: it depends far less on other load of the machine than wall-clock time.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from comparison_flags import DATA, comparison, environments_of, result_file
from environments import InstallError
from machine import describe
from train import run, score, write_rows

MODEL = "tinybert-4L-312"
PEER_STEPS: dict[str, Any] = {
    "warmup_from_zero": True,
    "clip_head": False,
    "encode_repeats": True,
    "settings": {"bias": True},
}
"""The options with which a step of gemel is one of sentence-transformers (docs/decisions/0016)."""
SIDES: dict[str, dict[str, Any] | None] = {
    "gemel": {},
    "sentence-transformers": None,
    "grouped": {"group_by_length": True},
    "peer-steps": PEER_STEPS,
}
"""Options of gemel; None: the peer."""
PACKAGES = ("gemel", "sentence-transformers", "torch", "transformers", "accelerate", "numpy")
CURVE_STEPS = 40
DROPOUT_DRAWS = 200


@dataclass(frozen=True)
class Cell:
    """A setting that all sides are trained with."""

    batch: int
    steps: int
    learning_rate: float
    dropout: float | None = None
    """None: as in the checkpoint, 0.1."""


CELLS = {
    "default": Cell(16, 600, 2e-5),
    "high-rate": Cell(16, 600, 1e-4),
    "high-rate-no-dropout": Cell(16, 600, 1e-4, 0.0),
    "large-batch": Cell(64, 40, 1e-4),
}
"""`default` has the learning rate and the batch size that both trainers' users start from; the paper's. `large-batch`
is very short: a difference that the first steps make is largest there."""


@dataclass(frozen=True)
class Job:
    """One training."""

    cell: str
    seed: int
    side: str


class Results:
    """The file of all runs."""

    def __init__(self, path: Path | None, versions: dict[str, str]) -> None:
        self._path = path
        self.content: dict[str, Any] = {
            "machine": describe(), "versions": versions, "model": MODEL, "threads": 1, "cells": {}
        }  # fmt: skip
        if path is not None and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))

    def __contains__(self, job: Job) -> bool:
        runs = self.content["cells"].get(job.cell, {"runs": {}})["runs"]
        return str(job.seed) in runs.get(job.side, {})

    def add(self, job: Job, result: dict[str, Any]) -> None:
        cell = self._cell(job.cell)
        cell["runs"].setdefault(job.side, {})[str(job.seed)] = result
        cell["summary"] = summary(cell["runs"])
        self._write()

    def add_labels(self, cell: str, shares: dict[str, float]) -> None:
        self._cell(cell)["largest_label_share"] = shares
        self._write()

    def add_part(self, name: str, part: dict[str, Any]) -> None:
        self.content[name] = part
        self._write()

    def _cell(self, name: str) -> dict[str, Any]:
        actual: dict[str, Any] = self.content["cells"].setdefault(name, {**asdict(CELLS[name]), "runs": {}})
        return actual

    def _write(self) -> None:
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(self._path)


MEASURES = ("stsb_dev", "last_loss", "effective_rank", "mean_cosine", "pairs_per_cpu_second")


def summary(runs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Mean and 95 % interval of each side, and of the difference of each to the others over the seeds of both."""
    sides = {
        side: {name: interval([each[name] for each in actual.values() if name in each]) for name in MEASURES}
        for side, actual in runs.items()
    }
    names = [side for side in SIDES if side in runs]
    differences = {}
    for position, left in enumerate(names):
        for right in names[position + 1 :]:
            differences[f"{left} - {right}"] = {
                **difference(runs, left, right, "stsb_dev"),
                "last_loss": difference(runs, left, right, "last_loss"),
            }
    return {"sides": sides, "differences": differences}


def difference(
    runs: dict[str, dict[str, dict[str, Any]]], left: str, right: str, name: str, first_seed: int = 0
) -> dict[str, Any]:
    """Mean and interval of left minus right, over the seeds from `first_seed` on that both have."""
    seeds = sorted(runs[left].keys() & runs[right].keys(), key=int)
    pairs = [(runs[left][seed], runs[right][seed]) for seed in seeds if int(seed) >= first_seed]
    return interval([one[name] - two[name] for one, two in pairs if name in one and name in two])


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


def write_start(target: Path, rows: Path, cell: Cell, seed: int, model: Path) -> None:
    """What a run of gemel with this seed starts from: the order of the rows and the weights of the head."""
    import numpy as np

    from gemel.checkpoint.folder import read_checkpoint
    from gemel.training.bi_encoder import BiEncoderNetwork
    from gemel.training.data import open_examples
    from gemel.training.devices import open_accelerator
    from gemel.training.objectives.base import make_objective
    from gemel.training.options import TrainOptions
    from gemel.training.sampler import EpochSampler

    accelerator = open_accelerator(TrainOptions(seed=seed, device="cpu", threads=1))
    objective = make_objective("classification", {"bias": True})
    examples = open_examples(str(rows), objective.needs)
    network = BiEncoderNetwork(read_checkpoint(model), TrainOptions(), accelerator.device)
    head = objective.weights(network.dim, len(examples.classes))
    assert head is not None, "classification has a head"
    parts = {name: weight.detach().numpy() for name, weight in head.named_parameters()}
    draws = EpochSampler([examples], batch_size=cell.batch, seed=seed).epoch(0)
    np.savez(target, order=np.concatenate([draw.rows for draw in draws]), **parts)


def largest_label_share(rows: Path, batch: int) -> dict[str, float]:
    """The share of the most frequent label of a batch, mean over the batches of the first epoch of seed 0."""
    import numpy as np

    from gemel.training.data import open_examples
    from gemel.training.objectives.base import make_objective
    from gemel.training.sampler import EpochSampler

    examples = open_examples(str(rows), make_objective("classification").needs)
    actual = {}
    for side, grouped in (("gemel", False), ("grouped", True)):
        epoch = EpochSampler([examples], batch_size=batch, seed=0, group_by_length=grouped).epoch(0)
        counts = [np.bincount(np.asarray(examples.batch(draw.rows).label)) for draw in epoch]
        actual[side] = round(float(np.mean([count.max() / count.sum() for count in counts])), 4)
    return actual


def spread(folder: str, data: Path) -> dict[str, float]:
    """How the vectors of the distinct texts of STSb-dev are distributed."""
    import gemel
    from gemel.texts.whitening import isotropy

    with gzip.open(data / "sts" / "stsb-dev.tsv.gz", "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = list(dict.fromkeys(row[name] for row in rows for name in ("sentence1", "sentence2")))
    measured = isotropy(gemel.load(folder).encode(texts[:1000]))
    return {"effective_rank": measured.effective_rank, "mean_cosine": measured.mean_cosine}


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Seed by seed, so that a stopped script has the same seeds of all sides."""
    for cell in options.cells:
        for seed in range(options.first_seed, options.seeds):
            for side in options.sides:
                yield Job(cell, seed, side)


def do(job: Job, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    request = request_of(job, options, folder)
    peer = SIDES[job.side] is None
    result = run(options.pythons[job.side], "train_st.py" if peer else "train_gemel.py", request, 1)
    trained = result.pop("folder")
    losses = json.loads(Path(request["losses"]).read_text(encoding="utf-8"))
    last = losses[-(len(losses) // 4) :]
    result["last_loss"] = math.fsum(last) / len(last)
    result |= {"stsb_dev": score(trained, options.data), **spread(trained, options.data)}
    return {name: round(value, 4) for name, value in result.items()}


def request_of(job: Job, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cell, model = CELLS[job.cell], options.weights / MODEL
    rows = folder / f"rows-{cell.batch}-{cell.steps}.tsv"
    if not rows.exists():
        write_rows(options.data, rows, cell.batch * cell.steps)
    start = folder / f"start-{cell.batch}-{cell.steps}-{job.seed}.npz"
    if SIDES[job.side] is None and not start.exists():
        write_start(start, rows, cell, job.seed, model)
    settings = dict(SIDES[job.side] or {})
    if cell.dropout is not None:
        settings["dropout"] = cell.dropout
    return {
        "model": str(model),
        "rows": str(rows),
        "out": str(folder / f"{job.side}-{job.cell}-{job.seed}"),
        "batch": cell.batch,
        "steps": 6 if options.quick else options.steps or cell.steps,
        "learning_rate": cell.learning_rate,
        "seed": job.seed,
        "threads": 1,
        "start": str(start) if SIDES[job.side] is None else "",
        "losses": str(folder / f"losses-{job.side}-{job.cell}-{job.seed}.json"),
        "options": settings,
    }


def curves(options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """The losses of both trainers without dropout, with the same options, head and order."""
    actual = {}
    for side in ("peer-steps", "sentence-transformers"):
        request = request_of(Job("high-rate-no-dropout", 0, side), options, folder)
        request |= {"steps": CURVE_STEPS}
        run(
            options.pythons[side],
            "train_st.py" if SIDES[side] is None else "train_gemel.py",
            {**request, "out": f"{request['out']}-curve"},
            1,
        )
        actual[side] = json.loads(Path(request["losses"]).read_text(encoding="utf-8"))
    return actual


def dropout(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Of each measure: mean and interval of both sides, and of their difference (Welch)."""
    from scipy.stats import ttest_ind

    request = request_of(Job("high-rate", 0, "sentence-transformers"), options, folder)
    request["draws"] = 6 if options.quick else DROPOUT_DRAWS
    drawn = run(options.pythons["sentence-transformers"], "dropout_draws.py", request, 1)
    ours, theirs = drawn["gemel"], drawn["sentence-transformers"]
    actual: dict[str, Any] = {}
    for name, values in ours.items():
        between = ttest_ind(values, theirs[name], equal_var=False).confidence_interval(0.95)
        actual[name] = {
            "gemel": interval(values),
            "sentence-transformers": interval(theirs[name]),
            "difference": [float(between.low), float(between.high)],
        }
    return actual


def arguments() -> argparse.Namespace:
    parser = comparison(__doc__, "trainers.json", data="nli/, sts/")
    add = parser.add_argument
    add("--weights", type=Path, default=DATA.parent / "weights")
    add("--seeds", type=int, default=10, help="seeds below this")
    add("--first-seed", type=int, default=0)
    add("--cells", type=lambda text: text.split(","), default=list(CELLS))
    add("--sides", type=lambda text: text.split(","), default=list(SIDES))
    add("--steps", type=int, help="another number of steps, to try things")
    add("--curves", action="store_true")
    add("--dropout", action="store_true")
    add("--python", type=Path, help="an interpreter that has gemel and sentence-transformers[train]")
    options = parser.parse_args()
    options.seeds = 2 if options.quick else options.seeds
    return options


def interpreters(options: argparse.Namespace) -> dict[str, Path]:
    """The interpreter of each side."""
    if options.python:
        return dict.fromkeys(SIDES, options.python)
    peer = environments_of(options).python("sttrain")
    return {side: Path(sys.executable) if settings is not None else peer for side, settings in SIDES.items()}


def versions() -> dict[str, str]:
    actual = {}
    for name in PACKAGES:
        try:
            actual[name] = version(name).split("+")[0]
        except ImportError:
            continue
    return actual


def main() -> int:
    options = arguments()
    try:
        options.pythons = interpreters(options)
    except InstallError as error:
        print(f"the peer cannot be installed: {error}", file=sys.stderr)
        return 1
    results = Results(result_file(options), versions())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.curves:
            losses = curves(options, folder)
            results.add_part("curves", losses)
            for step, pair in enumerate(zip(*losses.values(), strict=True), 1):
                print(f"step {step}: {pair[0]:.6f} {pair[1]:.6f} {abs(pair[0] - pair[1]):.1e}")
            return 0
        if options.dropout:
            results.add_part("dropout", part := dropout(options, folder))
            print(json.dumps(part, indent=1))
            return 0
        for job in jobs(options):
            if job in results:
                continue
            result = do(job, options, folder)
            results.add(job, result)
            if "largest_label_share" not in results.content["cells"][job.cell]:
                rows, batch = Path(request_of(job, options, folder)["rows"]), CELLS[job.cell].batch
                results.add_labels(job.cell, largest_label_share(rows, batch))
            print(f"{job}: {result}", flush=True)
    print(
        json.dumps({name: each.get("summary") for name, each in results.content["cells"].items()}, indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
