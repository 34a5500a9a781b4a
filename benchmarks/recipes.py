"""The recipes of docs/reference/training.md, run and measured: each trains a model and scores it on the STS sets.

    python benchmarks/recipes.py --work FOLDER              all of them, some hours on one core
    python benchmarks/recipes.py --work FOLDER --only nli   one
    python benchmarks/recipes.py --work FOLDER --score      no training: score the models that are there

An existing model in the folder is not trained again; an interrupted run is resumed. The results are in
results/recipes.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe

HERE = Path(__file__).parent
STS = ("stsb-dev", "stsb-test", *(f"sts{year}-test" for year in range(12, 17)), "sickr-test")
NLI = ("nli/snli-train-subset", "nli/mnli-train-subset", "nli/lingnli-train")


@dataclass(frozen=True)
class Recipe:
    """One command of the docs."""

    name: str
    data: tuple[str, ...]
    arguments: tuple[str, ...]
    start: str = "tinybert-4L-312"
    """Weights, or the recipe whose model it starts from."""


RECIPES = (
    Recipe(
        "nli",
        NLI,
        ("--objective", "classification", "--batch-size", "32", "--learning-rate", "1e-4", "--eval-steps", "600"),
    ),
    Recipe(
        "ranking",
        NLI,
        ("--objective", "in-batch-ranking", "--batch-size", "64", "--learning-rate", "2e-4", "--eval-steps", "100"),
    ),
    Recipe(
        "regression",
        ("sts/stsb-train",),
        ("--objective", "regression", "--batch-size", "32", "--learning-rate", "1e-4", "--epochs", "4"),
        start="ranking",
    ),
    Recipe(
        "triplet",
        ("nli/snli-triplets",),
        ("--objective", "triplet", "--batch-size", "32", "--learning-rate", "1e-4"),
    ),
    Recipe(
        "cross",
        ("sts/stsb-train",),
        ("--kind", "cross-encoder", "--objective", "regression", "--batch-size", "32", "--learning-rate", "1e-4",
         "--epochs", "4"),
    ),
)  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = HERE.parent.parent / "shared"
    parser.add_argument("--work", type=Path, required=True, help="a folder for the models")
    parser.add_argument("--data", type=Path, default=shared / "data")
    parser.add_argument("--weights", type=Path, default=shared / "weights")
    parser.add_argument("--only", help="names of recipes, with commas")
    parser.add_argument("--score", action="store_true", help="score what is there, train nothing")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "recipes.json")
    return parser.parse_args()


def command(recipe: Recipe, options: argparse.Namespace) -> list[str]:
    """What a user types, except for the folders."""
    start = options.weights / recipe.start
    files = [str(options.data / f"{name}.tsv.gz") for name in recipe.data]
    dev = str(options.data / "sts" / "stsb-dev.tsv.gz")
    model = str(start if start.exists() else options.work / recipe.start)
    out = ["-o", str(options.work / recipe.name)]
    # Spelled out: the recipes were measured when it was the default.
    arguments = [*recipe.arguments, "--group-by-length"]
    return ["train", *files, "--model", model, *arguments, "--eval-data", dev, *out]


def train(recipe: Recipe, options: argparse.Namespace) -> None:
    out = options.work / recipe.name
    if (out / "README.md").exists():  # the last file that a run writes
        return
    resumed = ["--resume"] if (out / "training").exists() else []
    # Seven of STSb's development pairs are in its training set, as published: the doctor reports it.
    subprocess.run(
        [
            sys.executable,
            "-m",
            "gemel",
            *command(recipe, options),
            *resumed,
            "--threads",
            options.threads,
            "--force",
        ],
        check=True,
    )


def measure(recipe: Recipe, options: argparse.Namespace) -> dict[str, Any]:
    import gemel

    folder = options.work / recipe.name
    scores: dict[str, Any] = {}
    for name in STS:
        path = options.data / "sts" / f"{name}.tsv.gz"
        if not path.exists():
            continue
        [result] = gemel.evaluate(folder, task="sts", data=path)
        main = result.values["spearman"]
        scores[name] = {"spearman": main.value, "low": main.low, "high": main.high, "pairs": result.items}
    lines = [json.loads(line) for line in (folder / "training" / "metrics.jsonl").open(encoding="utf-8")]
    end = next(line for line in reversed(lines) if line["kind"] == "end")
    kept = ("steps", "best_step", "untrained", "score", "texts", "seconds")
    shown = " ".join(["gemel", *command(recipe, options)])
    for location, short in ((options.data, "data"), (options.weights, "weights"), (options.work, "models")):
        shown = shown.replace(str(location), short)
    return {"command": shown, **{name: end.get(name) for name in kept}, "sts": scores}


def main() -> int:
    options = arguments()
    wanted = options.only.split(",") if options.only else [recipe.name for recipe in RECIPES]
    options.work.mkdir(parents=True, exist_ok=True)
    actual = json.loads(options.out.read_text())["recipes"] if options.out.exists() else {}
    for recipe in RECIPES:
        if recipe.name not in wanted:
            continue
        if not options.score:
            train(recipe, options)
        if not (options.work / recipe.name / "README.md").exists():
            continue
        actual[recipe.name] = measure(recipe, options)
        print(
            recipe.name,
            json.dumps({k: round(v["spearman"], 2) for k, v in actual[recipe.name]["sts"].items()}),
        )
        content = {"machine": describe(), "recipes": actual}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
