"""The heads of cross-encoders: the token vectors of a pair -> one number for each label, before any activation.

One small function an architecture, with the names that transformers gives to the weights of its
...ForSequenceClassification classes. Rows cannot see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gemel.checkpoint.head import Dense
from gemel.encoder.architectures.checkpoint_weights import CheckpointWeights
from gemel.encoder.architectures.settings import positive
from gemel.encoder.architectures.table import Config
from gemel.encoder.head import finish
from gemel.encoder.network import Array, Linear, Norm
from gemel.encoder.pooling import POOLINGS
from gemel.errors import ModelError
from gemel.types import Vectors

_CLASSIFIER, _PROJECTION = "classifier.weight", "classifier.out_proj.weight"
_MODERN_ACTIVATIONS = ("gelu", "relu", "tanh")


@dataclass(frozen=True, eq=False)
class CrossHead:
    """What follows the network: one vector of the token vectors, then layer after layer."""

    pooling: str
    layers: tuple[Dense | Norm, ...]

    def pool(self, hidden: Vectors) -> Vectors:
        """(b, t, d) -> (b, d)"""
        return POOLINGS[self.pooling](hidden)

    def logits(self, pooled: Vectors) -> Vectors:
        """(n, d) -> (n, labels); a row has the same bits whatever the others are."""
        for layer in self.layers:
            pooled = (
                finish(pooled, [layer], unit=False, dim=None)
                if isinstance(layer, Dense)
                else _norm(layer, pooled)
            )
        return pooled


Reader: TypeAlias = Callable[[Config, Mapping[str, Array], int], CrossHead]


def read_head(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    """The head of a checkpoint with so many labels."""
    return HEADS[config["model_type"]](config, weights, labels)


def _bert(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    """The pooler belongs to the encoder: its name has the encoder's prefix, that of the classifier has not."""
    d = positive(config, "hidden_size")
    name = "pooler" if config["model_type"] == "albert" else "pooler.dense"
    pooler = CheckpointWeights(weights).linear(name, d, d)
    classifier = CheckpointWeights(weights, word=_CLASSIFIER).linear("classifier", labels, d)
    return CrossHead("cls", (_dense(pooler, "tanh"), _dense(classifier)))


def _roberta(
    config: Config, weights: Mapping[str, Array], labels: int, activation: str = "tanh"
) -> CrossHead:
    d, take = positive(config, "hidden_size"), CheckpointWeights(weights, word=_PROJECTION)
    inner, out = take.linear("classifier.dense", d, d), take.linear("classifier.out_proj", labels, d)
    return CrossHead("cls", (_dense(inner, activation), _dense(out)))


def _electra(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    return _roberta(config, weights, labels, "gelu")


def _distilbert(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    d, take = positive(config, "dim"), CheckpointWeights(weights, word=_CLASSIFIER)
    inner, out = take.linear("pre_classifier", d, d), take.linear("classifier", labels, d)
    return CrossHead("cls", (_dense(inner, "relu"), _dense(out)))


def _modernbert(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    d, take = positive(config, "hidden_size"), CheckpointWeights(weights, word=_CLASSIFIER)
    pooling, activation = config.get("classifier_pooling", "cls"), config.get("classifier_activation", "gelu")
    if pooling not in ("cls", "mean") or activation not in _MODERN_ACTIVATIONS:
        raise ModelError(
            f"config.json asks for classifier_pooling {pooling!r} and classifier_activation {activation!r}. "
            f"Known: cls, mean; {', '.join(_MODERN_ACTIVATIONS)}"
        )
    inner = take.linear("head.dense", d, d, bias=bool(config.get("classifier_bias", False)))
    norm = take.norm("head.norm", d, config.get("norm_eps", 1e-5), bias=bool(config.get("norm_bias", False)))
    return CrossHead(pooling, (_dense(inner, activation), norm, _dense(take.linear("classifier", labels, d))))


HEADS: dict[str, Reader] = {
    "albert": _bert,
    "bert": _bert,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "electra": _electra,
    "modernbert": _modernbert,
    "mpnet": _roberta,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
}
"""HF `model_type` to what reads its head."""


def _dense(linear: Linear, activation: str = "identity") -> Dense:
    return Dense(linear.weight, linear.bias, activation)


def _norm(norm: Norm, vectors: Vectors) -> Vectors:
    out = np.empty_like(vectors)
    for row, vector in zip(out, vectors, strict=True):
        centred = vector - vector.mean()
        row[:] = centred / np.sqrt(np.square(centred).mean() + np.float32(norm.epsilon)) * norm.weight
    return out if norm.bias is None else out + norm.bias
