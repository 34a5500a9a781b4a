"""Writes training_parity.json: ten steps of sentence-transformers' own trainer, in an environment that has it.

    pip install 'sentence-transformers[train]' && python tests/support/training_parity_reference.py

It needs neither gemel nor a network; the model is a tiny BERT of random numbers.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import accelerate
import sentence_transformers
import torch
import transformers
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import TrainerCallback, get_scheduler

from training_parity import (
    BATCH,
    CASES,
    LABELS,
    REFERENCE,
    SCHEDULES,
    STEPS,
    Case,
    figures,
    short,
    start_head,
    start_model,
)

DROPOUT_OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class InOrder(SentenceTransformerTrainer):
    """The original trainer, except that rows come in order and losses are recorded."""

    def get_batch_sampler(self, dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> BatchSampler:
        return BatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)

    def compute_loss(self, *arguments: Any, **settings: Any) -> Any:
        loss = super().compute_loss(*arguments, **settings)
        self.kept_losses = [*getattr(self, "kept_losses", []), float(loss.detach())]
        return loss


class Recorder(TrainerCallback):
    """Records each step: the gradients that the optimizer gets, and what the trainer logs."""

    def __init__(self, case: Case, loss: torch.nn.Module) -> None:
        self._case = case
        self._loss = loss
        self.gradients: list[dict[str, list[float]]] = []
        self.logs: list[dict[str, float]] = []

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        grads = [(name, weight.grad.numpy()) for name, weight in named(self._loss) if weight.grad is not None]
        self.gradients.append(figures(self._case, grads))

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:  # type: ignore[override]
        if "grad_norm" in logs:
            self.logs.append(logs)


def named(loss: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Weights under the names that a checkpoint has, those of the head as head.*"""
    for name, weight in loss.named_parameters():
        bare = name.split("model.")[-1]
        if not bare.startswith("pooler."):  # created by transformers, and not used
            yield bare.replace("classifier.", "head."), weight


def load(folder: Path, dropout: dict[str, float]) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", config_kwargs=dropout)


def make_loss(case: Case, model: SentenceTransformer) -> torch.nn.Module:
    settings = dict(case.peer_settings)
    if case.peer == "SoftmaxLoss":
        settings |= {"num_labels": LABELS, "sentence_embedding_dimension": model.get_embedding_dimension()}
        try:
            loss = losses.SoftmaxLoss(model, **settings)
        except TypeError:  # a later name of the same setting
            settings["embedding_dimension"] = settings.pop("sentence_embedding_dimension")
            loss = losses.SoftmaxLoss(model, **settings)
        loss.double()
        with torch.no_grad():
            for name, weight in named(loss):
                if name in start_head():
                    weight.copy_(torch.from_numpy(start_head()[name]))
        return loss
    made: torch.nn.Module = getattr(losses, case.peer)(model, **settings)
    return made


def run(case: Case, folder: Path) -> dict[str, Any]:
    """One training, and what is compared of it."""
    model = load(folder, DROPOUT_OFF).double()
    loss = make_loss(case, model)
    before = {name: weight.detach().numpy().copy() for name, weight in named(loss)}
    rows = case.rows()
    recorder = Recorder(case, loss)
    with tempfile.TemporaryDirectory() as out:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=out,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=case.accumulate,
            learning_rate=case.learning_rate,
            lr_scheduler_type=SCHEDULES[case.schedule],
            warmup_steps=math.ceil(case.warmup * STEPS),
            weight_decay=case.weight_decay,
            max_grad_norm=case.clip,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = InOrder(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]}),
            loss=loss,
            callbacks=[recorder],
        )
        trainer.train()
    parts = np.array(trainer.kept_losses).reshape(STEPS, case.accumulate)
    return {
        "losses": [short(float(value)) for value in parts.mean(1)],
        "norms": [short(float(each["grad_norm"])) for each in recorder.logs],
        "learning_rates": [short(each["learning_rate"]) for each in recorder.logs],
        "gradients": {name: [each[name] for each in recorder.gradients] for name in recorder.gradients[0]},
        "moved": figures(
            case, ((name, weight.detach().numpy() - before[name]) for name, weight in named(loss))
        ),
        "optimizer": optimizer_facts(trainer.optimizer, loss),
    }


def optimizer_facts(optimizer: Any, loss: torch.nn.Module) -> dict[str, Any]:
    names = {id(weight): name for name, weight in named(loss)}
    plain = [group for group in optimizer.param_groups if not group["weight_decay"]]
    group = optimizer.param_groups[0]
    return {
        "class": getattr(optimizer, "optimizer", optimizer).__class__.__name__,
        "eps": group["eps"],
        "betas": list(group["betas"]),
        "amsgrad": group["amsgrad"],
        "not_decayed": sorted(
            names[id(weight)] for one in plain for weight in one["params"] if id(weight) in names
        ),
    }


def schedule(name: str, *, steps: int, warmup: int) -> list[float]:
    """The factor of the learning rate at each step."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    made = get_scheduler(SCHEDULES[name], optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    factors = []
    for _ in range(steps):
        factors.append(short(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        made.step()
    return factors


def one_mask_for_a_repeated_text(folder: Path) -> bool:
    """Whether a text that occurs twice in a batch gets the same vector both times while dropout is on."""
    model = load(folder, {"hidden_dropout_prob": 0.3}).train()
    features = model.preprocess(["the cat is sleeping"] * 2)
    first, second = model(features)["sentence_embedding"]
    return bool(torch.equal(first, second))


def written(content: dict[str, Any]) -> str:
    """JSON with one line for each list of figures."""
    whole = json.dumps(content, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]|\[\s*(?:\[[^\[\]{}]*\],?\s*)+\]", flat, whole) + "\n"


def flat(result: re.Match[str]) -> str:
    return re.sub(r"\s+", " ", result[0]).replace("[ ", "[").replace(" ]", "]")


def main() -> None:
    torch.set_num_threads(1)
    packages = (sentence_transformers, transformers, torch, accelerate)
    with tempfile.TemporaryDirectory() as temporary:
        folder = start_model(Path(temporary) / "model")
        content = {
            "versions": {package.__name__: package.__version__.split("+")[0] for package in packages},
            "cases": {name: run(case, folder) for name, case in CASES.items()},
            "schedules": {
                name: {"steps": 20, "warmup": 0.2, "factors": schedule(name, steps=20, warmup=4)}
                for name in SCHEDULES
            },
            "one_mask_for_a_repeated_text": one_mask_for_a_repeated_text(folder),
        }
    REFERENCE.write_text(written(content), encoding="utf-8")
    print(f"wrote {REFERENCE.name}: {REFERENCE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
