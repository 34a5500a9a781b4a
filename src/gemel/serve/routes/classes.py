"""How two texts relate: by the cross-encoder's classes where it has them, else by the model's relation head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.serve.port import Ask, Services
from gemel.serve.routes.scoring import logits_of
from gemel.serve.routes.texts import embed_many
from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Classes:
    """Of each pair."""

    labels: tuple[str, ...]
    probabilities: Vectors
    """(n, labels)"""
    raw: Vectors
    """(n, labels) what the probabilities are made of; their logarithms for a relation head."""


@dataclass(frozen=True)
class Classifier:
    """Who tells the classes apart."""

    labels: tuple[str, ...]
    cross: bool


def find_classes(services: Services) -> Classifier | None:
    """None: nothing that is loaded tells classes apart."""
    if services.cross is not None and len(services.cross.labels) > 1:
        return Classifier(services.cross.labels, True)
    return None if services.model.labels is None else Classifier(services.model.labels, False)


async def classes(services: Services, left: Sequence[str], right: Sequence[str], ask: Ask) -> Classes:
    """Of pairs left[i], right[i]. Only where `find_classes` found something."""
    found = find_classes(services)
    assert found is not None, "ask find_classes first"
    cross = services.cross
    if found.cross and cross is not None:
        raw = await logits_of(services, cross, left, right, ask)
        if cross.checkpoint.activation == "sigmoid":
            return Classes(found.labels, np.asarray(1 / (1 + np.exp(-raw.clip(-80, 80))), np.float32), raw)
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        return Classes(found.labels, powers / powers.sum(axis=1, keepdims=True), raw)
    # The head knows the vectors of default options only.
    vectors = (await embed_many(services, [*left, *right], Ask(client=ask.client, cut=ask.cut))).vectors
    chances = services.model.relation_of(vectors[: len(left)], vectors[len(left) :])
    return Classes(found.labels, chances, np.log(np.maximum(chances, np.float32(1e-30))))
