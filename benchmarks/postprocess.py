"""What post-processing does to a raw encoder: each method fitted on the texts of STSb-train, scored on three STS sets.

    python benchmarks/postprocess.py

Results: results/postprocess.json. The defaults of the flow were chosen on STSb-test.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gemel
from gemel.files.rows import read_rows
from gemel.texts.whitening import Settings, save_postprocessed
from machine import describe

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared"
SETS = ("stsb-dev", "stsb-test", "sickr-test")
METHODS: dict[str, tuple[str, Settings]] = {
    "centering": ("centering", Settings()),
    "all-but-the-top": ("all-but-the-top", Settings()),
    "whitening": ("whitening", Settings()),
    "whitening --dim 128": ("whitening", Settings(dim=128)),
    "flow": ("flow", Settings()),
}


def scores(folder: Path) -> dict[str, Any]:
    actual = {}
    for name in SETS:
        [result] = gemel.evaluate(folder, task="sts", data=SHARED / "data" / "sts" / f"{name}.tsv.gz")
        main = result.values["spearman"]
        actual[name] = {"spearman": main.value, "low": main.low, "high": main.high}
    return actual


def main() -> int:
    weights, train = SHARED / "weights" / "tinybert-4L-312", SHARED / "data" / "sts" / "stsb-train.tsv.gz"
    texts = [
        row.text for column in ("sentence1", "sentence2") for row in read_rows(str(train), text_column=column)
    ]
    actual = {"as it is": scores(weights)}
    for title, (method, settings) in METHODS.items():
        with tempfile.TemporaryDirectory() as work:
            out = Path(work) / "model"
            save_postprocessed(gemel.load(weights), texts, out, method=method, settings=settings)
            actual[title] = scores(out)
        print(title, {name: round(each["spearman"], 2) for name, each in actual[title].items()}, flush=True)
    content = {"machine": describe(), "model": weights.name, "texts": len(texts), "methods": actual}
    (HERE / "results" / "postprocess.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
