"""From hidden states to weights of words: the head of a masked language model, and what SPLADE does with its numbers.

The product with the word table is by far the largest one of such a model. The compiled kernel makes it where there is
one (native/head.h), NumPy elsewhere: for the tokens of one text at a time, so that a text has the same bits in every
batch. Both reduce the numbers of a block while they are in the cache, so that memory grows neither with the text nor
with the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import ARCHITECTURES, Config, architecture_of
from gemel.checkpoint.sparse import AutoEncoder, Splade, TokenLayer
from gemel.encoder.engines import native
from gemel.encoder.network import Activation, Array, Linear, Norm
from gemel.encoder.tokenizer import TokenIds
from gemel.encoder.weights import CheckpointWeights, activation_of, positive
from gemel.errors import ModelError
from gemel.options import Precision
from gemel.types import Vectors

_TOKENS, _WORDS = 512, 2048  # of a block: at most 4 MB


@dataclass(frozen=True, eq=False)
class MaskedHead:
    """One number per word and token: a layer, an activation, a norm, and the product with the word table."""

    weight: Array
    bias: Array | None
    activation: Activation
    norm: Norm
    table: Array
    """(vocabulary, width)"""
    table_bias: Array | None

    @property
    def vocabulary(self) -> int:
        return len(self.table)

    def transform(self, hidden: Vectors) -> Vectors:
        """(t, width) -> (t, width): what the word table is multiplied with."""
        inner = hidden @ self.weight.T
        if self.bias is not None:
            inner += self.bias
        inner = _activate(self.activation, inner)
        inner -= inner.mean(axis=1, keepdims=True)
        inner /= np.sqrt(np.square(inner).mean(axis=1, keepdims=True) + np.float32(self.norm.epsilon))
        inner *= self.norm.weight
        return inner if self.norm.bias is None else inner + self.norm.bias


def read_masked_head(config: Config, weights: Mapping[str, Array]) -> MaskedHead:
    """The head of a ...ForMaskedLM, whose word table is its own where it is stored, or else that of the embeddings."""
    architecture = architecture_of(config)
    if architecture is None or architecture.masked is None:
        known = ", ".join(name for name in ARCHITECTURES if ARCHITECTURES[name].masked)
        raise ModelError(
            f"the head of a masked language model of the architecture {config.get('model_type')!r} is not read. "
            f"Known: {known}"
        )
    layout = architecture.masked(config)
    width = positive(config, architecture.width_key)
    reader = CheckpointWeights(weights, word=f"{layout.dense}.weight")
    dense = reader.linear(layout.dense, width, width, bias=layout.dense_bias)
    embeddings = CheckpointWeights(weights, architecture.word_table).word(width)
    if layout.decoder not in reader and config.get("tie_word_embeddings") is False:
        raise ModelError(
            f"the weight {layout.decoder!r} is missing from the checkpoint, and config.json says that it is not the "
            "word table of the embeddings ('tie_word_embeddings'). The file is incomplete"
        )
    table = reader.array(layout.decoder, *embeddings.shape) if layout.decoder in reader else embeddings
    return MaskedHead(
        weight=np.ascontiguousarray(dense.read()),
        bias=dense.bias,
        activation=activation_of({"hidden_act": layout.activation}),
        norm=reader.norm(layout.norm, width, layout.epsilon, bias=layout.norm_bias),
        table=np.ascontiguousarray(table),
        table_bias=None if layout.bias is None else reader.array(layout.bias, len(table)),
    )


class WordWeights:
    """The weights of words from the hidden states of texts. Safe to call from several threads."""

    def __init__(self, head: MaskedHead, step: Splade, precision: Precision = "float32") -> None:
        """`precision`: of the product with the word table, in the compiled kernel."""
        self._head, self._step = head, step
        self._native = None
        if native.levels():
            dense, table = Linear(head.weight, head.bias), Linear(head.table, head.table_bias)
            sums = step.pooling == "sum"
            self._native = native.NativeWordHead(
                *(dense, head.norm, table, head.activation),
                logarithms=step.logarithms,
                sums=sums,
                precision=precision,
            )

    def __call__(self, hidden: Vectors, threads: int = 1) -> Vectors:
        """(b, t, width) -> (b, vocabulary), mostly zeros; a text has the same bits in any batch.

        The compiled kernel uses up to `threads` cores.
        """
        if self._native is None:
            return np.stack([word_weights(self._head, self._step, states) for states in hidden])
        texts, tokens, width = hidden.shape
        return self._native.weights(hidden.reshape(texts * tokens, width), [tokens] * texts, threads)


def word_weights(head: MaskedHead, step: Splade, hidden: Vectors) -> Vectors:
    """(t, width) hidden states of one text -> (vocabulary,) the weight of each word, in NumPy."""
    pooled = np.zeros(head.vocabulary, dtype=np.float32)
    block = np.empty(min(len(hidden), _TOKENS) * _WORDS, dtype=np.float32)
    for start in range(0, len(hidden), _TOKENS):
        tokens = head.transform(hidden[start : start + _TOKENS])
        for first in range(0, head.vocabulary, _WORDS):
            words = slice(first, first + _WORDS)
            table, out = head.table[words], pooled[words]
            numbers = block[: len(tokens) * len(table)].reshape(len(tokens), len(table))
            np.matmul(tokens, table.T, out=numbers)
            bias = np.float32(0) if head.table_bias is None else head.table_bias[words]
            if step.pooling == "max":  # adding the bias and the logarithm keep the order, so they may wait
                np.maximum(out, numbers.max(axis=0) + bias, out=out)
            else:
                numbers += bias
                out += _logarithms(np.maximum(numbers, np.float32(0), out=numbers), step.logarithms).sum(
                    axis=0
                )
    return _logarithms(pooled, step.logarithms) if step.pooling == "max" else pooled


def strongest_dimensions(step: AutoEncoder, vector: Vectors) -> Vectors:
    """(inputs,) -> (outputs,) what the layer gives above zero; its rows are multiplied one by one, without BLAS."""
    if step.normalize:
        vector = vector - vector.mean()
        vector = vector / (vector.std(ddof=1) + np.float32(1e-5))
    out = np.einsum("oi,i->o", step.weight, vector - step.before)
    return np.asarray(np.maximum(out + step.bias, np.float32(0)), dtype=np.float32)


def token_weights(
    step: TokenLayer, ids: TokenIds, hidden: Vectors, left_out: TokenIds, columns: int
) -> Vectors:
    """(t, width) hidden states of one text -> (columns,) the largest weight of each of its tokens, never below zero.

    `left_out`: tokens without a weight, because they are no words.
    """
    weights = np.zeros(columns, dtype=np.float32)
    np.maximum.at(weights, ids, hidden @ step.weight + step.bias)
    weights[left_out] = 0
    return weights


def _logarithms(numbers: Vectors, times: int) -> Vectors:
    for _ in range(times):
        numbers = np.log1p(numbers)
    return numbers


def _activate(name: Activation, x: Vectors) -> Vectors:
    if name == "relu":
        return np.maximum(x, np.float32(0))
    if name == "silu":
        return np.asarray(x / (1 + np.exp(-np.maximum(x, np.float32(-80)))), dtype=np.float32)
    if name == "gelu-tanh":
        inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
        return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)), dtype=np.float32)
    return (0.5 * x * (1 + _erf(x.astype(np.float64) * 0.5**0.5))).astype(np.float32)


_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The error function, to 1.5e-7 (Abramowitz and Stegun 7.1.26): NumPy has none, and that of `math` takes floats."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = np.zeros_like(x)
    for factor in _ERF:
        series = (series + factor) * t
    return np.copysign(1 - series * np.exp(-x * x), x)
