"""The cross-encoder in torch: the same scores as inference from the same checkpoint, with a gradient.

The body is transformers' network, the head is ours: that of the checkpoint, or a new one. It is saved as a folder that
transformers reads. Its objectives, which are not those of vectors, are at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from gemel.checkpoint.architecture import HeadLayout, architecture_of, max_positions, model_types
from gemel.checkpoint.cross import ONE_OUTPUT, has_token_types, read_cross, write_cross
from gemel.checkpoint.folder import Checkpoint, is_cross_encoder, read_checkpoint
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.encoder.cross import PairTokenizer, layout_of, read_head
from gemel.encoder.network import Norm
from gemel.encoder.tokenizer import TokenIds
from gemel.errors import InputError, ModelError
from gemel.options import check_choice
from gemel.training.network import (
    TransformerBody,
    encode_without_gradient,
    load_layer,
    to_numpy,
    with_max_length,
)
from gemel.training.objectives.base import Needs, Objective, with_settings
from gemel.training.options import TrainOptions
from gemel.training.packing import pack, pool_packed
from gemel.types import Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def read_start(folder: Path, *, name: str | None = None) -> Checkpoint:
    """The checkpoint to start a cross-encoder from: a sentence encoder, a plain encoder, or another cross-encoder.

    A pair may be twice as long as a text of the sentence encoder, as far as its network has positions for it.
    """
    other = is_cross_encoder(folder)
    checkpoint = read_cross(folder, name=name).encoder if other else read_checkpoint(folder, name=name)
    kind = checkpoint.config.get("model_type") if checkpoint.kind == "transformer" else "static"
    architecture = architecture_of({"model_type": kind})
    if architecture is None or architecture.head is None:
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which cannot be a cross-encoder. "
            f"Supported: {', '.join(model_types())}"
        )
    if other:
        return checkpoint
    lengths = [2 * checkpoint.max_length if checkpoint.max_length else None, max_positions(checkpoint.config)]
    most = min((length for length in lengths if length is not None), default=None)
    return replace(checkpoint, max_length=most)


class CrossNetwork:
    """A `TrainableNetwork` with one number per label for each pair of texts."""

    gives_vectors = False
    token_vectors = False

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: TrainOptions,
        device: torch.device,
        *,
        labels: Sequence[str] = (),
    ) -> None:
        """`labels` in the order of their codes in the data; empty: one score."""
        from torch import nn

        self.checkpoint = with_max_length(checkpoint, options.max_length)
        self.labels = tuple(labels) or ONE_OUTPUT
        self.layout = trained_layout(checkpoint)
        self.body = TransformerBody(self.checkpoint, options)
        self.head: CrossTorchHead = open_head(checkpoint, self.labels, options.dropout)
        self.module: nn.Module = nn.ModuleDict({"body": self.body.module, "head": self.head.module}).to(
            device
        )
        self.device = device
        self.dim = len(self.labels)
        self.typed = has_token_types(checkpoint)
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
        """Token ids of both texts of each pair with special tokens, truncated."""
        assert not noise, "no objective of a cross-encoder uses noise"
        left, right = [pair[0] for pair in items], [pair[1] for pair in items]
        return [pair.pieces[0] for pair in self._tokenizer.pairs(left, right, self.checkpoint.max_length)]

    def forward(self, tokens: Sequence[TokenIds]) -> Tensor:
        """(n, labels), as `CrossModel.logits` gives them."""
        texts = pack(tokens, self.device)
        if self.typed:
            texts = replace(texts, ids=texts.ids % self._words, types=texts.ids // self._words)
        return self.head(pool_packed(self.body.hidden(texts), texts, (self.layout.pooling,)))

    def encoder(self) -> CrossScorer:
        return CrossScorer(self)

    def facts(self, texts: Sequence[str]) -> dict[str, float]:
        """None."""
        return {}

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
            weights={name: to_numpy(tensor) for name, tensor in weights.items()},
            labels=self.labels,
            activation="sigmoid" if self.dim == 1 else "softmax",
            typed=self.typed,
            overwrite=True,
        )


def _word_table(checkpoint: Checkpoint) -> str:
    ends = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
    return next(name for name in checkpoint.weights if name.endswith(ends))


_SPREAD = 0.02  # standard deviation of new weights, as in BERT

_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob", "hidden_dropout_prob")


@dataclass(frozen=True, eq=False)
class CrossTorchHead:
    """The head: inner layer, activation, norm if there is one, dropout, last layer."""

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
        """By their names in a checkpoint of transformers."""
        names = {"inner": self.layout.inner, "norm": self.layout.norm, "last": self.layout.last}
        return {
            f"{names[part]}.{name}": tensor
            for part, layer in self.module.items()
            if part in names
            for name, tensor in layer.state_dict().items()
        }


def trained_layout(checkpoint: Checkpoint) -> HeadLayout:
    """The layout of the head of this architecture; those of decoders are read, but not trained."""
    layout = layout_of(checkpoint.config)
    if layout.inner is None or layout.pooled_after_inner:
        raise ModelError(
            f"cross-encoders of the architecture {checkpoint.config.get('model_type')!r} can be used, not trained. "
            "Start from an encoder such as BERT, RoBERTa or ModernBERT"
        )
    return layout


def open_head(checkpoint: Checkpoint, labels: Sequence[str], dropout: float | None) -> CrossTorchHead:
    """The head of a cross-encoder with the same labels, in the order of `labels`; else a new one."""
    from torch import nn

    layout, width = trained_layout(checkpoint), checkpoint.width
    assert width is not None, "every architecture with a head has a width"
    layers: dict[str, nn.Module] = {
        "inner": nn.Linear(width, width, bias=layout.inner_bias),
        "dropout": nn.Dropout(_dropout(checkpoint) if dropout is None else dropout),
        "last": nn.Linear(width, len(labels)),
    }
    if layout.norm is not None:
        layers["norm"] = nn.LayerNorm(width, eps=layout.epsilon, bias=layout.norm_bias)
    for name in ("inner", "last"):
        _initialize(cast("nn.Linear", layers[name]))
    _copy_pooler(checkpoint, layout, layers["inner"])
    if is_cross_encoder(checkpoint.folder):
        _copy_head(checkpoint, labels, layers)
    return CrossTorchHead(nn.ModuleDict(layers), layout)


def _dropout(checkpoint: Checkpoint) -> float:
    values = (checkpoint.config.get(name) for name in _DROPOUTS)
    return next((float(value) for value in values if isinstance(value, int | float)), 0.1)


def _initialize(linear: nn.Linear) -> None:
    from torch import nn

    nn.init.normal_(linear.weight, std=_SPREAD)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def _copy_pooler(checkpoint: Checkpoint, layout: HeadLayout, inner: nn.Module) -> None:
    """If the inner layer is the encoder's pooler (BERT, ALBERT), a plain encoder may have a trained one."""
    if layout.inner is None or not layout.inner.startswith(layout.encoder):
        return
    for name in (layout.inner.removeprefix(layout.encoder), layout.inner):
        if f"{name}.weight" in checkpoint.weights and f"{name}.bias" in checkpoint.weights:
            load_layer(inner, checkpoint.weights[f"{name}.weight"], checkpoint.weights[f"{name}.bias"])


