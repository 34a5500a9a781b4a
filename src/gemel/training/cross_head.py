"""The head of a cross-encoder in torch: that of the checkpoint, or a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from gemel.checkpoint.cross import read_cross
from gemel.checkpoint.folder import Checkpoint, is_cross_encoder
from gemel.encoder.cross_heads import Layout, layout_of, read_head
from gemel.encoder.network import Array, Norm

if TYPE_CHECKING:
    from torch import Tensor, nn

_SPREAD = 0.02  # of new weights, as BERT began
_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob", "hidden_dropout_prob")


@dataclass(frozen=True, eq=False)
class CrossTorchHead:
    """inner, activation, norm where there is one, dropout, last."""

    module: nn.ModuleDict
    layout: Layout

    def __call__(self, pooled: Tensor) -> Tensor:
        """(n, d) -> (n, labels)"""
        from torch import relu, tanh
        from torch.nn.functional import gelu

        function = {"tanh": tanh, "relu": relu, "gelu": gelu}[self.layout.activation]
        inner = function(self.module["inner"](pooled))
        if "norm" in self.module:
            inner = self.module["norm"](inner)
        logits: Tensor = self.module["last"](self.module["dropout"](inner))
        return logits

    def weights(self) -> dict[str, Tensor]:
        """By the names that a checkpoint of transformers has."""
        names = {"inner": self.layout.inner, "norm": self.layout.norm, "last": self.layout.last}
        return {
            f"{names[part]}.{name}": tensor
            for part, layer in self.module.items()
            if part in names
            for name, tensor in layer.state_dict().items()
        }


def open_head(checkpoint: Checkpoint, labels: Sequence[str], dropout: float | None) -> CrossTorchHead:
    """The head of a cross-encoder of the same labels, put in the order of `labels`; else a new one."""
    from torch import nn

    layout, width = layout_of(checkpoint.config), checkpoint.width
    assert width is not None, "every architecture that has a head says its width"
    layers: dict[str, nn.Module] = {
        "inner": nn.Linear(width, width, bias=layout.inner_bias),
        "dropout": nn.Dropout(_dropout(checkpoint) if dropout is None else dropout),
        "last": nn.Linear(width, len(labels)),
    }
    if layout.norm is not None:
        layers["norm"] = nn.LayerNorm(width, eps=layout.epsilon, bias=layout.norm_bias)
    for name in ("inner", "last"):
        _begin(cast("nn.Linear", layers[name]))
    _take_pooler(checkpoint, layout, layers["inner"])
    if is_cross_encoder(checkpoint.folder):
        _take_head(checkpoint, labels, layers)
    return CrossTorchHead(nn.ModuleDict(layers), layout)


def _dropout(checkpoint: Checkpoint) -> float:
    found = (checkpoint.config.get(name) for name in _DROPOUTS)
    return next((float(value) for value in found if isinstance(value, int | float)), 0.1)


def _begin(linear: nn.Linear) -> None:
    from torch import nn

    nn.init.normal_(linear.weight, std=_SPREAD)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def _take_pooler(checkpoint: Checkpoint, layout: Layout, inner: nn.Module) -> None:
    """Where the inner layer is the encoder's pooler (BERT, ALBERT), a plain encoder may bring a trained one."""
    if not layout.inner.startswith(layout.encoder):
        return
    own = layout.inner.removeprefix(layout.encoder)
    for name in (own, layout.inner):
        if f"{name}.weight" in checkpoint.weights and f"{name}.bias" in checkpoint.weights:
            _copy(inner, checkpoint.weights[f"{name}.weight"], checkpoint.weights[f"{name}.bias"])


def _take_head(checkpoint: Checkpoint, labels: Sequence[str], layers: dict[str, nn.Module]) -> None:
    """All layers of a trained head; the last one only if it tells the same labels apart."""
    known = read_cross(checkpoint.folder).labels
    head = read_head(checkpoint.config, checkpoint.weights, len(known))
    inner, last = head.layers[0], head.layers[-1]
    _copy(layers["inner"], inner.weight, inner.bias)
    if "norm" in layers:
        norm = cast("Norm", head.layers[1])
        _copy(layers["norm"], norm.weight, norm.bias)
    order = _order(known, labels)
    if order is not None:
        bias = np.zeros(len(known), np.float32) if last.bias is None else last.bias
        _copy(layers["last"], last.weight[order], bias[order])


def _order(known: Sequence[str], labels: Sequence[str]) -> list[int] | None:
    """Where each label is among the outputs of a trained head; None: they are other labels."""
    if len(known) == len(labels) == 1:
        return [0]
    names, wanted = [label.lower() for label in known], [label.lower() for label in labels]
    return [names.index(label) for label in wanted] if sorted(names) == sorted(wanted) else None


def _copy(layer: nn.Module, weight: Array, bias: Array | None) -> None:
    import torch

    parts = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in parts.items()})
