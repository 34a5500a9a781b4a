"""The cross-encoder in torch: what inference runs from the same checkpoint, with a gradient.

The network is transformers' own, the head is ours; what is saved is a folder of transformers.

The head of a cross-encoder in torch: that of the checkpoint, or a new one.

A cross-encoder at one moment of its training, for evaluation: scores and probabilities, no dropout, no graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gemel.checkpoint.cross import CLASSES, read_cross, tells_texts_apart, write_cross
from gemel.checkpoint.folder import Checkpoint, is_cross_encoder, places, read_checkpoint
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.encoder.cross_head import HeadLayout, layout_of, read_head
from gemel.encoder.network import Array, Norm
from gemel.encoder.pair_tokenizer import PairTokenizer
from gemel.encoder.tokenizer import TokenIds
from gemel.errors import InputError, ModelError
from gemel.training.bi_encoder import run_in_calls
from gemel.training.network import TransformerBody
from gemel.training.options import TrainOptions
from gemel.training.packing import pack, pool_packed
from gemel.types import Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ONE_OUTPUT = ("score",)
"""The label of a cross-encoder that gives one number."""


def read_start(folder: Path, *, name: str | None = None) -> Checkpoint:
    """What a cross-encoder can start from: a sentence encoder, a plain encoder, or another cross-encoder.

    A pair may be twice as long as the text that a sentence encoder reads, if its network has places for it.
    """
    other = is_cross_encoder(folder)
    checkpoint = read_cross(folder, name=name).encoder if other else read_checkpoint(folder, name=name)
    kind = checkpoint.config.get("model_type") if checkpoint.kind == "transformer" else "static"
    if kind not in CLASSES:
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, of which no cross-encoder can be made. "
            f"Known: {', '.join(CLASSES)}"
        )
    if other:
        return checkpoint
    lengths = [2 * checkpoint.max_length if checkpoint.max_length else None, places(checkpoint.config)]
    most = min((length for length in lengths if length is not None), default=None)
    return replace(checkpoint, max_length=most)


class CrossNetwork:
    """Fits `Network`: a pair of texts goes in, a number for each label comes out."""

    gives_vectors = False

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: TrainOptions,
        device: torch.device,
        *,
        labels: Sequence[str] = (),
    ) -> None:
        """`labels` in the order of their numbers in the data; none: one score."""
        from torch import nn

        self.checkpoint = _with_length(checkpoint, options.max_length)
        self.labels = tuple(labels) or ONE_OUTPUT
        self.layout = layout_of(checkpoint.config)
        self.body = TransformerBody(self.checkpoint, options)
        self.head: CrossTorchHead = open_head(checkpoint, self.labels, options.dropout)
        self.module: nn.Module = nn.ModuleDict({"body": self.body.module, "head": self.head.module}).to(
            device
        )
        self.device = device
        self.dim = len(self.labels)
        self.typed = tells_texts_apart(checkpoint)
        words = len(checkpoint.weights[_word_table(checkpoint)])
        self._words = words
        self.vocabulary = 2 * words if self.typed else words
        self._tokenizer = PairTokenizer(load_tokenizer(checkpoint), vocabulary=words, typed=self.typed)

    def items(self, columns: tuple[list[str], ...]) -> tuple[list[Any], ...]:
        """One column of pairs."""
        left, right = columns
        return (list(zip(left, right, strict=True)),)

    def tokens(
        self, items: Sequence[Any], *, noise: float = 0.0, rng: np.random.Generator | None = None
    ) -> list[TokenIds]:
        """Both texts of each pair with their marks, cut to the model's length."""
        assert not noise, "no objective of a cross-encoder asks for noise"
        left, right = [pair[0] for pair in items], [pair[1] for pair in items]
        return [pair.ids for pair in self._tokenizer.pairs(left, right, self.checkpoint.max_length)]

    def forward(self, tokens: Sequence[TokenIds]) -> Tensor:
        """(n, labels), as `CrossModel.logits` gives them."""
        texts = pack(tokens, self.device)
        if self.typed:
            texts = replace(texts, ids=texts.ids % self._words, types=texts.ids // self._words)
        return self.head(pool_packed(self.body.hidden(texts), texts, (self.layout.pooling,)))

    def encoder(self) -> CrossScorer:
        return CrossScorer(self)

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """The model as `gemel.load_cross`, transformers and sentence-transformers read it."""
        body = {
            name: tensor for name, tensor in self.body.weights().items() if not name.startswith("pooler.")
        }
        weights = {
            f"{self.layout.encoder}{name}": tensor for name, tensor in body.items()
        } | self.head.weights()
        write_cross(
            folder,
            source=self.checkpoint,
            weights={name: _array(tensor) for name, tensor in weights.items()},
            labels=self.labels,
            activation="sigmoid" if self.dim == 1 else "softmax",
            typed=self.typed,
            overwrite=True,
        )


def _with_length(checkpoint: Checkpoint, max_length: int | None) -> Checkpoint:
    most = places(checkpoint.config)
    if max_length is None:
        return checkpoint
    if most is not None and max_length > most:
        raise InputError(
            f"max_length must be at most {most}, the places of {checkpoint.name}, got {max_length}"
        )
    return replace(checkpoint, max_length=max_length)


def _word_table(checkpoint: Checkpoint) -> str:
    ends = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
    return next(name for name in checkpoint.weights if name.endswith(ends))


def _array(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.detach().float().cpu().numpy()
    return array


_SPREAD = 0.02  # of new weights, as BERT began

_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob", "hidden_dropout_prob")


@dataclass(frozen=True, eq=False)
class CrossTorchHead:
    """inner, activation, norm where there is one, dropout, last."""

    module: nn.ModuleDict
    layout: HeadLayout

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


def _take_pooler(checkpoint: Checkpoint, layout: HeadLayout, inner: nn.Module) -> None:
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


class CrossScorer:
    """Answers as `CrossModel` does."""

    def __init__(self, network: CrossNetwork) -> None:
        self._network = network
        self.name = network.checkpoint.name
        self.labels = network.labels

    @property
    def dim(self) -> int:
        return self._network.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        raise InputError(
            f"{self.name} is trained as a cross-encoder, which scores pairs and makes no vectors"
        )

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n,) from 0 to 1, for a network of one output."""
        if self.dim > 1:
            raise InputError(
                f"a cross-encoder of the labels {', '.join(self.labels)} gives no one score to a pair"
            )
        return _as_array(self._logits(left, right)[:, 0].sigmoid())

    def relation(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n, labels) probabilities."""
        return _as_array(self._logits(left, right).softmax(1))

    def _logits(self, left: Sequence[str], right: Sequence[str]) -> Tensor:
        """(n, labels); each distinct pair runs once."""
        import torch

        pairs = list(zip(left, right, strict=True))
        where = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        logits = torch.from_numpy(run_in_calls(self._network, self._network.tokens(list(where))))
        return logits[[where[pair] for pair in pairs]]


def _as_array(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.numpy()
    return array
