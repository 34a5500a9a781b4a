"""Late interaction (ColBERT): the settings of a checkpoint, and texts to the tokens whose vectors are compared.

Four layouts are read: PyLate (a token is put before queries and another before documents), the checkpoints of
Stanford's ColBERT (`linear.weight` beside the network, artifact.metadata), MultiVectorEncoder of sentence-transformers
(prompts), and BGE-M3 (colbert_linear beside a sentence encoder). Queries of most are filled up with mask tokens, whose
vectors count too (query expansion).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import architecture_of, key_set, least, max_positions, model_types
from gemel.checkpoint.files import (
    has_m3_layers,
    inside,
    m3_layer,
    module_weights,
    read_json,
    read_object,
    read_object_if_there,
)
from gemel.checkpoint.folder import Checkpoint, SearchSide, read_checkpoint
from gemel.checkpoint.modules import Steps, is_late_model
from gemel.checkpoint.settings import refuse_unknown
from gemel.checkpoint.tokenizer import OpenedTokenizer, open_tokenizer
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.network import Linear, Network
from gemel.encoder.tokenizer import TextTokenizer, TokenIds, Windows, cut
from gemel.encoder.weights import read_network
from gemel.errors import InputError, ModelError
from gemel.types import Vectors

_QUERY_LENGTH, _DOCUMENT_LENGTH = 32, 180  # of PyLate, where a checkpoint names none

_DENSE_KEYS = key_set(
    "in_features out_features bias activation_function module_input_name module_output_name use_residual"
)
_MASK_KEYS = key_set("skiplist_words skiplist_tasks")
_POOLING_KEYS = key_set("pool_factor num_protected_tokens normalize_embeddings tasks")


@dataclass(frozen=True)
class LateSide:
    """How the texts of one side become tokens."""

    prefix: str | None
    """A token that is put after the first one of every text, whatever that is; None: none."""
    prompt: str
    """Put in front of every text, unchanged."""
    length: int | None
    """Tokens that count, special tokens and the prefix included; None: as many as the network has positions."""


@dataclass(frozen=True)
class Expansion:
    """Queries with fewer tokens than `length` are filled up with a token, by default the mask."""

    length: int
    attend: bool
    """False: nothing sees the tokens that were added, not even they themselves; but they see the others."""
    token: str | None
    """None: the mask of the tokenizer, or else its end of a text."""
    fixed: bool = True
    """Longer queries are cut to `length`."""


@dataclass(frozen=True, eq=False)
class LateCheckpoint:
    """One model for late interaction, as its folder describes it."""

    encoder: Checkpoint
    projection: tuple[Linear, ...]
    """Layers after the network, on each token."""
    query: LateSide
    document: LateSide
    expansion: Expansion | None
    skipped: tuple[str, ...]
    """Tokens that get no vector: punctuation."""
    skipping: tuple[str, ...] = ("document",)
    """The sides on which they get none."""
    normalize: bool = True
    skip_first: bool = False
    """The first token of a text gets no vector, because it stands for the whole text (BGE-M3)."""

    @property
    def name(self) -> str:
        return self.encoder.name

    def side(self, side: SearchSide) -> LateSide:
        return self.query if side == "query" else self.document


def read_late(folder: Path, *, name: str | None = None) -> LateCheckpoint:
    """The model for late interaction in `folder`; `name` is what messages call it (default: the folder's own)."""
    folder = Path(folder)
    if has_m3_layers(folder):
        return _m3(folder, name)
    if not is_late_model(folder):
        raise ModelError(
            f"{folder} is not a model for late interaction (ColBERT). Load it with gemel.load(...), or with "
            "gemel.load_cross(...) if it is a cross-encoder",
            code="GEM-210",
        )
    if not (folder / "modules.json").is_file():
        return _stanford(folder, name)
    modules = _modules(folder)
    network = next((path for kind, path in modules if kind == "Transformer"), folder)
    folders = tuple(path for kind, path in modules if kind == "Dense")
    encoder = read_checkpoint(folder, name=name, late=Steps("transformer", network, None, (), folders, False))
    layers = tuple(_dense(folder, path) for path in folders)
    settings = read_object_if_there(folder / "config_sentence_transformers.json")
    if settings.get("model_type") == "MultiVectorEncoder" and "query_prefix" not in settings:
        return _multi_vector(encoder, layers, modules, settings)
    return _pylate(encoder, layers, settings)


def _pylate(encoder: Checkpoint, layers: tuple[Linear, ...], settings: Mapping[str, Any]) -> LateCheckpoint:
    words = settings.get("skiplist_words")
    length = _count(settings, "query_length") or _QUERY_LENGTH
    attend = settings.get("attend_to_expansion_tokens") is True
    expands = settings.get("do_query_expansion") is not False
    return LateCheckpoint(
        encoder=encoder,
        projection=layers,
        query=LateSide(_prefix(settings, "query", "[Q] "), _prompt(encoder, "query"), length),
        document=LateSide(
            _prefix(settings, "document", "[D] "),
            _prompt(encoder, "document"),
            _count(settings, "document_length") or _DOCUMENT_LENGTH,
        ),
        expansion=Expansion(length, attend, None) if expands else None,
        skipped=tuple(string.punctuation if words is None else map(str, words)),
    )


def _prefix(settings: Mapping[str, Any], side: str, default: str) -> str | None:
    value = settings.get(f"{side}_prefix")
    return default if value is None else str(value) or None


def _prompt(encoder: Checkpoint, side: SearchSide) -> str:
    """The prompt for the side, or the default one."""
    own = encoder.prompts.get(encoder.prompt_name(side) or "", "")
    return own or encoder.prompts.get(encoder.default_prompt_name or "", "")


def _stanford(folder: Path, name: str | None) -> LateCheckpoint:
    encoder = read_checkpoint(folder, name=name, late=Steps("transformer", folder, None, (), (), False))
    if "linear.weight" not in encoder.weights:
        raise ModelError(f"{folder} is a ColBERT of Stanford's layout, but has no tensor 'linear.weight'")
    settings = read_object_if_there(folder / "artifact.metadata")
    length = _count(settings, "query_maxlen") or _QUERY_LENGTH
    document = _count(settings, "doc_maxlen") or _DOCUMENT_LENGTH
    punctuation = settings.get("mask_punctuation") is not False
    return LateCheckpoint(
        encoder=encoder,
        projection=(Linear(encoder.weights["linear.weight"], encoder.weights.get("linear.bias")),),
        query=LateSide(str(settings.get("query_token_id") or "[unused0]"), "", length),
        document=LateSide(str(settings.get("doc_token_id") or "[unused1]"), "", document),
        expansion=Expansion(length, settings.get("attend_to_mask_tokens") is True, None),
        skipped=tuple(string.punctuation) if punctuation else (),
    )


def _m3(folder: Path, name: str | None) -> LateCheckpoint:
    """Queries and documents are encoded in the same way."""
    encoder = read_checkpoint(folder, name=name)
    tensors = m3_layer(folder, "colbert_linear")
    side = LateSide(None, "", encoder.max_length)
    return LateCheckpoint(
        encoder=encoder,
        projection=(Linear(tensors["weight"], tensors["bias"]),),
        query=side,
        document=side,
        expansion=None,
        skipped=(),
        skip_first=True,
    )


def _multi_vector(
    encoder: Checkpoint,
    layers: tuple[Linear, ...],
    modules: Sequence[tuple[str, Path]],
    settings: Mapping[str, Any],
) -> LateCheckpoint:
    if settings.get("similarity_fn_name") not in (None, "maxsim", "MaxSim"):
        raise ModelError(
            f"{encoder.folder} compares by {settings['similarity_fn_name']!r}; only maxsim is supported"
        )
    own = read_object_if_there(encoder.network_folder / "sentence_bert_config.json")
    skipped: tuple[str, ...] = ()
    sides: tuple[str, ...] = ("document",)
    normalize = False
    for kind, path in modules:
        config = read_object_if_there(path / "config.json")
        if kind == "MultiVectorMask":
            refuse_unknown(path / "config.json", config, _MASK_KEYS)
            skipped = tuple(map(str, config.get("skiplist_words") or ()))
            named = config.get("skiplist_tasks", ["document"])
            sides = tuple([named] if isinstance(named, str) else named or ())
        elif kind == "Normalize":
            normalize = True
        elif kind == "HierarchicalTokenPooling":
            refuse_unknown(path / "config.json", config, _POOLING_KEYS)
            if config.get("pool_factor", 1.0) != 1:
                raise ModelError(f"{path}: vectors of tokens are merged ('pool_factor'): not supported")
    expansion = _expansion(encoder.network_folder, own)
    length = _count(own, "query_length") or encoder.max_length
    if expansion is not None:
        length = expansion.length if expansion.fixed else length and max(expansion.length, length)
    document = _count(own, "document_length") or encoder.max_length
    return LateCheckpoint(
        encoder=encoder,
        projection=layers,
        query=LateSide(None, _prompt(encoder, "query"), length),
        document=LateSide(None, _prompt(encoder, "document"), document),
        expansion=expansion,
        skipped=skipped,
        skipping=sides,
        normalize=normalize,
    )


def _expansion(folder: Path, settings: Mapping[str, Any]) -> Expansion | None:
    given = settings.get("query_expansion")
    if not given:
        return None
    length = _count(given, "length") if isinstance(given, dict) else None
    if length is None or given.get("strategy") not in ("fixed", "min"):
        raise ModelError(
            f"{folder}: 'query_expansion' must have a 'length' and the 'strategy' fixed or min, got {given!r:.100}"
        )
    return Expansion(length, given.get("attend") is True, given.get("token"), given["strategy"] == "fixed")


def _count(settings: Mapping[str, Any], key: str) -> int | None:
    value = settings.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ModelError(f"{key!r} must be a whole number of at least 1, got {value!r}")
    return value


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """(last word of the type, folder) of each module."""
    known = ("Transformer", "Dense", "MultiVectorMask", "Normalize", "HierarchicalTokenPooling")
    listed = read_json(folder / "modules.json")
    modules: list[tuple[str, Path]] = []
    for entry in listed if isinstance(listed, list) else []:
        module = entry if isinstance(entry, dict) else {}
        kind = str(module.get("type"))
        package, word = kind.partition(".")[0], kind.rpartition(".")[2]
        # A class of another package may have a known name and run any code.
        if package not in ("sentence_transformers", "pylate") or word not in known:
            raise ModelError(
                f"{folder}: unknown module {kind!r} of a model for late interaction. Known: {', '.join(known)}"
            )
        modules.append((word, inside(folder, str(module.get("path", "")))))
    words = [word for word, _ in modules]
    if words[:1] != ["Transformer"] or words.count("Transformer") > 1:
        raise ModelError(f"{folder}: modules.json must list one Transformer, and first, got {words}")
    return modules


def _dense(model: Path, folder: Path) -> Linear:
    """A layer on each token, without an activation; a residual connection is added to its weight."""
    config = read_object(folder / "config.json")
    refuse_unknown(folder / "config.json", config, _DENSE_KEYS)
    activation = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2]
    names = {config.get(key) for key in ("module_input_name", "module_output_name")}
    if activation != "Identity" or names - {None, "token_embeddings"}:
        raise ModelError(
            f"{folder}: a dense layer of a model for late interaction must be on token_embeddings and have no "
            f"activation (Identity), got {activation} on {sorted(map(str, names))}"
        )
    weights = module_weights(model, folder)
    if "linear.weight" not in weights or weights["linear.weight"].ndim != 2:
        raise ModelError(
            f"{folder}: a dense layer needs a matrix 'linear.weight', found {', '.join(weights)}"
        )
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    if config.get("use_residual"):
        own = weights.get("residual.weight")
        square = weight.shape[0] == weight.shape[1]
        if own is None and not square:
            raise ModelError(f"{folder}: 'use_residual' needs the tensor 'residual.weight' or a square layer")
        weight = weight + (np.eye(len(weight), dtype=np.float32) if own is None else own)
    return Linear(weight, bias)