def _copy_head(checkpoint: Checkpoint, labels: Sequence[str], layers: dict[str, nn.Module]) -> None:
    """All layers of a trained head; the last one only if it has the same labels."""
    former = read_cross(checkpoint.folder).labels
    head = read_head(checkpoint.config, checkpoint.weights, len(former))
    inner, last = head.layers[0], head.layers[-1]
    load_layer(layers["inner"], inner.weight, inner.bias)
    if "norm" in layers:
        norm = cast("Norm", head.layers[1])
        load_layer(layers["norm"], norm.weight, norm.bias)
    order = _order(former, labels)
    if order is not None:
        bias = np.zeros(len(former), np.float32) if last.bias is None else last.bias
        load_layer(layers["last"], last.weight[order], bias[order])


def _order(former: Sequence[str], labels: Sequence[str]) -> list[int] | None:
    """The output of a trained head for each label; None: its labels are different."""
    if len(former) == len(labels) == 1:
        return [0]
    names, wanted = [label.lower() for label in former], [label.lower() for label in labels]
    return [names.index(label) for label in wanted] if sorted(names) == sorted(wanted) else None


class CrossScorer:
    """The methods of `CrossModel` for evaluation: the network with its current weights."""

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
                f"a cross-encoder with the labels {', '.join(self.labels)} has no single score for a pair"
            )
        return to_numpy(self._logits(left, right)[:, 0].sigmoid())

    def relation(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n, labels) probabilities."""
        return to_numpy(self._logits(left, right).softmax(1))

    def _logits(self, left: Sequence[str], right: Sequence[str]) -> Tensor:
        """(n, labels); each distinct pair runs once."""
        import torch

        pairs = list(zip(left, right, strict=True))
        rows = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        logits = torch.from_numpy(encode_without_gradient(self._network, self._network.tokens(list(rows))))
        return logits[[rows[pair] for pair in pairs]]


# The objectives of cross-encoders. The vector of a pair is the output of the network: a number for each label.


@dataclass(frozen=True)
class CrossClassification(Objective):
    """Classification: predict the label of a pair, by cross-entropy over the labels."""

    name: ClassVar[str] = "classification"
    needs = Needs(texts=("left", "right"), label="class")

    def weights(self, dim: int, classes: int) -> None:
        """None of its own: the head belongs to the network."""
        if classes < 2:
            raise InputError(f"classification needs two or more different labels, the data has {classes}")

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(vectors[0], label)


@dataclass(frozen=True)
class CrossRegression(Objective):
    """Regression: make the score of a pair equal its gold score, by cross-entropy or by squared error."""

    loss: str = "cross-entropy"
    """cross-entropy takes the gold score as a probability and learns fast; squared-error predicts the mean."""

    name: ClassVar[str] = "regression"
    needs = Needs(texts=("left", "right"), label="score")

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, ("cross-entropy", "squared-error"))

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

        assert label is not None, "the loop passes the scores"
        if bool((label < 0).any()):
            raise InputError(
                "a cross-encoder gives scores from 0 to 1, the data has some below 0. Rescale them"
            )
        logits = vectors[0][:, 0]
        if self.loss == "squared-error":
            return mse_loss(logits.sigmoid(), label)
        return binary_cross_entropy_with_logits(logits, label)


_OBJECTIVES: dict[str, type[Objective]] = {
    "classification": CrossClassification,
    "regression": CrossRegression,
}


def cross_objective(name: str, settings: Mapping[str, Any]) -> Objective:
    """The objective of a cross-encoder by name; a setting that is None is left at its default."""
    if name not in _OBJECTIVES:
        raise InputError(
            f"a cross-encoder cannot be trained with objective {name!r}. Use one of: {', '.join(_OBJECTIVES)}"
        )
    return with_settings(_OBJECTIVES[name], settings, f"objective {name!r} of a cross-encoder")
