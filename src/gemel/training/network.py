"""The networks that the loop trains: the protocol that bi- and cross-encoders share, and the body in torch.

A body turns tokens into token vectors: transformers' network, or the table of a static model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from gemel.checkpoint.architecture import architecture_of, max_positions
from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.engines.torch import load_network
from gemel.encoder.network import Array
from gemel.errors import InputError, MissingExtra
from gemel.training.options import TrainOptions
from gemel.training.packing import ATTENTION, Pack, register_attention
from gemel.types import Encoder, Vectors

if TYPE_CHECKING:
    from torch import Tensor, nn

Item: TypeAlias = Hashable
"""What the network encodes: a text, or for a cross-encoder a pair of texts."""


class TrainableNetwork(Protocol):
    """A network in torch that starts from a checkpoint and is saved as one."""

    module: nn.Module
    """All its weights."""
    dim: int
    """Size of the output for each item."""
    gives_vectors: bool
    """True for a bi-encoder: each text has one dense vector, and the distribution of these can be measured."""
    token_vectors: bool
    """True for late interaction: `forward` gives a vector of each token, (n, tokens, dim)."""
    vocabulary: int
    """Token ids are below this."""

    def items(self, columns: tuple[list[str], ...]) -> Sequence[Sequence[Item]]:
        """What to encode for the text columns of a batch: the texts themselves, or one column of pairs."""
        ...

    def tokens(
        self, items: Sequence[Item], *, noise: float = 0.0, rng: np.random.Generator | None = None
    ) -> list[Any]:
        """Token ids of each item, truncated; `noise` is the share of tokens that `rng` removes."""
        ...

    def forward(self, tokens: Sequence[Any]) -> Tensor:
        """(n, dim) float32, one row per item, with its graph."""
        ...

    def encoder(self) -> Encoder:
        """The network as it is now, for evaluation: no dropout, no graph."""
        ...

    def facts(self, texts: Sequence[str]) -> Mapping[str, float]:
        """What else to follow during training, measured on a sample of the data; may be empty."""
        ...

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """Save the model in `folder`, replacing an earlier one; `about` has the labels and settings to save with it."""
        ...


def open_body(checkpoint: Checkpoint, options: TrainOptions) -> TokenNetwork:
    """The checkpoint's network, ready to be trained."""
    if checkpoint.kind == "static":
        return TableBody(checkpoint)
    return TransformerBody(checkpoint, options)


class TableBody:
    """A static model: one vector for each token, independent of its context."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        import torch
        from torch import nn

        if "embedding.weight" not in checkpoint.weights or checkpoint.skip_unknown:
            raise InputError(
                f"{checkpoint.name} is a model2vec table; only StaticEmbedding models can be trained"
            )
        table = torch.from_numpy(np.array(checkpoint.weights["embedding.weight"], dtype=np.float32))
        self.module = nn.ModuleDict({"embedding": nn.Embedding.from_pretrained(table, freeze=False)})
        self.width = int(table.shape[1])

    def hidden(self, texts: Pack) -> Tensor:
        """(T, width): the vector of every token."""
        vectors: Tensor = self.module["embedding"](texts.ids)
        return vectors

    def weights(self) -> dict[str, Tensor]:
        """Everything to save, under the names that a checkpoint has."""
        return dict(self.module.state_dict())


class TransformerBody:
    """Loads safetensors only, and runs no code that comes with a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, options: TrainOptions) -> None:
        architecture = architecture_of(checkpoint.config)
        self._packed = architecture is not None and architecture.packed_training
        self._has_pooler = any("pooler." in name for name in checkpoint.weights)
        self.module = _load(checkpoint, options, ATTENTION if self._packed else "eager")
        config: Any = self.module.config
        self.width = int(checkpoint.width or config.hidden_size)
        after_padding = architecture is not None and architecture.positions_after_padding
        self._first_position = int(config.pad_token_id or 0) + 1 if after_padding else 0
        if options.gradient_checkpointing:
            _checkpoint_activations(self.module)
        self._with_lora = options.lora_rank is not None
        if options.lora_rank is not None:
            self.module = _add_lora(self.module, options.lora_rank)
        # Last, so that the adapters of a frozen layer are frozen too.
        _freeze(self.module.get_base_model() if self._with_lora else self.module, options.freeze_layers)

    def hidden(self, texts: Pack) -> Tensor:
        if not self._packed:
            return self._hidden_padded(texts)
        positions = self._positions(texts)[None]
        types = {} if texts.types is None else {"token_type_ids": texts.types[None]}
        states: Tensor = self.module(
            input_ids=texts.ids[None], position_ids=positions, texts=texts, **types
        ).last_hidden_state
        return states[0]

    def _positions(self, texts: Pack) -> Tensor:
        """(T,) the position id of each token. A padding token inside a text does not count."""
        if not self._first_position:
            return texts.positions
        padding = self._first_position - 1
        counted = (texts.ids != padding).long()
        running = counted.cumsum(0)
        before = (running - counted)[texts.lengths.cumsum(0) - texts.lengths]
        return padding + (running - before[texts.owners]) * counted

    def _hidden_padded(self, texts: Pack) -> Tensor:
        import torch

        states = []
        for bucket in texts.buckets:
            ids = bucket.spread(texts.ids[:, None])[..., 0]
            mask = torch.ones_like(ids) if bucket.absent is None else (~bucket.absent).long()
            types = (
                {} if texts.types is None else {"token_type_ids": bucket.spread(texts.types[:, None])[..., 0]}
            )
            states.append(
                bucket.gather(self.module(input_ids=ids, attention_mask=mask, **types).last_hidden_state)
            )
        return torch.cat(states)

    def weights(self) -> dict[str, Tensor]:
        """Without a pooler that the checkpoint did not have (transformers adds one with random weights)."""
        from copy import deepcopy

        merged: Any = deepcopy(self.module).merge_and_unload() if self._with_lora else self.module
        return {
            name: weight
            for name, weight in merged.state_dict().items()
            if self._has_pooler or not name.startswith("pooler.")
        }


