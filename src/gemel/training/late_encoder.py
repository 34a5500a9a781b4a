"""Late interaction (ColBERT, arXiv 2004.12832) in torch: the token vectors that inference gives, with a gradient.

The body is transformers' network; a layer makes a short vector of each token's state. The vectors of a batch are one
tensor, with zeros after the last token of a text: an objective sees them as it sees other vectors. A start that is no
such model gets a new layer, prefix tokens and lengths. It is saved as PyLate saves a model.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.checkpoint.architecture import architecture_of, model_types
from gemel.checkpoint.folder import Checkpoint, SearchSide, read_checkpoint
from gemel.checkpoint.modules import is_late_model
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.checkpoint.write import SavedModule, write_modules
from gemel.encoder.late import Expansion, LateCheckpoint, LateSide, LateTokenizer, LateTokens, read_late
from gemel.errors import InputError, ModelError
from gemel.training.network import TransformerBody, load_layer, to_numpy
from gemel.training.options import TrainOptions
from gemel.training.packing import pack
from gemel.types import Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_PREFIXES = ("[unused0]", "[unused1]")  # of queries and documents: tokens of BERT that no text has
_DIM, _QUERY_LENGTH, _DOCUMENT_LENGTH = 128, 32, 180
_IDENTITY = "torch.nn.modules.linear.Identity"
_CALL_TOKENS = 4096  # per call without a gradient

Item = tuple[SearchSide, str]


@dataclass(frozen=True, eq=False)
class LateStart:
    """What a model for late interaction is trained from."""

    late: LateCheckpoint
    """Without a layer, where the start is another model."""
    fresh: bool

    @property
    def checkpoint(self) -> Checkpoint:
        return self.late.encoder

    def notes(self) -> list[str]:
        """What was decided, for people to read."""
        if not self.fresh:
            return []
        prefix = "no prefix token: its tokenizer has no unused ones"
        if self.late.query.prefix is not None:
            prefix = f"the prefix tokens {self.late.query.prefix} and {self.late.document.prefix}"
        return [f"{self.checkpoint.name} gets a new layer on its tokens, and {prefix}"]


def read_late_start(folder: Path, *, name: str | None = None) -> LateStart:
    """The checkpoint to start from: a model for late interaction, or any encoder."""
    if is_late_model(folder):
        late = read_late(folder, name=name)
        if late.query.prompt or late.document.prompt:
            raise ModelError(
                f"{late.name} puts a prompt before texts, and is used, but not trained further. Start from a model "
                "with prefix tokens (PyLate, Stanford's ColBERT), or from an encoder"
            )
        _check_kind(late.encoder)
        return LateStart(late, fresh=False)
    checkpoint = read_checkpoint(folder, name=name).plain
    _check_kind(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    known = all(tokenizer.token_to_id(each) is not None for each in _PREFIXES)
    query, document = _PREFIXES if known else (None, None)
    late = LateCheckpoint(
        encoder=replace(checkpoint, prompts={}, default_prompt_name=None),
        projection=(),
        query=LateSide(query, "", _QUERY_LENGTH),
        document=LateSide(document, "", _DOCUMENT_LENGTH),
        expansion=Expansion(_QUERY_LENGTH, attend=True, token=None),
        skipped=tuple(string.punctuation),
    )
    return LateStart(late, fresh=True)


def _check_kind(checkpoint: Checkpoint) -> None:
    kind = checkpoint.config.get("model_type") if checkpoint.kind == "transformer" else "static"
    if architecture_of({"model_type": kind}) is None:
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which late interaction does not run. "
            f"Known: {', '.join(model_types())}"
        )


def _with_options(start: LateStart, options: TrainOptions) -> LateCheckpoint:
    """The settings of the start, with those that were requested."""
    late = start.late
    length = options.query_length or late.query.length
    document = replace(late.document, length=options.max_length or late.document.length)
    expansion = None
    if options.query_expansion and late.expansion is not None:
        expansion = replace(late.expansion, length=options.query_length or late.expansion.length)
    return replace(late, query=replace(late.query, length=length), document=document, expansion=expansion)


class LateNetwork:
    """A `TrainableNetwork` with a vector of each token; queries and documents share the network."""

    gives_vectors = False
    token_vectors = True

    def __init__(self, start: LateStart, options: TrainOptions, device: torch.device) -> None:
        import torch
        from torch import nn

        self.late = _with_options(start, options)
        self.checkpoint = self.late.encoder
        self.body = TransformerBody(self.checkpoint, options)
        # Texts of another start: the seed of the run decides about the new layer.
        generator = torch.Generator().manual_seed(options.seed)
        self.layers = nn.ModuleList(_layers(start, self.body.width, options.token_dim, generator))
        self.module: nn.Module = nn.ModuleDict({"body": self.body.module, "layers": self.layers}).to(device)
        self.device = device
        self._prepare = LateTokenizer(self.late)
        self.tokenizer = self._prepare.texts
        self.dim = int(self.layers[-1].weight.shape[0])
        self.vocabulary = self.tokenizer.vocabulary
        self.max_length = self._prepare.limit("document")

    def items(self, columns: tuple[list[str], ...]) -> tuple[list[Item], ...]:
        """The first of several columns are queries, all others documents."""
        sides: list[SearchSide] = ["query" if len(columns) > 1 else "document"]
        sides += ["document"] * (len(columns) - 1)
        return tuple([(side, text) for text in column] for side, column in zip(sides, columns, strict=True))

    def tokens(
        self, items: Sequence[Any], *, noise: float = 0.0, rng: np.random.Generator | None = None
    ) -> list[LateTokens]:
        """The tokens of each item with special tokens and its prefix, truncated; queries filled up."""
        assert not noise, "no objective of late interaction uses noise"
        ready: list[LateTokens | None] = [None] * len(items)
        for side in ("query", "document"):
            rows = [row for row, item in enumerate(items) if item[0] == side]
            texts = self._prepare.prepare([items[row][1] for row in rows], side)
            for row, text in zip(rows, texts, strict=True):
                ready[row] = text
        return [text for text in ready if text is not None]

    def forward(self, tokens: Sequence[LateTokens]) -> Tensor:
        """(n, most tokens of a text, dim), zeros where a text has fewer; as `LateModel` gives them."""
        import torch

        texts = pack([each.ids for each in tokens], self.device, seen=[each.keys for each in tokens])
        states = self.body.hidden(texts)
        for layer in self.layers:
            states = layer(states)
        # Objectives compute in float32 or better, also in mixed precision.
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        if self.late.normalize:
            states = torch.nn.functional.normalize(states, dim=-1)
        most = max((len(each.counted) for each in tokens), default=1)
        lengths, back = texts.lengths.tolist(), texts.back.tolist()
        starts = np.cumsum([0, *lengths])[:-1]
        chosen = [torch.from_numpy(each.counted + starts[back[row]]) for row, each in enumerate(tokens)]
        slots = [row * most + np.arange(len(each.counted)) for row, each in enumerate(tokens)]
        flat = states.new_zeros(len(tokens) * most, self.dim)
        where = torch.from_numpy(np.concatenate(slots)).to(self.device)
        flat = flat.index_copy(0, where, states[torch.cat(chosen).to(self.device)])
        return flat.view(len(tokens), most, self.dim)

    def encoder(self) -> LateScorer:
        return LateScorer(self)

    def facts(self, texts: Sequence[str]) -> dict[str, float]:
        """None."""
        return {}

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """The model as `gemel.load_late` and PyLate read it."""
        modules = []
        for number, layer in enumerate(self.layers, start=1):
            outputs, inputs = layer.weight.shape
            config = {
                "in_features": inputs,
                "out_features": outputs,
                "bias": layer.bias is not None,
                "activation_function": _IDENTITY,
                "use_residual": False,
            }
            tensors = {f"linear.{name}": to_numpy(tensor) for name, tensor in layer.state_dict().items()}
            kind, path = "pylate.models.Dense.Dense", f"{number}_Dense"
            modules.append(SavedModule(kind, path, {"config.json": config}, tensors))
        late = self.late
        architecture = architecture_of(self.checkpoint.config)
        assert architecture is not None
        expansion = late.expansion
        settings = {
            "model_type": "ColBERT",
            "prompts": {"query": "", "document": ""},
            "similarity_fn_name": "MaxSim",
            "query_prefix": late.query.prefix or "",
            "document_prefix": late.document.prefix or "",
            "query_length": late.query.length if expansion is None else expansion.length,
            "document_length": late.document.length,
            "attend_to_expansion_tokens": expansion is not None and expansion.attend,
            "skiplist_words": list(late.skipped),
            "do_query_expansion": expansion is not None,
        }
        write_modules(
            self.checkpoint,
            folder,
            network="sentence_transformers.models.Transformer",
            weights={name: to_numpy(tensor) for name, tensor in self.body.weights().items()},
            config={"architectures": [f"{architecture.class_prefix}Model"]},
            modules=modules,
            settings=settings,
        )


def _layers(start: LateStart, width: int, dim: int | None, generator: torch.Generator) -> list[nn.Linear]:
    """The layers of the start, or a new one, which keeps distances: its rows are orthogonal."""
    from torch import nn

    layers = []
    for given in start.late.projection:
        outputs, inputs = given.shape
        layer = nn.Linear(inputs, outputs, bias=given.bias is not None)
        load_layer(layer, given.read(), given.bias)
        layers.append(layer)
    if layers and dim not in (None, layers[-1].out_features):
        raise InputError(
            f"{start.checkpoint.name} gives tokens vectors of {layers[-1].out_features} numbers, "
            f"token_dim={dim} was requested. Leave it out, or start from another model"
        )
    if not layers:
        layers = [nn.Linear(width, dim or _DIM, bias=False)]
        nn.init.orthogonal_(layers[0].weight, generator=generator)
    return layers


class LateScorer:
    """The `scores` of `LateModel` for evaluation: the network with its current weights."""

    def __init__(self, network: LateNetwork) -> None:
        self._network = network
        self.name = network.checkpoint.name

    @property
    def dim(self) -> int:
        return self._network.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        raise InputError(
            f"{self.name} is trained for late interaction, which makes a vector of each token, not one of a text"
        )

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n,) the MaxSim of each query `left[i]` and document `right[i]`; each distinct text runs once."""
        from gemel.vectors.maxsim import maxsim

        queries, documents = self._encode("query", left), self._encode("document", right)
        pairs = zip(left, right, strict=True)
        return np.array([maxsim(queries[one], [documents[other]])[0] for one, other in pairs], np.float32)

    def _encode(self, side: SearchSide, texts: Sequence[str]) -> dict[str, Vectors]:
        import torch

        network = self._network
        distinct = sorted(set(texts), key=len)
        tokens = network.tokens([(side, text) for text in distinct])
        vectors: list[Vectors] = []
        was_training = network.module.training
        network.module.eval()
        try:
            with torch.no_grad():
                for part in _calls(tokens):
                    rows = to_numpy(network.forward(part))
                    vectors += [row[: len(each.counted)] for row, each in zip(rows, part, strict=True)]
        finally:
            network.module.train(was_training)
        return dict(zip(distinct, vectors, strict=True))


def _calls(tokens: Sequence[LateTokens]) -> list[Sequence[LateTokens]]:
    """Consecutive texts, about `_CALL_TOKENS` tokens per call."""
    calls, start, room = [], 0, _CALL_TOKENS
    for row, each in enumerate(tokens):
        room -= len(each.ids)
        if room <= 0 or row + 1 == len(tokens):
            calls.append(tokens[start : row + 1])
            start, room = row + 1, _CALL_TOKENS
    return calls
