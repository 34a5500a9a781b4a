"""How fast and how well gemel trains, compared with sentence-transformers' trainer: same model, rows, batch, threads.

    python benchmarks/train.py            about a quarter of an hour on two cores
    python benchmarks/train.py --quick    does everything work? no results file

Each run is a separate process. The two systems take turns; a setting's rounds have different seeds. A rate counts
the steps after the first few; loading, reading and saving are outside. Quality is the Spearman correlation on the
development set of STSb of the saved model, computed by gemel for both.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison_flags import DATA, comparison, environments_of, result_file
from environments import InstallError
from machine import describe

HERE = Path(__file__).parent
TARGET = 1.6
LABELS = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class Setting:
    """One comparison."""

    model: str
    batch: int
    steps: int
    rounds: int
    learning_rate: float

    @property
    def name(self) -> str:
        return f"{self.model}, batch {self.batch}"


SETTINGS = (
    Setting("tinybert-4L-312", 16, 200, 3, 1e-4),
    Setting("tinybert-4L-312", 64, 40, 2, 1e-4),
    Setting("all-MiniLM-L6-v2", 16, 30, 2, 2e-5),
    Setting("all-MiniLM-L6-v2", 64, 10, 2, 2e-5),
)


def arguments() -> argparse.Namespace:
    parser = comparison(__doc__, "train.json", data="nli/, sts/")
    parser.add_argument("--weights", type=Path, default=DATA.parent / "weights")
    parser.add_argument("--only", help="only settings whose name contains this")
    return parser.parse_args()


def write_rows(data: Path, target: Path, count: int) -> None:
    """The first `count` rows of SNLI and MultiNLI in a fixed shuffled order, as one TSV."""
    rows: list[list[str]] = []
    for name in ("snli-train-subset", "mnli-train-subset"):
        with gzip.open(data / "nli" / f"{name}.tsv.gz", "rt", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["label"] in LABELS:
                    rows.append([row["premise"], row["hypothesis"], row["label"]])
    random.Random(0).shuffle(rows)
    lines = ["premise\thypothesis\tlabel", *("\t".join(row) for row in rows[:count])]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(python: Path, script: str, request: dict[str, Any], threads: int) -> dict[str, Any]:
    """One training in a fresh process; its last line is JSON."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    variables = {
        **dict.fromkeys(names, str(threads)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }

    done = subprocess.run(
        [str(python), str(HERE / "peers" / script), json.dumps(request)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script} failed: {done.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def score(folder: str, data: Path) -> float:
    import gemel

    [result] = gemel.evaluate(folder, task="sts", data=data / "sts" / "stsb-dev.tsv.gz", rounds=0)
    return float(result.values["spearman"].value or 0)


def compare(
    setting: Setting, pythons: dict[str, Path], models: dict[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """All rounds of one setting, the systems in turn."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.tsv"
        write_rows(options.data, rows, setting.batch * setting.steps)
        for number in range(setting.rounds):
            for system, python in pythons.items():
                out = Path(folder) / f"{system}-{number}"
                request = {
                    "model": models[setting.model], "rows": str(rows), "out": str(out), "batch": setting.batch,
                    "steps": setting.steps, "learning_rate": setting.learning_rate, "seed": number,
                    "threads": options.threads,
                }  # fmt: skip
                result = run(python, f"train_{system}.py", request, options.threads)
                result["stsb_dev"] = score(result.pop("folder"), options.data)
                rounds[system].append(result)
                print(
                    f"{setting.name}, {system}: {result['pairs_per_second']:.1f} pairs/s, "
                    f"{result['peak_mb']:.0f} MB, STSb-dev {result['stsb_dev']:.2f}",
                    flush=True,
                )
    best = {name: max(each["pairs_per_second"] for each in actual) for name, actual in rounds.items()}
    quality = {
        name: sum(each["stsb_dev"] for each in actual) / len(actual) for name, actual in rounds.items()
    }
    return {
        **asdict(setting),
        "rounds_each": rounds,
        "pairs_per_second": best,
        "ratio": best["gemel"] / best["st"],
        "stsb_dev": quality,
        "peak_mb": {name: min(each["peak_mb"] for each in actual) for name, actual in rounds.items()},
    }


def main() -> int:
    options = arguments()
    environments = environments_of(options)
    try:
        pythons = {"st": environments.python("sttrain"), "gemel": Path(sys.executable)}
    except InstallError as error:
        print(f"the peer cannot be installed: {error}", file=sys.stderr)
        return 1
    from gemel.checkpoint.sources import find_model

    models = {
        "tinybert-4L-312": str(options.weights / "tinybert-4L-312"),
        "all-MiniLM-L6-v2": str(find_model("all-MiniLM-L6-v2")),
    }
    settings = [each for each in SETTINGS if not options.only or options.only in each.name]
    if options.quick:
        settings = [Setting(each.model, each.batch, 6, 1, each.learning_rate) for each in settings]
    machine = describe()
    actual = [compare(setting, pythons, models, options) for setting in settings]
    for each in actual:
        verdict = "reached" if each["ratio"] >= TARGET else "not reached"
        quality = each["stsb_dev"]
        print(
            f"{each['model']}, batch {each['batch']}: {each['ratio']:.2f} x sentence-transformers "
            f"(target {TARGET}: {verdict}); STSb-dev {quality['gemel']:.2f} against {quality['st']:.2f}; "
            f"peak {each['peak_mb']['gemel']:.0f} against {each['peak_mb']['st']:.0f} MB"
        )
    if out := result_file(options):
        content = {"machine": machine, "threads": options.threads, "target": TARGET, "settings": actual}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
