"""SetFit on a few examples: a JSON request that names a file with the texts, one JSON result on standard output."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import torch
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments


def main(request: dict[str, Any]) -> dict[str, float]:
    torch.set_num_threads(1)
    names = sorted(set(request["labels"]))
    data = Dataset.from_dict(
        {"text": request["texts"], "label": [names.index(label) for label in request["labels"]]}
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_iterations=request["pairs"],
            seed=request["seed"],
            save_strategy="no",
            report_to="none",
            show_progress_bar=False,
        )
        started = process_time()
        model = SetFitModel.from_pretrained(request["model"])
        Trainer(model=model, args=settings, train_dataset=data).train()
        seconds = process_time() - started
    predicted = [
        names[int(number)] for number in model.predict(request["test_texts"], show_progress_bar=False)
    ]
    right = [one == other for one, other in zip(predicted, request["test_labels"], strict=True)]
    return {"accuracy": sum(right) / len(right), "cpu_seconds": round(seconds, 1)}


if __name__ == "__main__":
    file = json.loads(sys.argv[1])["request"]
    print(json.dumps(main(json.loads(Path(file).read_text(encoding="utf-8")))))
