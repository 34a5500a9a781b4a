"""Do we get the numbers of sentence-transformers? The same model and files through our `sts` and their evaluator.

    python benchmarks/sts_parity.py --data sts/

Needs the environment `st` of the encoding benchmark (made on the first run). Writes results/sts_parity.json and exits
with 1 if a correlation differs by more than 0.01 points.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import gemel
from environments import Environments
from gemel.checkpoint.sources import find_model

HERE = Path(__file__).parent
NAMES = ("sts12-test", "sts13-test", "sts14-test", "sts15-test", "sts16-test", "stsb-test", "sickr-test")
LIMIT = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with sts12-test.tsv.gz and so on")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--environments", type=Path, help="ready environments; nothing is installed")
    arguments = parser.parse_args()
    files = [arguments.data / f"{name}.tsv.gz" for name in NAMES]
    ours = {file.name.removesuffix(".tsv.gz"): own(arguments.model, file) for file in files}
    theirs = peer(arguments.model, files, arguments.environments)
    worst = max(
        abs(ours[name][kind] - number)
        for name, numbers in theirs["datasets"].items()
        for kind, number in numbers.items()
    )
    result = {
        "model": arguments.model,
        "gemel": gemel.__version__,
        "sentence_transformers": theirs["version"],
        "largest_difference": round(worst, 6),
        "datasets": {
            name: {"ours": rounded(ours[name]), "theirs": rounded(theirs["datasets"][name])} for name in NAMES
        },
    }
    (HERE / "results" / "sts_parity.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'data set':<12}{'ours':>10}{'theirs':>10}   Spearman, cosine")
    for name in NAMES:
        print(
            f"{name:<12}{ours[name]['spearman-cosine']:>10.4f}{theirs['datasets'][name]['spearman-cosine']:>10.4f}"
        )
    print(f"largest difference over four similarities, Spearman and Pearson: {worst:.5f} points")
    return int(worst > LIMIT)


def own(model: str, file: Path) -> dict[str, float]:
    [scores] = gemel.evaluate(model, task="sts", data=file, metric="all", rounds=0)
    return {name: score.value for name, score in scores.values.items() if score.value is not None}


def peer(model: str, files: list[Path], ready: Path | None) -> dict[str, dict]:
    environments = Environments(ready or HERE / ".environments", install=ready is None)
    command = [environments.python("st"), HERE / "peers" / "sbert_sts.py", find_model(model), *files]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=offline
    )
    if done.returncode:
        sys.exit(f"sentence-transformers failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def rounded(points: dict[str, float]) -> dict[str, float]:
    return {name: round(number, 4) for name, number in points.items()}


if __name__ == "__main__":
    sys.exit(main())