def late_network(checkpoint: LateCheckpoint) -> Network:
    """The network with the projection as its last layer: several layers are multiplied to one."""
    encoder = checkpoint.encoder
    if architecture_of(encoder.config) is None:
        raise ModelError(
            f"{encoder.name} has the architecture {encoder.config.get('model_type')!r}, which gemel cannot read "
            f"itself; late interaction does not run in torch. Known: {', '.join(model_types())}"
        )
    network = read_network(encoder.config, encoder.weights)
    layers = [*([] if network.output is None else [network.output]), *checkpoint.projection]
    width = network.inner_width
    for layer in layers:
        outputs, inputs = layer.shape
        if inputs != width or (layer.bias is not None and layer.bias.shape != (outputs,)):
            raise ModelError(
                f"{encoder.folder}: a dense layer of shape {layer.shape} gets {width} numbers of each token. One of "
                "the files belongs to another model"
            )
        width = outputs
    return replace(network, output=_joined(layers)) if layers else network


def _joined(layers: Sequence[Linear]) -> Linear:
    if len(layers) == 1:
        return layers[0]
    weight = layers[0].read().astype(np.float64)
    bias = np.zeros(len(weight)) if layers[0].bias is None else layers[0].bias.astype(np.float64)
    for layer in layers[1:]:
        step = layer.read().astype(np.float64)
        weight, bias = step @ weight, step @ bias + (0 if layer.bias is None else layer.bias)
    return Linear(weight.astype(np.float32), bias.astype(np.float32))


