"""The cross-encoder in torch: what inference runs from the same checkpoint, with a gradient.

The network is transformers' own, the head is ours; what is saved is a folder of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.checkpoint.cross import CLASSES, read_cross, tells_texts_apart, write_cross
from gemel.checkpoint.folder import Checkpoint, is_cross_encoder, places, read_checkpoint
from gemel.checkpoint.tokenizer_file import load_tokenizer
from gemel.encoder.cross_heads import layout_of
from gemel.errors import InputError, ModelError
from gemel.text.pair_tokens import PairTokenizer
from gemel.text.tokenizer import TokenIds
from gemel.training.body import TransformerBody
from gemel.training.cross_head import CrossTorchHead, open_head
from gemel.training.cross_scorer import CrossScorer
from gemel.training.options import TrainOptions
from gemel.training.packed import pack
from gemel.training.pooling import pool_packed
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
