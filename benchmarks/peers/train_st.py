"""sentence-transformers' trainer on NLI rows: one JSON request as argument, one JSON result on standard output.

`start` in the request is a file with the order of the rows and the first weights of the head, so that a run starts
like one of gemel. Without it the trainer shuffles by its seed, and the head is the same for every seed: it is made
before the trainer seeds torch.
"""

from __future__ import annotations

import csv
import json
import resource
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from torch.utils.data import BatchSampler
from transformers import TrainerCallback

LABELS = ("entailment", "neutral", "contradiction")
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
SKIPPED = 3  # steps that warm up


class Trainer(SentenceTransformerTrainer):
    """The original trainer; rows come in the given order, if there is one, and losses are recorded."""

    def __init__(self, *arguments: Any, order: list[int] | None, **settings: Any) -> None:
        self.losses: list[float] = []
        self._order = order
        super().__init__(*arguments, **settings)

    def get_batch_sampler(
        self, dataset: Dataset, batch_size: int, drop_last: bool, **settings: Any
    ) -> BatchSampler:
        if self._order is None:
            return super().get_batch_sampler(dataset, batch_size, drop_last, **settings)
        return BatchSampler(self._order, batch_size=batch_size, drop_last=drop_last)

    def compute_loss(self, *arguments: Any, **settings: Any) -> torch.Tensor:
        loss = super().compute_loss(*arguments, **settings)
        self.losses.append(float(loss.detach()))
        return loss


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
    dropout = request.get("options", {}).get("dropout")
    config = {} if dropout is None else dict.fromkeys(DROPOUTS, dropout)
    model = SentenceTransformer(request["model"], device="cpu", config_kwargs=config)
    loss = losses.SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=len(LABELS))
    order = None
    if request.get("start"):
        start = np.load(request["start"])
        order = start["order"].tolist()
        with torch.no_grad():
            loss.classifier.weight.copy_(torch.from_numpy(start["weight"]))
            loss.classifier.bias.copy_(torch.from_numpy(start["bias"]))
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
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[clock], order=order
    )
    trainer.train()
    if request.get("losses"):
        Path(request["losses"]).write_text(json.dumps(trainer.losses), encoding="utf-8")
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