TokenNetwork: TypeAlias = TableBody | TransformerBody
"""The part of a model that reads tokens."""


def _load(checkpoint: Checkpoint, options: TrainOptions, attention: str) -> nn.Module:
    def adjust(config: Any) -> None:  # noqa: ANN401 - each architecture has its own class
        if options.dropout is not None:
            _set_dropout(config, options.dropout)

    try:
        register_attention()
        return load_network(checkpoint, attention=attention, adjust=adjust)
    except ImportError as error:
        raise MissingExtra("training", "torch", "train") from error


def _set_dropout(config: Any, dropout: float) -> None:  # noqa: ANN401 - each architecture has its own class
    for name in vars(config):
        given = getattr(config, name)
        if "dropout" in name and isinstance(given, int | float) and not isinstance(given, bool):
            setattr(config, name, dropout)


def _freeze(model: Any, layers: int) -> None:  # noqa: ANN401
    if not layers:
        return
    stack = _layers(model)
    if layers > len(stack):
        raise InputError(f"freeze_layers must be at most {len(stack)}, the layers of the model, got {layers}")
    for part in (model.embeddings, *stack[:layers]):
        part.requires_grad_(False)


def _layers(model: Any) -> Any:  # noqa: ANN401
    """The blocks of a network, in order."""
    for path in ("encoder.layer", "transformer.layer", "layers"):
        part = model
        for name in path.split("."):
            part = getattr(part, name, None)
        if part is not None:
            return part
    raise InputError(
        f"a {model.config.model_type} shares its layers or does not list them; freeze_layers must be 0"
    )


def _checkpoint_activations(model: Any) -> None:  # noqa: ANN401
    """By its newer name if transformers has it, since the older one warns then."""
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


def _add_lora(model: nn.Module, rank: int) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtra("LoRA", "peft", "lora") from error
    settings = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0, bias="none"
    )
    with warnings.catch_warnings():
        # peft 0.21 still uses the old name of activation checkpointing.
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
        adapted: nn.Module = get_peft_model(model, settings)
    return adapted


def with_max_length(checkpoint: Checkpoint, max_length: int | None) -> Checkpoint:
    """The checkpoint with another maximum length; one that its positions do not allow is refused."""
    if max_length is None or checkpoint.kind == "static":
        return checkpoint
    most = max_positions(checkpoint.config)
    if most is not None and max_length > most:
        raise InputError(
            f"max_length must be at most {most}, the number of positions of {checkpoint.name}, got {max_length}"
        )
    return replace(checkpoint, max_length=max_length)


def load_layer(layer: nn.Module, weight: Array, bias: Array | None) -> None:
    """Set the weights of a layer to those of a checkpoint."""
    import torch

    parts = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in parts.items()})


def to_numpy(tensor: Tensor) -> Vectors:
    """float32 on the CPU, without a graph."""
    array: Vectors = tensor.detach().float().cpu().numpy()
    return array


_CALL_TOKENS = 4096  # per call without a gradient


def encode_without_gradient(
    network: TrainableNetwork, tokens: Sequence[Any], forward: Callable[[Sequence[Any]], Tensor] | None = None
) -> Vectors:
    """(n, dim) float32, a row for each of `tokens`, without dropout; texts of similar length run together.

    `forward` replaces the network's own, for callers that pass it more arguments.
    """
    import torch

    outputs = np.zeros((len(tokens), network.dim), dtype=np.float32)
    was_training = network.module.training
    network.module.eval()
    try:
        with torch.no_grad():
            for rows in _calls([len(ids) for ids in tokens]):
                outputs[rows] = to_numpy((forward or network.forward)([tokens[row] for row in rows]))
    finally:
        network.module.train(was_training)
    return outputs


def _calls(lengths: Sequence[int]) -> list[list[int]]:
    """The rows of each call, longest first, about `_CALL_TOKENS` tokens per call."""
    calls: list[list[int]] = []
    room = 0
    for row in np.argsort([-length for length in lengths], kind="stable").tolist():
        if room < lengths[row] or not calls:
            calls.append([])
            room = _CALL_TOKENS
        calls[-1].append(row)
        room -= lengths[row]
    return calls
