"""The classification head out of training, as the model keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.checkpoint.relation import RelationHead

if TYPE_CHECKING:
    from torch import nn


def kept_head(objective: nn.Module | None, about: Mapping[str, Any]) -> RelationHead | None:
    """The head to save with a model; None unless `about` names the labels and the parts that it joins."""
    if objective is None or "labels" not in about or "concat" not in about:
        return None
    weights = {name: tensor.detach().float().cpu().numpy() for name, tensor in objective.state_dict().items()}
    bias = weights.get("bias")
    return RelationHead(
        concat=about["concat"],
        weight=np.ascontiguousarray(weights["weight"]),
        bias=None if bias is None else np.ascontiguousarray(bias),
        labels=tuple(about["labels"]),
    )
