"""sentence-transformers' trainer on NLI rows: one JSON request as argument, one JSON result on standard output."""

from __future__ import annotations

import csv
import json
import resource
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from transformers import TrainerCallback

LABELS = ("entailment", "neutral", "contradiction")
SKIPPED = 3  # steps that warm up


class Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.busy: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(perf_counter())
        self.busy.append(process_time())


def main(request: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(request["threads"])
    with Path(request["rows"]).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    data = Dataset.from_dict(
        {
            "premise": [row["premise"] for row in rows],
            "hypothesis": [row["hypothesis"] for row in rows],
            "label": [LABELS.index(row["label"]) for row in rows],
        }
    )
    model = SentenceTransformer(request["model"], device="cpu")
    clock = Clock()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=request["out"] + "-run",
        max_steps=request["steps"],
        per_device_train_batch_size=request["batch"],
        learning_rate=request["learning_rate"],
        warmup_steps=request["steps"] // 10,
        seed=request["seed"],
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        loss=losses.SoftmaxLoss(
            model,
            sentence_embedding_dimension=model.get_sentence_embedding_dimension(),
            num_labels=len(LABELS),
        ),
        callbacks=[clock],
    )
    trainer.train()
    model.save(request["out"])
    timed = len(clock.ends) - SKIPPED
    return {
        "folder": request["out"],
        "pairs_per_second": timed * request["batch"] / (clock.ends[-1] - clock.ends[SKIPPED - 1]),
        "pairs_per_cpu_second": timed * request["batch"] / (clock.busy[-1] - clock.busy[SKIPPED - 1]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
