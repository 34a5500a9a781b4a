"""STS by sentence-transformers' own evaluator: a model folder and files in, one line of JSON with points out.

Reads the tables itself, so that it does not share an error of our reader.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from importlib.metadata import version


def scores(model_folder: str, paths: list[str]) -> dict[str, dict[str, float]]:
    """Points of each file by name, for the four similarities."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    torch.set_num_threads(2)
    model = SentenceTransformer(model_folder, device="cpu")
    actual = {}
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        evaluator = EmbeddingSimilarityEvaluator(
            [row["sentence1"] for row in rows],
            [row["sentence2"] for row in rows],
            [float(row["score"]) for row in rows],
            batch_size=64,
            similarity_fn_names=["cosine", "dot", "euclidean", "manhattan"],
        )
        metrics = evaluator(model)
        name = path.rsplit("/", 1)[-1].removesuffix(".tsv.gz")
        actual[name] = {
            f"{kind}-{metric}": 100 * float(metrics[f"{kind}_{metric}"])
            for kind in ("spearman", "pearson")
            for metric in ("cosine", "dot", "euclidean", "manhattan")
        }
    return actual


if __name__ == "__main__":
    result = scores(sys.argv[1], sys.argv[2:])
    print(json.dumps({"version": version("sentence-transformers"), "datasets": result}))
