"""Adaptation to a domain without labels, on a CPU: does it help, where, and how many texts does it need?

    python benchmarks/adapt.py --work FOLDER              what is missing in results/adapt.json
    python benchmarks/adapt.py --work FOLDER --starts tinybert-4L-312 --sizes 1000
    python benchmarks/adapt.py --work FOLDER --starts all-MiniLM-L6-v2 --sizes 1000 --rates 5e-6,1e-6

The domain is Vaswani, abstracts of physics. A start model is trained on its abstracts by SimCSE or denoising (TSDAE),
then evaluated in the domain (search in Vaswani), in a neighboring one (search in Cranfield, aerodynamics) and on
sentences of every day (STSb). Differences are those from the start model, with the paired bootstrap over queries or
pairs; one training per cell, so that they do not cover the variance between trainings. One thread. `ranked` is
tinybert-4L-312 after in-batch ranking on 16,000 NLI pairs: a small sentence encoder. A finished training is not
repeated.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gemel
from comparison_flags import DATA
from gemel.evaluation.statistics import compare
from machine import describe

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "adapt.json"
PLAIN = "tinybert-4L-312"
STARTS = (PLAIN, "ranked", "all-MiniLM-L6-v2")
METHODS = {
    "simcse": ("--objective", "simcse", "--batch-size", "64"),
    "denoising": ("--objective", "denoising", "--batch-size", "16"),
}
RATE = "5e-5"
SIZES = (1000, 4000, 11_000)
EVALUATIONS = (("retrieval", "retrieval"), ("sts", "sts/stsb-dev.tsv.gz"))
"""Task and data; the folder has Vaswani and Cranfield."""
NAMES = {"vaswani": "Vaswani", "cranfield": "Cranfield", "stsb-dev": "STSb"}


@dataclass(frozen=True)
class Cell:
    """One training."""

    start: str
    method: str
    size: int
    rate: str

    @property
    def name(self) -> str:
        return f"{self.start}-{self.method}-{self.size}-{self.rate}"


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def write_texts(options: argparse.Namespace, size: int) -> Path:
    """Abstracts of the domain, chosen by chance; queries are not among them."""
    path: Path = options.work / f"vaswani-{size}.txt"
    if not path.exists():
        texts = [row["text"] for row in read(options.data / "retrieval" / "vaswani-corpus.tsv.gz")]
        random.Random(0).shuffle(texts)
        path.write_text("\n".join(texts[:size]) + "\n", encoding="utf-8")
    return path


def train(options: argparse.Namespace, name: str, model: str, data: Path, flags: tuple[str, ...]) -> float:
    """Processor seconds of a training, which are kept beside the model."""
    folder, record = options.work / name, options.work / f"{name}.seconds"
    if record.exists():
        return float(record.read_text(encoding="utf-8"))
    words = ["train", str(data), "--model", model, *flags, "--threads", "1", "--force", "-o", str(folder)]
    begun = ["--resume"] if (folder / "training" / "metrics.jsonl").exists() else []
    program = (
        "import sys, time; from gemel.cli.main import main; main(sys.argv[1:]); print(time.process_time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words, *begun], stdout=subprocess.PIPE, text=True, check=True
    )
    record.write_text(done.stdout.strip().splitlines()[-1], encoding="utf-8")
    return float(record.read_text(encoding="utf-8"))


def source_of(start: str, options: argparse.Namespace) -> str:
    """The name or folder of a start model; `ranked` is trained first."""
    plain = str(DATA.parent / "weights" / PLAIN)
    if start == "ranked":
        data = options.work / "nli-16000.tsv"
        if not data.exists():
            rows = [
                row
                for part in ("snli", "mnli")
                for row in read(options.data / "nli" / f"{part}-train-subset.tsv.gz")
            ]
            random.Random(0).shuffle(rows)
            lines = [
                "\t".join(row[name] for name in ("premise", "hypothesis", "label")) for row in rows[:16_000]
            ]
            data.write_text("\n".join(["premise\thypothesis\tlabel", *lines]) + "\n", encoding="utf-8")
        flags = ("--objective", "in-batch-ranking", "--batch-size", "64", "--learning-rate", "2e-4")
        train(options, "ranked", plain, data, flags)
        return str(options.work / "ranked")
    return plain if start == PLAIN else start


def evaluate(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Scores by data set; each has its items."""
    cut = gemel.EncodeOptions(threads=1, on_long="truncate")
    parts = [
        gemel.evaluate(model, task=task, data=options.data / file, options=cut) for task, file in EVALUATIONS
    ]
    return {NAMES[each.dataset]: each for part in parts for each in part if each.dataset in NAMES}


def row_of(cell: Cell, options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    flags = (*METHODS[cell.method], "--learning-rate", cell.rate)
    model = source_of(cell.start, options)
    seconds = train(options, cell.name, model, write_texts(options, cell.size), flags)
    row: dict[str, Any] = {"start": cell.start, "method": cell.method, "texts": cell.size}
    row |= {"learning_rate": cell.rate, "minutes": round(seconds / 60, 1)}
    for name, after in evaluate(str(options.work / cell.name), options).items():
        change = compare(before[name].sample, after.sample, rounds=1000)
        row[name] = {
            "before": round(before[name].values[before[name].main].value, 2),
            "after": round(after.values[after.main].value, 2),
            "difference": [round(100 * value, 2) for value in (change.difference, change.low, change.high)],
        }
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with retrieval/, sts/, nli/")
    parser.add_argument("--starts", type=lambda text: text.split(","), default=list(STARTS))
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument(
        "--sizes", type=lambda text: [int(part) for part in text.split(",")], default=list(SIZES)
    )
    parser.add_argument("--rates", type=lambda text: text.split(","), default=[RATE], help="learning rates")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"machine": describe(), "rows": []}
    if RESULTS.exists():
        content = json.loads(RESULTS.read_text(encoding="utf-8"))
    there = {
        Cell(*(row[name] for name in ("start", "method", "texts", "learning_rate")))
        for row in content["rows"]
    }
    kinds = list(itertools.product(options.sizes, options.methods, options.rates))
    for start in options.starts:
        before = None
        for cell in (Cell(start, method, size, rate) for size, method, rate in kinds):
            if cell in there:
                continue
            before = before or evaluate(source_of(start, options), options)
            content["rows"].append(row_of(cell, options, before))
            RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            print(content["rows"][-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
