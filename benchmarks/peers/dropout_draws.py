"""The loss and the gradient of one batch under many dropout masks, by gemel and by sentence-transformers.

One JSON request as argument, one JSON result on standard output. Weights, head and rows are the same; only the masks
are drawn. If dropout acts at the same points with the same rate, the loss, the norm of the gradient and its products
with fixed random directions have the same distribution on both sides.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, losses
from torch import Tensor, nn

from gemel.checkpoint.folder import read_checkpoint
from gemel.training.bi_encoder import BiEncoderNetwork
from gemel.training.loop import plan
from gemel.training.objectives.base import make_objective
from gemel.training.options import TrainOptions

Array = np.ndarray[Any, np.dtype[Any]]
LABELS = ("entailment", "neutral", "contradiction")
DIRECTIONS = 2


def main(request: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    torch.set_num_threads(request["threads"])
    start = np.load(request["start"])
    with Path(request["rows"]).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = [rows[number] for number in start["order"][: request["batch"]].tolist()]
    left, right = ([row[name] for row in rows] for name in ("premise", "hypothesis"))
    label = torch.tensor([LABELS.index(row["label"]) for row in rows])
    sides = {
        "gemel": gemel_side(request["model"], start, (left, right), label),
        "sentence-transformers": peer_side(request["model"], start, (left, right), label),
    }
    return {name: draw(*side, request["draws"]) for name, side in sides.items()}


def gemel_side(
    model: str, start: Mapping[str, Array], columns: tuple[list[str], ...], label: Tensor
) -> tuple[Callable[[], Tensor], dict[str, Tensor]]:
    objective = make_objective("classification", {"bias": True})
    network = BiEncoderNetwork(read_checkpoint(model), TrainOptions(), torch.device("cpu"))
    head = objective.weights(network.dim, len(LABELS))
    assert head is not None, "classification has a head"
    set_head(head, start)
    network.module.train()
    planned = plan(columns, objective.needs, repeats=True)
    tokens = network.tokens(planned.items)

    def loss() -> Tensor:
        vectors = network.forward(tokens)
        return objective(tuple(vectors[rows] for rows in planned.where), label, head)

    return loss, named(network.body.module.named_parameters())


def peer_side(
    model: str, start: Mapping[str, Array], columns: tuple[list[str], ...], label: Tensor
) -> tuple[Callable[[], Tensor], dict[str, Tensor]]:
    network = SentenceTransformer(model, device="cpu").train()
    objective = losses.SoftmaxLoss(network, network.get_embedding_dimension(), num_labels=len(LABELS))
    set_head(objective.classifier, start)
    features = [network.preprocess(texts) for texts in columns]

    def loss() -> Tensor:
        value: Tensor = objective([dict(each) for each in features], label)
        return value

    return loss, named(network[0].named_parameters())


def set_head(head: nn.Module, start: Mapping[str, Array]) -> None:
    head.load_state_dict({name: torch.from_numpy(start[name]) for name in ("weight", "bias")})


def named(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Of the layers, under the names that a checkpoint has; a pooler is not used."""
    actual = {name.split("model.")[-1]: weight for name, weight in weights}
    return {name: actual[name] for name in sorted(actual) if name.startswith("encoder.")}


def draw(loss: Callable[[], Tensor], weights: dict[str, Tensor], draws: int) -> dict[str, list[float]]:
    """One number for each draw: the loss, the gradient's norm, its products with random directions."""
    rng = np.random.default_rng(0)
    size = sum(weight.numel() for weight in weights.values())
    signs = torch.from_numpy(rng.choice(np.float32([-1, 1]), (DIRECTIONS, size)))
    actual: dict[str, list[float]] = {name: [] for name in measures()}
    for number in range(draws):
        torch.manual_seed(number)
        value = loss()
        parts = torch.autograd.grad(value, list(weights.values()))
        gradient = torch.cat([part.flatten() for part in parts])
        numbers = [float(value), float(gradient.norm()), *(signs @ gradient).tolist()]
        for name, each in zip(measures(), numbers, strict=True):
            actual[name].append(each)
    return actual


def measures() -> list[str]:
    return ["loss", "gradient norm", *(f"direction {number + 1}" for number in range(DIRECTIONS))]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
