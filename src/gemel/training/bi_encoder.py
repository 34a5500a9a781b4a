"""The bi-encoder (siamese network) in torch: the same vectors as inference from the same checkpoint, with a gradient.

The body is transformers' network; pooling, dense layers and normalization are ours. It is saved as a folder that
sentence-transformers reads, with the classification head of the objective where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.head import ACTIVATIONS, ClassificationHead, Dense, Flow, LayerNorm
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.checkpoint.write import write_checkpoint
from gemel.encoder.tokenizer import TextTokenizer, TokenIds, check_texts, cut
from gemel.errors import InputError
from gemel.training.network import encode_without_gradient, load_layer, open_body, to_numpy, with_max_length
from gemel.training.options import TrainOptions
from gemel.training.packing import pack, pool_packed
from gemel.types import Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class BiEncoderNetwork:
    """A `TrainableNetwork` with one vector per text: both texts of a pair go through the same weights."""

    gives_vectors = True
    token_vectors = False

    def __init__(self, checkpoint: Checkpoint, options: TrainOptions, device: torch.device) -> None:
        from torch import nn

        checkpoint = checkpoint.plain
        if checkpoint.query_side is not None:
            raise InputError(
                f"{checkpoint.name} has modules of their own for queries and for documents, which cannot be trained "
                "together. Give another model"
            )
        if any(isinstance(layer, Flow) for layer in checkpoint.dense):
            raise InputError(
                f"{checkpoint.name} ends in a flow, which cannot be trained. Give the model from before `postprocess`"
            )
        self.checkpoint = with_max_length(checkpoint, options.max_length)
        self.body = open_body(self.checkpoint, options)
        self.dense = nn.ModuleList([_module(layer) for layer in checkpoint.dense])
        self._activations = [_activation(layer) for layer in checkpoint.dense]
        self.module: nn.Module = nn.ModuleDict({"body": self.body.module, "dense": self.dense}).to(device)
        self.device = device
        self.max_length = self.checkpoint.max_length
        self.dim = _dim(self.checkpoint, self.body.width)
        opened = open_tokenizer(checkpoint)
        self.tokenizer = TextTokenizer(
            opened.tokenizer, special=checkpoint.kind == "transformer", cut=opened.truncation_side
        )
        self.vocabulary = self.tokenizer.vocabulary
        self.prompt = checkpoint.prompts.get(checkpoint.default_prompt_name or "", "")
        """The checkpoint's default prompt, which comes before each text in training too."""

    def items(self, columns: tuple[list[str], ...]) -> tuple[list[str], ...]:
        """The texts themselves."""
        return columns

    def tokens(
        self,
        items: Sequence[Any],
        *,
        noise: float = 0.0,
        rng: np.random.Generator | None = None,
        prompt: str | None = None,
    ) -> list[TokenIds]:
        """Token ids of each text with special tokens, truncated; `noise` removes some tokens, never all.

        `prompt` comes before each text; None: the checkpoint's default prompt.
        """
        before = self.prompt if prompt is None else prompt
        contents = self.tokenizer.content([before + text for text in check_texts(items)])
        if noise:
            assert rng is not None
            intact = len(self.tokenizer.content([before])[0])  # no token of the prompt is removed
            contents = [
                np.concatenate([content[:intact], _remove_tokens(content[intact:], noise, rng)])
                for content in contents
            ]
        limit = self.checkpoint.max_length
        return [cut(content, self.tokenizer.special, limit, "truncate").pieces[0] for content in contents]

    def forward(self, tokens: Sequence[TokenIds], *, prompt: str | None = None) -> Tensor:
        """(n, dim) vectors, as `Model.encode` gives them; `prompt` as it was given to `tokens`."""
        import torch

        texts = pack(tokens, self.device)
        hidden = self.body.hidden(texts)
        if skip := self._skipped(self.prompt if prompt is None else prompt):
            hidden, texts = hidden[texts.positions >= skip], pack([ids[skip:] for ids in tokens], self.device)
            # Weights by position count from the start of the text.
            texts = replace(texts, positions=texts.positions + skip)
        vectors = pool_packed(hidden, texts, self.checkpoint.pooling.modes)
        for module, activation in zip(self.dense, self._activations, strict=True):
            vectors = activation(module(vectors))
        # Objectives compute in float32 or better, also in mixed precision.
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        return torch.nn.functional.normalize(vectors) if self.checkpoint.normalize else vectors

    def _skipped(self, prompt: str) -> int:
        """Tokens at the start that pooling leaves out: those of the prompt, if the checkpoint excludes it."""
        if self.checkpoint.pooling.include_prompt or not prompt:
            return 0
        return self.tokenizer.prefix_length(prompt)

    def encoder(self) -> TrainingEncoder:
        return TrainingEncoder(self)

    def facts(self, texts: Sequence[str]) -> dict[str, float]:
        """None."""
        return {}

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """The model as `gemel.load` and sentence-transformers read it, with its classification head."""
        dense = [
            replace(
                layer,
                weight=to_numpy(linear.weight),
                bias=None if linear.bias is None else to_numpy(linear.bias),
            )
            for layer, linear in zip(self.checkpoint.dense, cast("list[nn.Linear]", self.dense), strict=True)
        ]
        write_checkpoint(
            self.checkpoint,
            folder,
            weights={name: to_numpy(tensor) for name, tensor in self.body.weights().items()},
            dense=dense,
            relation=saved_head(objective, about),
            overwrite=True,
        )


