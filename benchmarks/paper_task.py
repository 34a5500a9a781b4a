"""The introductory task of the Sentence-BERT paper: the most similar pair of 10,000 sentences, from text to answer.

    python benchmarks/paper_task.py

Sentences of STSb, all distinct, all-MiniLM-L6-v2, two threads, the systems in turn, best of two; loading is outside
the timer. A cross-encoder would need 49,995,000 passes. Results: results/paper_task.json.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from environments import Environments
from machine import describe

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "shared" / "data" / "sts"
COUNT, ROUNDS, THREADS = 10_000, 2, 2


def sentences() -> list[str]:
    """The first `COUNT` distinct sentences of STSb."""
    actual: dict[str, None] = {}
    for part in ("train", "dev", "test"):
        with gzip.open(DATA / f"stsb-{part}.tsv.gz", "rt", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                actual |= dict.fromkeys((row["sentence1"], row["sentence2"]))
    return list(actual)[:COUNT]


def run(python: Path, system: str, model: str, file: Path) -> dict[str, Any]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(THREADS))
    done = subprocess.run(
        [str(python), str(HERE / "peers" / "paper_task.py"), system, model, str(file), str(THREADS)],
        env={**os.environ, **threads, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> int:
    from gemel.checkpoint.sources import find_model

    pythons = {
        "st": Environments(HERE / ".environments", install=True).python("st"),
        "gemel": Path(sys.executable),
    }
    machine, model = describe(), str(find_model("all-MiniLM-L6-v2"))
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sentences.txt"
        file.write_text("\n".join(sentences()) + "\n", encoding="utf-8")
        for _ in range(ROUNDS):
            for system, python in pythons.items():
                rounds[system].append(run(python, system, model, file))
                print(system, rounds[system][-1], flush=True)
    best = {name: min(each["encode"] + each["pairs"] for each in actual) for name, actual in rounds.items()}
    print(
        f"gemel {best['gemel']:.2f} s, sentence-transformers {best['st']:.2f} s: {best['st'] / best['gemel']:.2f} x"
    )
    content = {"machine": machine, "threads": THREADS, "sentences": COUNT, "seconds": best, "rounds": rounds}
    (HERE / "results" / "paper_task.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