@dataclass(frozen=True)
class LateTokens:
    """One text, ready to run."""

    ids: TokenIds
    keys: int
    """Tokens that the others see; those after them are seen by none."""
    counted: NDArray[np.int64]
    """Positions of the tokens that get a vector."""
    tokens: int
    """Tokens of the text, special tokens and the prefix included."""
    kept: int
    """Of these, the ones that are in `ids`."""


class LateTokenizer:
    """Texts to the tokens of one side. Safe to use from several threads."""

    def __init__(self, checkpoint: LateCheckpoint) -> None:
        opened = open_tokenizer(checkpoint.encoder)
        if opened.truncation_side == "left":
            raise ModelError(f"{checkpoint.name}: 'truncation_side' is left: not supported")
        self._checkpoint = checkpoint
        self.texts = TextTokenizer(opened.tokenizer)
        self._prefixes = {
            name: None if side.prefix is None else _token_id(checkpoint, opened, side.prefix)
            for name, side in (("query", checkpoint.query), ("document", checkpoint.document))
        }
        self._filler = None if checkpoint.expansion is None else _filler(checkpoint, opened)
        # A word that is no token would stand for the unknown token, and remove every unknown word.
        ids = (opened.tokenizer.token_to_id(word) for word in checkpoint.skipped)
        self._skipped = np.array(sorted({number for number in ids if number is not None}), dtype=np.int32)

    def limit(self, side: SearchSide, length: int | None = None) -> int | None:
        """Tokens of a text that count; `length`: requested instead of the checkpoint's own."""
        return least(
            length or self._checkpoint.side(side).length, max_positions(self._checkpoint.encoder.config)
        )

    def prepare(
        self, texts: Sequence[str], side: SearchSide, length: int | None = None, *, parallel: bool = True
    ) -> list[LateTokens]:
        """One per text, cut to `limit`; queries filled up."""
        prompt, limit = self._checkpoint.side(side).prompt, self.limit(side, length)
        contents = self.texts.content(
            [prompt + text for text in texts] if prompt else texts, parallel=parallel
        )
        return [self._prepared(content, side, limit) for content in contents]

    def offsets(
        self, text: str, side: SearchSide, length: int | None = None
    ) -> list[tuple[int, int] | tuple[None, None]]:
        """Which characters of a text each of its vectors stands for; None: a special token, or one of the prompt."""
        (ready,) = self.prepare([text], side, length)
        prompt, special, prefixed = (
            self._checkpoint.side(side).prompt,
            self.texts.special,
            self._prefixes[side],
        )
        pieces = self.texts.pieces(prompt + text, special=False)
        count = ready.kept - len(special) - (prefixed is not None)
        spans: list[tuple[int, int] | tuple[None, None]] = [(None, None)] * len(special.before)
        for piece in pieces[:count]:
            start, stop = piece.start - len(prompt), piece.stop - len(prompt)
            spans.append((start, stop) if start >= 0 else (None, None))
        if prefixed is not None:
            spans.insert(min(1, len(spans)), (None, None))
        spans += [(None, None)] * (len(ready.ids) - len(spans))  # special tokens, and what fills up a query
        return [spans[position] for position in ready.counted]

    def _prepared(self, content: TokenIds, side: SearchSide, limit: int | None) -> LateTokens:
        prefix = self._prefixes[side]
        extra = 0 if prefix is None else 1
        if limit is not None and limit <= len(self.texts.special) + extra:
            raise InputError(
                f"max_length {limit} leaves no room for a token beside the {len(self.texts.special) + extra} special "
                f"tokens of this model. Use at least {len(self.texts.special) + extra + 1}"
            )
        window = cut(content, self.texts.special, None if limit is None else limit - extra, "truncate")
        ids = window.pieces[0]
        if prefix is not None:
            ids = np.insert(ids, min(1, len(ids)), prefix)
        keys, counted = len(ids), np.arange(len(ids))
        expansion = self._checkpoint.expansion if side == "query" else None
        if expansion is not None and self._filler is not None:
            missing = max(0, min(expansion.length, limit or expansion.length) - len(ids))
            ids = np.concatenate([ids, np.full(missing, self._filler, dtype=np.int32)])
            counted = np.arange(len(ids))
            keys = len(ids) if expansion.attend else keys
        if self._checkpoint.skip_first:
            counted = counted[1:]
        if side in self._checkpoint.skipping:
            counted = counted[~np.isin(ids[counted], self._skipped)]
        return LateTokens(ids, keys, counted, window.tokens + extra, window.kept + extra)


