"""The sparse encoder (SPLADE, arXiv 2109.10086) in torch: the weights that inference gives words, with a gradient.

The body is transformers' network; the head of a masked language model gives each token a number for every word, of
which the largest of a text counts. A start without such a head gets a new one, fitted so that a text has its own words.
It is saved as a folder that `gemel.load_sparse` and SparseEncoder of sentence-transformers read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import ARCHITECTURES, MaskedLayout, architecture_of, first_class
from gemel.checkpoint.files import read_object_if_there
from gemel.checkpoint.folder import Checkpoint, SearchSide, is_sparse_encoder, read_checkpoint
from gemel.checkpoint.sparse import Splade, read_sparse
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.checkpoint.write import SavedModule, write_modules
from gemel.encoder.cross import layout_of
from gemel.encoder.sparse import read_masked_head
from gemel.encoder.tokenizer import TextTokenizer, TokenIds, check_texts, cut
from gemel.encoder.weights import activation_of
from gemel.errors import InputError, ModelError
from gemel.texts.sparse_model import SparseModel
from gemel.training.network import (
    TransformerBody,
    encode_without_gradient,
    load_layer,
    to_numpy,
    with_max_length,
)
from gemel.training.objectives.base import Needs, Objective
from gemel.training.options import TrainOptions
from gemel.training.packing import Pack, pack
from gemel.types import Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_KIND = "sentence_transformers.sparse_encoder.models."

Item = tuple[SearchSide, str]


@dataclass(frozen=True, eq=False)
class SparseStart:
    """What a sparse encoder is trained from."""

    checkpoint: Checkpoint
    layout: MaskedLayout
    step: Splade
    fresh: bool
    """The checkpoint has no head over words: a new one is fitted."""

    def notes(self) -> list[str]:
        """What was decided, for people to read."""
        if not self.fresh:
            return []
        return [
            f"{self.checkpoint.name} has no head over words (of a masked language model): a new one is fitted to the "
            "data; its table is that of the word embeddings"
        ]


def read_sparse_start(folder: Path, *, name: str | None = None) -> SparseStart:
    """The checkpoint to start from: a sparse encoder, a masked language model, or any encoder of a known form."""
    step = Splade()
    masked = first_class(read_object_if_there(folder / "config.json")).endswith("ForMaskedLM")
    if is_sparse_encoder(folder) or (masked and not (folder / "modules.json").is_file()):
        opened = read_sparse(folder, name=name)
        if opened.query is not None or opened.document.step not in (Splade(), Splade(logarithms=2)):
            raise ModelError(
                f"{opened.name} is a sparse encoder of a form that is used, but not trained. Start from one whose "
                "weights are the maximum over tokens (SpladePooling, max), or from a masked language model"
            )
        checkpoint = opened.document.checkpoint
        step = opened.document.step
    else:
        checkpoint = read_checkpoint(folder, name=name).plain
    architecture = architecture_of(checkpoint.config) if checkpoint.kind == "transformer" else None
    if architecture is None or architecture.masked is None:
        kind = checkpoint.config.get("model_type") if checkpoint.kind == "transformer" else "static"
        known = ", ".join(each for each in ARCHITECTURES if ARCHITECTURES[each].masked)
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which cannot be trained as a sparse encoder. "
            f"Supported: {known}"
        )
    layout = architecture.masked(checkpoint.config)
    return SparseStart(checkpoint, layout, step, f"{layout.dense}.weight" not in checkpoint.weights)


@dataclass(frozen=True, eq=False)
class SideTokens:
    """The tokens of a query or of a document."""

    side: SearchSide
    ids: TokenIds

    def __len__(self) -> int:
        return len(self.ids)


class SparseNetwork:
    """A `TrainableNetwork` with a weight for each word of the vocabulary; queries and documents share the network."""

    gives_vectors = False
    token_vectors = False

    def __init__(
        self,
        start: SparseStart,
        options: TrainOptions,
        device: torch.device,
        *,
        texts: Sequence[str] = (),
    ) -> None:
        """`texts`: a sample of the data, to which a new head is fitted."""
        from torch import nn

        self.start = replace(start, checkpoint=with_max_length(start.checkpoint, options.max_length))
        self.checkpoint = self.start.checkpoint
        self.body = TransformerBody(self.checkpoint, options)
        self.head = _open_head(start, self.body.width)
        self.module: nn.Module = nn.ModuleDict({"body": self.body.module, "head": self.head}).to(device)
        self.device = device
        self.max_length = self.checkpoint.max_length
        opened = open_tokenizer(self.checkpoint)
        self.tokenizer = TextTokenizer(opened.tokenizer, special=True, cut=opened.truncation_side)
        self.vocabulary = self.dim = len(self._table())
        self.prompt = self.checkpoint.prompts.get(self.checkpoint.default_prompt_name or "", "")
        if start.fresh and texts:
            self._fit_head(texts)
        self.inference_free = options.inference_free
        if self.inference_free:
            self._add_query_table(texts)

    def items(self, columns: tuple[list[str], ...]) -> tuple[list[Item], ...]:
        """The first of several columns are queries, all others documents."""
        sides: list[SearchSide] = ["query" if len(columns) > 1 else "document"]
        sides += ["document"] * (len(columns) - 1)
        return tuple([(side, text) for text in column] for side, column in zip(sides, columns, strict=True))

    def tokens(
        self,
        items: Sequence[Any],
        *,
        noise: float = 0.0,
        rng: np.random.Generator | None = None,
        prompt: str | None = None,
    ) -> list[SideTokens]:
        """Token ids of each item with special tokens, truncated; `prompt`: instead of the checkpoint's default."""
        assert not noise, "no objective of a sparse encoder uses noise"
        before = self.prompt if prompt is None else prompt
        contents = self.tokenizer.content(
            [before + text for text in check_texts([text for _, text in items])]
        )
        return [
            SideTokens(side, cut(content, self.tokenizer.special, self.max_length, "truncate").pieces[0])
            for (side, _), content in zip(items, contents, strict=True)
        ]

    def forward(self, tokens: Sequence[SideTokens]) -> Tensor:
        """(n, vocabulary) weights, as `SparseModel.encode` gives them."""
        if not self.inference_free:
            return self._by_network(tokens)
        import torch

        weights = self._bias().new_zeros(len(tokens), self.vocabulary)
        for side, by_side in (("query", self._by_table), ("document", self._by_network)):
            rows = [row for row, each in enumerate(tokens) if each.side == side]
            if rows:
                where = torch.tensor(rows, device=self.device)
                weights = weights.index_copy(0, where, by_side([tokens[row] for row in rows]))
        return weights

    def _by_table(self, tokens: Sequence[SideTokens]) -> Tensor:
        """The weights of words that do not depend on their context; a word that a text has counts once."""
        import torch

        has = torch.zeros(len(tokens), self.vocabulary, device=self.device)
        for row, each in enumerate(tokens):
            has[row, torch.from_numpy(each.ids.astype(np.int64)).to(self.device)] = 1
        return has * self._query_table()

    def _query_table(self) -> Tensor:
        """(vocabulary,) not below zero, and zero for special tokens."""
        table: Tensor = (self.head["table"]["query"] * _FASTER).relu()
        special = [number for number in self.tokenizer.special_ids if number < self.vocabulary]
        allowed = table.new_ones(self.vocabulary)
        allowed[special] = 0
        return table * allowed

    def _add_query_table(self, texts: Sequence[str]) -> None:
        """A weight of each word, which starts as its inverse document frequency in `texts`."""
        import torch
        from torch import nn

        tokens = self.tokens([("document", text) for text in dict.fromkeys(texts)])
        rarity = _rarity(tokens, self.vocabulary) if tokens else np.ones(self.vocabulary)
        start = torch.from_numpy(rarity.astype(np.float32) / _FASTER).to(self.device)
        cast("nn.ParameterDict", self.head["table"])["query"] = nn.Parameter(start)

    def _by_network(self, tokens: Sequence[SideTokens]) -> Tensor:
        texts = pack([each.ids for each in tokens], self.device)
        states = self._transform(self.body.hidden(texts))
        table, bias = self._table(), self._bias()
        weights: Tensor = _largest_of_text().apply(states, table, bias, texts)
        for _ in range(self.start.step.logarithms):
            weights = weights.log1p()
        return weights[texts.back]

    def _transform(self, hidden: Tensor) -> Tensor:
        """(T, width) -> (T, width) float32: what the word table is multiplied with."""
        states: Tensor = self.head["norm"](self._activate(self.head["dense"](hidden)))
        return states.float()

    def _activate(self, states: Tensor) -> Tensor:
        from torch.nn.functional import gelu, relu, silu

        name = activation_of({"hidden_act": self.start.layout.activation})
        if name == "gelu-tanh":
            return gelu(states, approximate="tanh")
        activated: Tensor = {"gelu": gelu, "relu": relu, "silu": silu}[name](states)  # type: ignore[operator]
        return activated

    def _table(self) -> Tensor:
        """(vocabulary, width): that of the head where it has its own, or else that of the embeddings."""
        own = self.head["table"]
        table: Tensor = own["decoder"] if "decoder" in own else self._words()
        return table

    def _words(self) -> Tensor:
        module: Any = self.body.module
        words: Tensor = module.get_input_embeddings().weight
        return words

    def _bias(self) -> Tensor:
        own = self.head["table"]
        bias: Tensor = own["bias"] if "bias" in own else self._table().new_zeros(self.vocabulary)
        return bias

    def encoder(self) -> SparseTrainingEncoder:
        return SparseTrainingEncoder(self)

    def facts(self, texts: Sequence[str]) -> dict[str, float]:
        """The mean number of words with a weight, of `texts` as documents."""
        weights = self.encoder().encode(texts)
        return {"active_words": float((weights > 0).sum(axis=1).mean())}

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """The model as `gemel.load_sparse` and SparseEncoder of sentence-transformers read it."""
        layout = self.start.layout
        body = {
            name: tensor for name, tensor in self.body.weights().items() if not name.startswith("pooler.")
        }
        weights = {f"{layout_of(self.checkpoint.config).encoder}{name}": body[name] for name in body}
        for part, name in (("dense", layout.dense), ("norm", layout.norm)):
            weights |= {f"{name}.{key}": value for key, value in self.head[part].state_dict().items()}
        own = self.head["table"]
        if "decoder" in own:
            weights[layout.decoder] = own["decoder"]
        if "bias" in own and layout.bias is not None:
            weights[layout.bias] = own["bias"]
        double = self.start.step.logarithms == 2
        pooling = {
            "pooling_strategy": "max",
            "activation_function": "log1p_relu" if double else "relu",
            "word_embedding_dimension": self.dim,
        }
        architecture = architecture_of(self.checkpoint.config)
        assert architecture is not None
        query = to_numpy(self._query_table()) if self.inference_free else None
        write_modules(
            self.checkpoint,
            folder,
            network=f"{_KIND}MLMTransformer",
            weights={name: to_numpy(tensor) for name, tensor in weights.items()},
            config={
                "architectures": [f"{architecture.class_prefix}ForMaskedLM"],
                "tie_word_embeddings": "decoder" not in own,
            },
            modules=_saved_modules(pooling, query),
            network_folder="" if query is None else _DOCUMENTS[0],
            settings={"model_type": "SparseEncoder", "similarity_fn_name": "dot"},
        )

    # A new head.

    def _fit_head(self, texts: Sequence[str]) -> None:
        """Fit the new head so that each token of `texts` gives its own word a weight, and few others.

        The layer is a regression from the states of tokens to vectors whose product with the word table is large for
        the token's word only. Its bias keeps the activation in the part where it is linear, and the norm removes it.
        """
        import torch

        table = to_numpy(self._table()).astype(np.float64)
        tokens = self.tokens([("document", text) for text in dict.fromkeys(texts)])
        hidden, ids = self._states(tokens)
        gram = table.T @ table / len(table)
        ridge = _RIDGE * np.trace(gram) / len(gram)
        targets = np.linalg.solve(gram + ridge * np.eye(len(gram)), table[ids].T).T
        mean, center = hidden.mean(0), targets.mean(0)
        states = hidden - mean
        inner = states.T @ states
        inner += np.eye(len(inner)) * _RIDGE * np.trace(inner) / len(inner)
        weight = np.linalg.solve(inner, states.T @ (targets - center)).T
        outputs = states @ weight.T
        weight /= max(float(outputs.std()), 1e-12)
        dense = cast("nn.Linear", self.head["dense"])
        with torch.no_grad():
            dense.weight.copy_(torch.from_numpy(weight))
            if dense.bias is not None:
                dense.bias.copy_(torch.from_numpy(_LINEAR - weight @ mean))
            self._scale_head(hidden, ids, _rarity(tokens, self.vocabulary))

    def _scale_head(
        self, hidden: NDArray[np.float64], ids: NDArray[np.int64], rarity: NDArray[np.float64]
    ) -> None:
        """Scale the norm and set the bias of words: a token's own word is above zero, about `_WORDS` others too.

        The bias of a word that many texts have is lower: its weight starts near zero.
        """
        import torch

        rows = np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLE_TOKENS)).astype(np.int64)
        states = self._transform(torch.from_numpy(hidden[rows]).float().to(self.device))
        logits = states @ self._table().T
        own = logits.gather(1, torch.from_numpy(ids[rows])[:, None].to(self.device))[:, 0]
        limit = logits.topk(min(_WORDS, self.vocabulary), dim=1).values[:, -1].median()
        scale = _OWN_WORD / (own.median() - limit).clamp(min=1e-3)
        norm = cast("nn.LayerNorm", self.head["norm"])
        norm.weight.mul_(scale)
        if "bias" in self.head["table"]:
            bias = -float(limit * scale) - _OWN_WORD * (1 - rarity)
            self._bias().copy_(torch.from_numpy(bias))

    def _states(self, tokens: Sequence[SideTokens]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The state and the id of each token that is no special token, of the texts that fit in the sample."""
        import torch

        special = np.asarray(sorted(self.tokenizer.special_ids), dtype=np.int64)
        states, ids, count = [], [], 0
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad():
            for start in range(0, len(tokens), _FIT_TEXTS):
                texts = pack([each.ids for each in tokens[start : start + _FIT_TEXTS]], self.device)
                own = texts.ids.cpu().numpy()
                words = ~np.isin(own, special)
                states.append(to_numpy(self.body.hidden(texts))[words].astype(np.float64))
                ids.append(own[words])
                count += int(words.sum())
                if count >= _FIT_TOKENS:
                    break
        self.module.train(was_training)
        if not count:
            raise InputError("the data has no text with a word, to which the new head could be fitted")
        return np.concatenate(states), np.concatenate(ids)


_DOCUMENTS = ("document_0_MLMTransformer", "document_1_SpladePooling")
_QUERIES = "query_0_SparseStaticEmbedding"


def _saved_modules(pooling: Mapping[str, Any], query: NDArray[np.float32] | None) -> list[SavedModule]:
    """The modules after the network; with a table for queries, a Router of both sides comes first."""
    files = {"config.json": pooling}
    if query is None:
        return [SavedModule(f"{_KIND}SpladePooling", "1_SpladePooling", files)]
    structure = {"query": [_QUERIES], "document": list(_DOCUMENTS)}
    types = {name: _KIND + name.rpartition("_")[2] for names in structure.values() for name in names}
    parameters = {"default_route": "document", "allow_empty_key": True}
    router = {"types": types, "structure": structure, "parameters": parameters}
    return [
        SavedModule("sentence_transformers.models.Router", "", {"router_config.json": router}),
        SavedModule("", _DOCUMENTS[1], files),
        SavedModule("", _QUERIES, {"config.json": {"frozen": False}}, {"weight": query}, tokenizer=True),
    ]


_FASTER = 50.0  # the table of queries learns so many times as fast as the network
_RIDGE = 1e-2
_LINEAR = 6.0  # of outputs with a standard deviation of 1: gelu and relu are linear there
_OWN_WORD = 3.0  # the number of a token's own word, before log(1 + x)
_WORDS = 10  # that a token gives a weight at the start
_FIT_TEXTS, _FIT_TOKENS, _SAMPLE_TOKENS = 64, 40_000, 2048


def _rarity(tokens: Sequence[SideTokens], vocabulary: int) -> NDArray[np.float64]:
    """(vocabulary,) the inverse document frequency, from 0 for a word of every text to 1 for one of at most one."""
    counts = np.zeros(vocabulary)
    for each in tokens:
        counts[np.unique(each.ids)] += 1
    return np.asarray(1 - np.log(np.maximum(counts, 1)) / max(np.log(len(tokens)), 1e-12))


def _open_head(start: SparseStart, width: int) -> nn.ModuleDict:
    """dense, norm, and a table of the head's own where it has one; its weights, or those of a new head."""
    import torch
    from torch import nn

    layout, checkpoint = start.layout, start.checkpoint
    dense = nn.Linear(width, width, bias=layout.dense_bias)
    norm = nn.LayerNorm(width, eps=layout.epsilon, bias=layout.norm_bias)
    own: dict[str, nn.Parameter] = {}
    if start.fresh:
        nn.init.eye_(dense.weight)
        if dense.bias is not None:
            nn.init.zeros_(dense.bias)
        words = _rows_of_words(checkpoint)
        if layout.bias is not None:
            own["bias"] = nn.Parameter(torch.zeros(words))
    else:
        head = read_masked_head(checkpoint.config, checkpoint.weights)
        load_layer(dense, head.weight, head.bias)
        load_layer(norm, head.norm.weight, head.norm.bias)
        if checkpoint.config.get("tie_word_embeddings") is False and layout.decoder in checkpoint.weights:
            own["decoder"] = nn.Parameter(torch.from_numpy(np.array(head.table, dtype=np.float32)))
        if head.table_bias is not None:
            own["bias"] = nn.Parameter(torch.from_numpy(np.array(head.table_bias, dtype=np.float32)))
    return nn.ModuleDict({"dense": dense, "norm": norm, "table": nn.ParameterDict(own)})


def _rows_of_words(checkpoint: Checkpoint) -> int:
    architecture = architecture_of(checkpoint.config)
    assert architecture is not None
    name = next(each for each in checkpoint.weights if each.endswith(architecture.word_table))
    return int(checkpoint.weights.shape(name)[0])


@cache
def _largest_of_text() -> Any:  # noqa: ANN401 - a class of torch, which is imported when it is first used
    """The product of tokens and words, reduced to the largest number of each text and word; below zero it is 0.

    Its gradient reaches one token of each text and word, and only words above zero: it is computed for those alone.
    The table of all tokens and words is never in memory at once.
    """
    import torch

    class LargestOfText(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, states: Tensor, table: Tensor, bias: Tensor, texts: Pack) -> Tensor:  # noqa: ANN401
            shape = texts.texts, len(table)
            largest = states.new_zeros(shape)
            tokens = torch.zeros(shape, dtype=torch.int32, device=states.device)
            start = 0
            with torch.autocast(states.device.type, enabled=False):
                for row, length in enumerate(texts.lengths.tolist()):
                    if length:
                        numbers, where = (states[start : start + length] @ table.T).max(0)
                        largest[row] = numbers + bias
                        tokens[row] = where + start
                    start += length
            largest.relu_()
            ctx.save_for_backward(states, table, largest, tokens)
            return largest

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # noqa: ANN401
            states, table, largest, tokens = ctx.saved_tensors
            gradient = gradient * (largest > 0)
            rows, words = gradient.nonzero(as_tuple=True)
            values, owners = gradient[rows, words], tokens[rows, words].long()
            shape = len(states), len(table)
            given = torch.sparse_coo_tensor(
                torch.stack([owners, words]), values, shape, check_invariants=False
            )
            back = torch.sparse_coo_tensor(
                torch.stack([words, owners]), values, shape[::-1], check_invariants=False
            )
            with torch.autocast(states.device.type, enabled=False):
                of_states, of_table = torch.sparse.mm(given, table), torch.sparse.mm(back, states)
            return of_states, of_table, gradient.sum(0), None

    return LargestOfText


class SparseTrainingEncoder:
    """An `Encoder` for evaluation: rows with a number for each word, mostly zeros."""

    def __init__(self, network: SparseNetwork) -> None:
        self._network = network
        self.name = network.checkpoint.name

    @property
    def dim(self) -> int:
        return self._network.dim

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> Vectors:
        """(n, vocabulary) float32 in the order of `texts`; each distinct text runs once."""
        return self._encode("document", texts, prompt)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        return self._encode("query", texts, self._prompt("query"))

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        return self._encode("document", texts, self._prompt("document"))

    def _encode(self, side: SearchSide, texts: Sequence[str], prompt: str | None) -> Vectors:
        distinct = list(dict.fromkeys(texts))
        tokens = self._network.tokens([(side, text) for text in distinct], prompt=prompt)
        rows = {text: row for row, text in enumerate(distinct)}
        return encode_without_gradient(self._network, tokens)[[rows[text] for text in texts]]

    def _prompt(self, side: SearchSide) -> str | None:
        checkpoint = self._network.checkpoint
        name = checkpoint.prompt_name(side)
        return None if name is None else checkpoint.prompts[name]


@dataclass(frozen=True, eq=False)
class RowsOfWords:
    """A `SparseModel` as an `Encoder`, for evaluation: rows with a number for each word."""

    model: SparseModel

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dim(self) -> int:
        return self.model.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self.model.encode(texts).to_dense()

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        return self.model.encode_query(texts).to_dense()

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        return self.model.encode_document(texts).to_dense()


# The regularizer, which keeps the weights of most words at zero.


def flops(weights: Tensor) -> Tensor:
    """The FLOPS regularizer (arXiv 2004.05665): the squared mean weight of each word in the batch, summed."""
    return weights.abs().mean(0).square().sum()


@dataclass(frozen=True)
class FlopsRegularized(Objective):
    """An objective and the FLOPS regularizer of queries (the first column) and of documents (all others)."""

    objective: Objective
    query: float
    document: float
    warmup: float
    share: float = 1.0
    """Of the weights of the regularizers, at this step."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.objective.name

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return self.objective.needs

    def at(self, done: float) -> FlopsRegularized:
        """The weights rise with the square of the steps, so that the network can first learn what is similar."""
        share = min(1.0, done / self.warmup) ** 2 if self.warmup else 1.0
        return replace(self, objective=self.objective.at(done), share=share)

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        import torch

        queries, *documents = vectors
        extra = self.query * flops(queries) + self.document * flops(torch.cat(documents))
        return self.objective(vectors, label, weights) + self.share * extra
