"""The folder of a sparse encoder: a network with a head over the words of its vocabulary, or a table of their weights.

Read in three layouts: with the modules.json of sentence-transformers' SparseEncoder, plain (config.json of a
...ForMaskedLM, as the authors of SPLADE publish their models), and BGE-M3 (sparse_linear beside a sentence encoder).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import first_class, positive_or_none
from gemel.checkpoint.files import (
    Tensors,
    has_m3_layers,
    inside,
    is_finite,
    m3_layer,
    module_weights,
    read_object,
    read_object_if_there,
)
from gemel.checkpoint.folder import (
    Checkpoint,
    SearchSide,
    is_cross_encoder,
    is_sparse_encoder,
    name_of,
    read_checkpoint,
    read_sparse_part,
    tokenizer_file,
)
from gemel.checkpoint.head import PoolingConfig
from gemel.checkpoint.modules import Steps, read_side_modules, steps_of
from gemel.checkpoint.settings import read_settings, refuse_unknown
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.errors import ModelError

SpladePooling = Literal["max", "sum"]

_POOLING_KEYS = frozenset({"pooling_strategy", "activation_function"})
_POOLING_HARMLESS = frozenset({"embedding_dimension", "word_embedding_dimension", "chunk_size"})
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_WITHOUT_LIMIT = 1e6  # tokenizers write 1e30 for: no limit


@dataclass(frozen=True)
class Splade:
    """The head of a masked language model on every token, then the largest number of each word, or the sum."""

    pooling: SpladePooling = "max"
    logarithms: int = 1
    """How often log(1 + x) is applied to what is above zero: once, or twice (activation "log1p_relu")."""


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """The weight of a word that a text has is always the same: no network runs."""

    weights: NDArray[np.float32]
    """(vocabulary,)"""


@dataclass(frozen=True, eq=False)
class AutoEncoder:
    """A layer on a pooled vector, of which the largest numbers are kept (CSR, arXiv 2503.01776)."""

    before: NDArray[np.float32]
    """(inputs,) subtracted from a vector."""
    weight: NDArray[np.float32]
    """(outputs, inputs)"""
    bias: NDArray[np.float32]
    normalize: bool
    """A vector is brought to mean 0 and standard deviation 1 first."""
    files: tuple[Path, ...]


@dataclass(frozen=True, eq=False)
class TokenLayer:
    """A layer that gives each token of a text a number; words that a text does not have get none (BGE-M3)."""

    weight: NDArray[np.float32]
    """(width,)"""
    bias: np.float32
    files: tuple[Path, ...]


@dataclass(frozen=True, eq=False)
class SparsePart:
    """What encodes one side of a search."""

    checkpoint: Checkpoint
    step: Splade | TokenWeights | AutoEncoder | TokenLayer
    """What comes after the network; of `TokenWeights`, what is there instead of one."""


@dataclass(frozen=True, eq=False)
class SparseCheckpoint:
    """One sparse encoder as its folder describes it."""

    document: SparsePart
    query: SparsePart | None
    """What encodes queries, where they have modules of their own (a Router)."""
    max_active_dims: int | None
    """Weights of a text that are kept, the largest; None: all."""

    @property
    def name(self) -> str:
        return self.document.checkpoint.name


def read_sparse(folder: Path, *, name: str | None = None, offline: bool = False) -> SparseCheckpoint:
    """The sparse encoder in `folder`; `name` is what messages call it (default: the folder's own)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"no model folder {folder}. Give an existing folder or the name of a model")
    if has_m3_layers(folder):
        checkpoint = read_checkpoint(folder, name=name, offline=offline)
        return SparseCheckpoint(SparsePart(checkpoint, read_token_layer(checkpoint)), None, None)
    if not (folder / "modules.json").is_file():
        return SparseCheckpoint(_plain(folder, name, offline), None, None)
    if is_cross_encoder(folder):
        raise ModelError(
            f"{folder} is a cross-encoder: it scores pairs. Load it with gemel.load_cross(...)",
            code="GEM-210",
        )
    sides = read_side_modules(folder, sparse=True)
    settings = read_settings(folder, sparse=True)
    document = _part(folder, sides.document, name, offline)
    query = None if sides.query is None else _part(folder, sides.query, name, offline)
    most = settings.get("max_active_dims")
    if most is None and isinstance(document.step, AutoEncoder):
        most = read_object(sides.document[-1][1] / "config.json").get("k")
    return SparseCheckpoint(document, query, most)


def read_token_layer(checkpoint: Checkpoint) -> TokenLayer:
    """The layer of BGE-M3 for the weights of tokens."""
    tensors = m3_layer(checkpoint.folder, "sparse_linear")
    if tensors["weight"].shape != (1, checkpoint.width):
        raise ModelError(
            f"{tensors.files[0]}: the layer has shape {tensors['weight'].shape}, but a token has {checkpoint.width} "
            "numbers and gets one weight. The file belongs to another model"
        )
    return TokenLayer(np.ascontiguousarray(tensors["weight"][0]), tensors["bias"][0], tensors.files)


def _plain(folder: Path, name: str | None, offline: bool) -> SparsePart:
    """A masked language model without modules.json: the largest weight of each word, as in SPLADE v2."""
    kind = first_class(read_object_if_there(folder / "config.json"))
    if not kind.endswith("ForMaskedLM"):
        raise ModelError(
            f"{folder} is not a sparse encoder: it has no modules.json, and its config.json names {kind or 'no class'}"
            ", not a ...ForMaskedLM. Load a sentence encoder with gemel.load(...)"
        )
    steps = Steps("transformer", folder, None, (), (), False, masked=True)
    checkpoint = read_sparse_part(folder, steps, name=name, offline=offline)
    note = "masked language model without modules.json: log(1 + relu(x)), the maximum over tokens (SPLADE)"
    return SparsePart(replace(checkpoint, notes=(*checkpoint.notes, note)), Splade())


def _part(folder: Path, modules: Sequence[tuple[str, Path]], name: str | None, offline: bool) -> SparsePart:
    kinds, path = [kind for kind, _ in modules], modules[-1][1]
    if len(modules) == 2 and kinds[0] in _TRANSFORMERS and kinds[1] == "SpladePooling":
        steps = Steps("transformer", modules[0][1], None, (), (), False, masked=True)
        checkpoint = read_sparse_part(folder, steps, name=name, offline=offline)
        return SparsePart(checkpoint, _splade(path))
    if kinds == ["SparseStaticEmbedding"]:
        return _token_weights(folder, path, name)
    if (
        len(modules) > 1
        and kinds[-1] == "SparseAutoEncoder"
        and not {*kinds[:-1]} & {"MLMTransformer", "SpladePooling"}
    ):
        steps = steps_of(folder, modules[:-1])
        checkpoint = read_sparse_part(folder, steps, name=name, offline=offline)
        return SparsePart(checkpoint, _auto_encoder(folder, path, checkpoint))
    hint = "" if is_sparse_encoder(folder) else ". Load a sentence encoder with gemel.load(...)"
    raise ModelError(
        f"{folder}: the modules {', '.join(kinds)} are not those of a sparse encoder that gemel reads: Transformer and "
        f"SpladePooling; SparseStaticEmbedding; Transformer, Pooling and SparseAutoEncoder{hint}"
    )


def _splade(folder: Path) -> Splade:
    path = folder / "config.json"
    config = read_object_if_there(path)
    refuse_unknown(path, config, _POOLING_KEYS, _POOLING_HARMLESS)
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise ModelError(
            f"{path}: pooling_strategy {pooling!r} and activation_function {activation!r} are requested. Known: max "
            "and sum; relu and log1p_relu"
        )
    return Splade(pooling, 2 if activation == "log1p_relu" else 1)


def _token_weights(folder: Path, path: Path, name: str | None) -> SparsePart:
    """A SparseStaticEmbedding: model.safetensors with one weight per token, or a JSON file of token to weight."""
    config = read_object_if_there(path / "config.json")
    refuse_unknown(path / "config.json", config, {"frozen", "path"})
    settings = read_settings(folder, sparse=True)
    tokenizer = read_object_if_there(path / "tokenizer_config.json")
    length = tokenizer.get("model_max_length")
    limited = isinstance(length, int | float) and 0 < length < _WITHOUT_LIMIT
    named = config.get("path")
    tensors = Tensors({}) if named else module_weights(folder, path)
    checkpoint = Checkpoint(
        folder=folder,
        name=name or name_of(folder),
        kind="static",
        config={},
        weights=tensors,
        tokenizer_file=tokenizer_file(folder, path),
        lowercase=False,
        max_length=int(length) if limited else None,  # type: ignore[arg-type]
        pooling=PoolingConfig(),
        dense=(),
        normalize=False,
        prompts=settings.get("prompts") or {},
        default_prompt_name=settings.get("default_prompt_name"),
        similarity=None,
        notes=(),
        parts=(_json_file(folder, path, named),) if named else tuple(tensors.files),
        truncation_side="left" if tokenizer.get("truncation_side") == "left" else None,
    )
    weights = _json_weights(checkpoint) if named else _vector(path, tensors, "weight")
    return SparsePart(checkpoint, TokenWeights(weights))


def _json_file(folder: Path, module: Path, named: object) -> Path:
    paths = [inside(parent, str(named)) for parent in (module, folder)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ModelError(
            f"{module / 'config.json'} names the weights of tokens {named!r}, which is no file in {folder}"
        )
    return path


def _json_weights(checkpoint: Checkpoint) -> NDArray[np.float32]:
    (path,) = checkpoint.parts
    tokenizer = load_tokenizer(checkpoint)
    weights = np.zeros(len(tokenizer.get_vocab()), dtype=np.float32)
    for token, weight in read_object(path).items():
        number = tokenizer.token_to_id(token)
        if number is None or not isinstance(weight, int | float) or not np.isfinite(weight):
            raise ModelError(
                f"{path}: {token!r:.60} with the weight {weight!r:.60} is no token of the tokenizer with a number"
            )
        weights[number] = weight
    return weights


def _auto_encoder(folder: Path, path: Path, checkpoint: Checkpoint) -> AutoEncoder:
    config = read_object(path / "config.json")
    known = {"input_dim", "hidden_dim", "k", "normalize"}
    refuse_unknown(path / "config.json", config, known, {"k_aux", "dead_threshold"})
    if positive_or_none(config.get("k")) is None:
        raise ModelError(
            f"{path / 'config.json'}: 'k' must be a whole number of at least 1, got {config.get('k')!r}"
        )
    tensors = module_weights(folder, path)
    # The decoder is the encoder transposed, and the file has one of the two names.
    names = ("encoder.weight", "decoder.linear.weight")
    stored = next((name for name in names if name in tensors), names[0])
    weight = _vector(path, tensors, stored, dimensions=2)
    before, bias = _vector(path, tensors, "pre_bias"), _vector(path, tensors, "latent_bias")
    inputs = checkpoint.dim
    if weight.shape != (len(bias), len(before)) or inputs not in (None, len(before)):
        raise ModelError(
            f"{path}: the layer {stored!r} has shape {weight.shape}, its biases have {len(bias)} and {len(before)} "
            f"numbers, and vectors have {inputs}. One of the files belongs to another model"
        )
    return AutoEncoder(before, weight, bias, config.get("normalize") is True, tuple(tensors.files))


def _vector(path: Path, tensors: Tensors, name: str, *, dimensions: int = 1) -> NDArray[np.float32]:
    array: NDArray[Any] = np.asarray(tensors[name] if name in tensors else np.empty(()), dtype=np.float32)
    if array.ndim != dimensions or not array.size:
        raise ModelError(f"{path}: no weight {name!r} of {dimensions} dimensions in its model.safetensors")
    if not is_finite(array):
        raise ModelError(
            f"{path}: the weight {name!r} holds NaN or infinite values. Fetch or save the model again"
        )
    return np.ascontiguousarray(array)


def sides_of(checkpoint: SparseCheckpoint) -> dict[SearchSide, SparsePart]:
    """What encodes queries and what encodes documents; the same where the checkpoint has one side."""
    return {"query": checkpoint.query or checkpoint.document, "document": checkpoint.document}