class TrainingEncoder:
    """An `Encoder` for evaluation: the network with its current weights."""

    def __init__(self, network: BiEncoderNetwork) -> None:
        self._network = network
        self.name = network.checkpoint.name

    @property
    def dim(self) -> int:
        return self._network.dim

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> Vectors:
        """(n, dim) float32 in the order of `texts`; each distinct text runs once."""
        distinct = list(dict.fromkeys(texts))
        tokens = self._network.tokens(distinct, prompt=prompt)
        vectors = encode_without_gradient(
            self._network, tokens, partial(self._network.forward, prompt=prompt)
        )
        rows = {text: row for row, text in enumerate(distinct)}
        return vectors[[rows[text] for text in texts]]

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """With the checkpoint's query prompt, if it brings one, as `Model.encode_query`."""
        return self.encode(texts, self._prompt("query"))

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """With the checkpoint's document prompt, if it brings one, as `Model.encode_document`."""
        return self.encode(texts, self._prompt("document"))

    def _prompt(self, side: Literal["query", "document"]) -> str | None:
        checkpoint = self._network.checkpoint
        name = checkpoint.prompt_name(side)
        return None if name is None else checkpoint.prompts[name]


def _remove_tokens(content: TokenIds, noise: float, rng: np.random.Generator) -> TokenIds:
    stays = rng.random(len(content)) >= noise
    if len(content) and not stays.any():
        stays[rng.integers(len(content))] = True
    return content[stays]


def _module(layer: Dense) -> nn.Linear | nn.LayerNorm:
    from torch import nn

    module: nn.Linear | nn.LayerNorm
    if isinstance(layer, LayerNorm):
        module = nn.LayerNorm(layer.inputs, eps=layer.epsilon)
    else:
        module = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias is not None)
    load_layer(module, layer.weight, layer.bias)
    return module


def _activation(layer: Dense) -> nn.Module:
    from torch import nn

    activation: nn.Module = getattr(nn, ACTIVATIONS.get(layer.activation, "Identity"))()
    return activation


def _dim(checkpoint: Checkpoint, width: int) -> int:
    if checkpoint.dense:
        return checkpoint.dense[-1].outputs
    return width * len(checkpoint.pooling.modes)


def saved_head(objective: nn.Module | None, about: Mapping[str, Any]) -> ClassificationHead | None:
    """The classification head to save with a model; None unless `about` has its labels and its concatenation."""
    if objective is None or "labels" not in about or "concat" not in about:
        return None
    weights = {name: to_numpy(tensor.contiguous()) for name, tensor in objective.state_dict().items()}
    return ClassificationHead(
        about["concat"], weights["weight"], weights.get("bias"), labels=tuple(about["labels"])
    )
