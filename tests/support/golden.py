"""What gemel answers for fifty texts, kept in a file: a move of code must not change a bit of it.

    python tests/support/golden.py --write    make tests/golden/ again, with its index
    python tests/support/golden.py            compare bit for bit; for one machine, since processors round differently

`tests/test_golden.py` compares the same numbers with a tolerance, on any machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gemel

FOLDER = Path(__file__).parents[1] / "golden"
EXPECTED, TEXTS = FOLDER / "expected.npz", FOLDER / "texts.txt"
INDEX = FOLDER / "index"
MODEL = "all-MiniLM-L6-v2"
MODES: dict[str, dict[str, Any]] = {
    "dense": {},
    "hybrid": {"hybrid": True},
    "where": {"where": "even = true"},
}
QUESTIONS = ["someone makes music", "money and markets", "weather tomorrow"]


def texts() -> list[str]:
    return TEXTS.read_text(encoding="utf-8").splitlines()


def answers(index_folder: Path) -> dict[str, Any]:
    """Name to array: vectors, pairs, hits, an explanation, a calibration, answers of a stored index."""
    model, lines = gemel.load(MODEL), texts()
    float32 = model.encode(lines)
    pairs = gemel.similar_pairs(float32, k=40)
    hits = gemel.search(model.encode(QUESTIONS), float32, k=10)
    explained = gemel.explain(model, lines[0], lines[1])
    calibration = gemel.calibrate(float32)
    out: dict[str, Any] = {
        "float32": float32,
        "int8": gemel.load(MODEL, precision="int8").encode(lines),
        "pair_left": pairs.left,
        "pair_right": pairs.right,
        "pair_score": pairs.score,
        "hit_index": hits.index,
        "hit_score": hits.score,
        "explained": explained.table,
        "threshold": np.float64(calibration.threshold(expected_false=1)),
    }
    with gemel.open_index(index_folder, read_only=True) as index:
        for number, question in enumerate(QUESTIONS):
            for mode, options in MODES.items():
                result = index.search(question, k=5, **options)
                out[f"{mode}_ids_{number}"] = np.array([hit.id for hit in result])
                out[f"{mode}_scores_{number}"] = np.array([hit.score for hit in result])
    return out


def write() -> None:
    shutil.rmtree(INDEX, ignore_errors=True)
    model, lines = gemel.load(MODEL), texts()
    with gemel.open_index(INDEX, model, fields={"number": "int", "even": "bool"}) as index:
        fields = [{"number": n, "even": n % 2 == 0} for n in range(len(lines))]
        index.add(lines, ids=[f"text-{n}" for n in range(len(lines))], fields=fields)
    np.savez_compressed(EXPECTED, **answers(INDEX))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write()
        return
    expected = np.load(EXPECTED)
    wrong = [name for name, value in answers(INDEX).items() if not np.array_equal(expected[name], value)]
    sys.exit(f"not the same bits: {', '.join(wrong)}" if wrong else None)


if __name__ == "__main__":
    main()