def as_windows(texts: Sequence[LateTokens]) -> list[Windows]:
    """For `refuse_long`, which takes the tokens of a text and those that were kept."""
    return [Windows((text.ids,), (1,), text.tokens, text.kept) for text in texts]


def _token_id(checkpoint: LateCheckpoint, opened: OpenedTokenizer, token: str) -> int:
    number = opened.tokenizer.token_to_id(token)
    if number is None:
        raise ModelError(
            f"{checkpoint.name} puts the token {token!r} into its texts, which its tokenizer does not have. PyLate "
            "would add it with random numbers: save the trained model again with its tokenizer"
        )
    return int(number)


def _filler(checkpoint: LateCheckpoint, opened: OpenedTokenizer) -> int:
    """The token that fills up queries."""
    assert checkpoint.expansion is not None
    if checkpoint.encoder.tokenizer_settings.get("padding_side") == "left":
        raise ModelError(f"{checkpoint.name} fills up queries on the left ('padding_side'): not supported")
    if checkpoint.expansion.token is not None:
        return _token_id(checkpoint, opened, checkpoint.expansion.token)
    settings = checkpoint.encoder.tokenizer_settings
    names = [
        _token_name(settings.get("mask_token")),
        "[MASK]",
        "<mask>",
        _token_name(settings.get("eos_token")),
    ]
    for name in names:
        number = None if name is None else opened.tokenizer.token_to_id(name)
        if number is not None:
            return int(number)
    raise ModelError(
        f"{checkpoint.name} fills up queries with mask tokens, but its tokenizer has none. Name one as 'mask_token' in "
        "tokenizer_config.json"
    )


def _token_name(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


class UnseenTokensNetwork(PlainNetwork):
    """Runs queries whose mask tokens are not seen by any token, where the engine cannot: in NumPy, one text at a time.

    Weights are in memory in float32. The bits of a text do not depend on other texts: it runs alone.
    """

    def __init__(self, network: Network) -> None:
        super().__init__(network, keep=True)

    def run(self, text: LateTokens) -> Vectors:
        """(t, width): the vectors of all tokens."""
        states: Vectors = self.hidden(text.ids[None], text.keys)[0]
        return states
