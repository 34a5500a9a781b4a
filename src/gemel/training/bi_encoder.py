"""The bi-encoder in torch: what inference runs from the same checkpoint, with a gradient.

The network is transformers' own, pooling and last steps are ours; what is saved is a sentence-transformers folder.

The classification head out of training, as the model keeps it.

Many items through a network that is being trained: no dropout, no graph, like lengths together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from gemel.checkpoint.folder import Checkpoint, places
from gemel.checkpoint.head import ClassificationHead, Dense, Flow
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.checkpoint.write import write_checkpoint
from gemel.encoder.tokenizer import TextTokenizer, TokenIds, check_texts, cut
from gemel.errors import InputError
from gemel.training.network import TokenNetwork, TrainableNetwork, open_body
from gemel.training.options import TrainOptions
from gemel.training.packing import pack, pool_packed
from gemel.types import Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class BiEncoderNetwork:
    """Fits `Network`: both texts of a pair go through the same weights."""

    gives_vectors = True

    def __init__(self, checkpoint: Checkpoint, options: TrainOptions, device: torch.device) -> None:
        from torch import nn

        if any(isinstance(layer, Flow) for layer in checkpoint.dense):
            raise InputError(
                f"{checkpoint.name} ends in a flow. Train the model as it was before `postprocess`"
            )
        self.checkpoint = _shorter(checkpoint, options.max_length)
        self.body: TokenNetwork = open_body(self.checkpoint, options)
        self.dense = nn.ModuleList([_linear(layer) for layer in checkpoint.dense])
        self.module: nn.Module = nn.ModuleDict({"body": self.body.module, "dense": self.dense}).to(device)
        self.device = device
        self.max_length = self.checkpoint.max_length
        self.dim = _dim(self.checkpoint, self.body.width)
        opened = open_tokenizer(checkpoint)
        self.tokenizer = TextTokenizer(
            opened.tokenizer, marked=checkpoint.kind == "transformer", cut=opened.truncation_side
        )
        self.vocabulary = self.tokenizer.vocabulary
        self.prompt = checkpoint.prompts.get(checkpoint.default_prompt_name or "", "")
        """Stands before each text in training too, where the checkpoint puts one before all texts."""

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
        """Marks and tokens of each text, cut to the model's length; `noise` takes out some of them, never all.

        `prompt` stands before each text; None: the checkpoint's own.
        """
        before = self.prompt if prompt is None else prompt
        contents = self.tokenizer.content([before + text for text in check_texts(items)])
        if noise:
            assert rng is not None
            whole = len(self.tokenizer.content([before])[0])  # a prompt loses nothing
            contents = [
                np.concatenate([content[:whole], _thinned(content[whole:], noise, rng)])
                for content in contents
            ]
        limit = self.checkpoint.max_length
        return [cut(content, self.tokenizer.marks, limit, "truncate").pieces[0] for content in contents]

    def forward(self, tokens: Sequence[TokenIds], *, prompt: str | None = None) -> Tensor:
        """(n, dim) vectors, as `Model.encode` gives them; `prompt` is what `tokens` was told."""
        import torch

        texts = pack(tokens, self.device)
        hidden = self.body.hidden(texts)
        if skip := self._uncounted(self.prompt if prompt is None else prompt):
            hidden, texts = hidden[texts.positions >= skip], pack([ids[skip:] for ids in tokens], self.device)
            texts = replace(texts, positions=texts.positions + skip)  # weights count from the start of the text
        vectors = pool_packed(hidden, texts, self.checkpoint.pooling.modes)
        for linear, layer in zip(self.dense, self.checkpoint.dense, strict=True):
            vectors = _activations()[layer.activation](linear(vectors))
        # An objective computes in float32 at the least, whatever the network did.
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        return torch.nn.functional.normalize(vectors) if self.checkpoint.normalize else vectors

    def _uncounted(self, prompt: str) -> int:
        """Tokens at the start that pooling leaves out: those of the prompt, where the checkpoint says so."""
        if self.checkpoint.pooling.include_prompt or not prompt:
            return 0
        return self.tokenizer.lead(prompt)

    def encoder(self) -> TrainingEncoder:
        return TrainingEncoder(self)

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """The model as `gemel.load` and sentence-transformers read it, the kept head beside it."""
        dense = [
            replace(
                layer, weight=_array(linear.weight), bias=None if linear.bias is None else _array(linear.bias)
            )
            for layer, linear in zip(self.checkpoint.dense, _linears(self.dense), strict=True)
        ]
        write_checkpoint(
            self.checkpoint,
            folder,
            weights={name: _array(tensor) for name, tensor in self.body.weights().items()},
            dense=dense,
            relation=kept_head(objective, about),
            overwrite=True,
        )


class TrainingEncoder:
    """Fits `Encoder`: the network as it is at this moment of training."""

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
        vectors = run_in_calls(self._network, tokens, partial(self._network.forward, prompt=prompt))
        where = {text: row for row, text in enumerate(distinct)}
        return vectors[[where[text] for text in texts]]

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


def _shorter(checkpoint: Checkpoint, max_length: int | None) -> Checkpoint:
    if max_length is None or checkpoint.kind == "static":
        return checkpoint
    positions = places(checkpoint.config)
    if positions is not None and max_length > positions:
        raise InputError(
            f"max_length must be at most {positions}, the places of {checkpoint.name}, got {max_length}"
        )
    return replace(checkpoint, max_length=max_length)


def _thinned(content: TokenIds, noise: float, rng: np.random.Generator) -> TokenIds:
    kept = rng.random(len(content)) >= noise
    if len(content) and not kept.any():
        kept[rng.integers(len(content))] = True
    return content[kept]


def _linear(layer: Dense) -> nn.Linear:
    import torch
    from torch import nn

    outputs, inputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, bias=layer.bias is not None)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.array(layer.weight)))
        if layer.bias is not None:
            linear.bias.copy_(torch.from_numpy(np.array(layer.bias)))
    return linear


def _linears(layers: nn.ModuleList) -> list[nn.Linear]:
    return [cast("nn.Linear", layer) for layer in layers]


def _activations() -> dict[str, Any]:
    import torch

    return {
        "identity": lambda x: x,
        "tanh": torch.tanh,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "gelu": torch.nn.functional.gelu,
    }


def _dim(checkpoint: Checkpoint, width: int) -> int:
    if checkpoint.dense:
        return int(checkpoint.dense[-1].weight.shape[0])
    return width * len(checkpoint.pooling.modes)


def _array(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.detach().float().cpu().numpy()
    return array


def kept_head(objective: nn.Module | None, about: Mapping[str, Any]) -> ClassificationHead | None:
    """The head to save with a model; None unless `about` names the labels and the parts that it joins."""
    if objective is None or "labels" not in about or "concat" not in about:
        return None
    weights = {name: tensor.detach().float().cpu().numpy() for name, tensor in objective.state_dict().items()}
    bias = weights.get("bias")
    return ClassificationHead(
        concat=about["concat"],
        weight=np.ascontiguousarray(weights["weight"]),
        bias=None if bias is None else np.ascontiguousarray(bias),
        labels=tuple(about["labels"]),
    )


_TOKENS = 4096  # to a call, when nothing has to be kept for a gradient


def run_in_calls(
    network: TrainableNetwork, tokens: Sequence[Any], forward: Callable[[Sequence[Any]], Tensor] | None = None
) -> Vectors:
    """(n, dim) float32, a row for each of `tokens`; the network is left in the mode that it was in.

    `forward` is called instead of the network's own, where that has to be told more.
    """
    import torch

    rows_out = np.zeros((len(tokens), network.dim), dtype=np.float32)
    was_training = network.module.training
    network.module.eval()
    try:
        with torch.no_grad():
            for rows in _calls([len(ids) for ids in tokens]):
                found = (forward or network.forward)([tokens[row] for row in rows])
                rows_out[rows] = found.float().cpu().numpy()
    finally:
        network.module.train(was_training)
    return rows_out


def _calls(lengths: Sequence[int]) -> list[list[int]]:
    """Rows for each call, longest first, about `_TOKENS` tokens to a call."""
    calls: list[list[int]] = []
    room = 0
    for row in np.argsort([-length for length in lengths], kind="stable").tolist():
        if room < lengths[row] or not calls:
            calls.append([])
            room = _TOKENS
        calls[-1].append(row)
        room -= lengths[row]
    return calls
