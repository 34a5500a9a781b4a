"""`load_late` gives a `LateModel` (ColBERT), which makes a vector of each token of a text, and compares texts by them.

Documents are encoded before queries are known, as with one vector per text; a score compares every token of the query
with every token of the document, which is more accurate than one vector, and takes more memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from gemel.checkpoint.files import has_m3_layers
from gemel.checkpoint.fingerprint import weights_hash
from gemel.checkpoint.folder import SearchSide
from gemel.checkpoint.modules import is_late_model
from gemel.checkpoint.sources import find_model, given_name
from gemel.cross_model import CrossModel, Ranking, load_cross
from gemel.encoder.batches import Lanes, Positions, distinct_rows, run
from gemel.encoder.cross import check_pairs, check_text_list
from gemel.encoder.engines.engine import EnginePool, MixingEngine
from gemel.encoder.head import check_finite
from gemel.encoder.late import (
    LateCheckpoint,
    LateTokenizer,
    LateTokens,
    UnseenTokensNetwork,
    as_windows,
    late_network,
    read_late,
)
from gemel.encoder.passages import Divider, passage_limit
from gemel.encoder.tokenizer import TextTokenizer, refuse_long, warn_of_long
from gemel.errors import InputError
from gemel.options import (
    CrossKeywords,
    CrossOptions,
    EncodeOptions,
    EngineName,
    Precision,
    check_count,
    with_keywords,
)
from gemel.terminal import Progress
from gemel.types import FixedAttributes, ShownResult, Vectors
from gemel.vectors.maxsim import LateOutput, MultiVectors, join_texts, maxsim
from gemel.vectors.similarity import normalize

_BLOCK = 1024  # documents that are compared at once, so that their vectors are not all in memory

_ADVICE = "Shorten them, or use on_long='truncate' to cut them without this line"


@dataclass(frozen=True)
class TokenMatch(ShownResult):
    """A token of a query, the token of a document that matches it best, and what the pair adds to their score."""

    query: str
    """As the vocabulary writes it; a mask token where the query was filled up."""
    document: str
    product: float
    """Of their two vectors: the largest that the token of the query has with a token of the document."""
    start: int | None
    """Where the token of the document starts, in characters; None: a special token, or one of the prompt."""
    stop: int | None


@dataclass(frozen=True)
class LateExplanation(ShownResult):
    """Why a document has its MaxSim for a query."""

    score: float
    matches: tuple[TokenMatch, ...]
    """One for each token of the query, in their order; all products add up to the score."""

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return (asdict(match) for match in self.matches)


def load_late(
    model: str | Path,
    *,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    device: str = "cpu",
    query_length: int | None = None,
    document_length: int | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> LateModel:
    """The model for late interaction in a folder, or of a name: from the cache or the Hugging Face Hub.

    `query_length` and `document_length`: tokens that count, instead of the checkpoint's own numbers; queries are filled
    up to theirs. `precision` is the default of encoding. `offline`: nothing is downloaded.
    """
    folder = find_model(model, revision=revision, offline=offline)
    checkpoint = _with_lengths(
        read_late(folder, name=given_name(model, folder)), query_length, document_length
    )
    return LateModel(checkpoint, precision=precision, engine=engine, device=device)


def load_reranker(model: str | Path) -> CrossModel | LateModel:
    """What `rerank` takes: `load_late` or `load_cross`, as the model is; of BGE-M3 the vectors of tokens."""
    folder = find_model(model)
    return load_late(model) if is_late_model(folder) or has_m3_layers(folder) else load_cross(model)


def _with_lengths(checkpoint: LateCheckpoint, query: int | None, document: int | None) -> LateCheckpoint:
    if query is not None:
        check_count("query_length", query)
        expansion = checkpoint.expansion and replace(checkpoint.expansion, length=query)
        own = replace(checkpoint.query, length=query)
        checkpoint = replace(checkpoint, query=own, expansion=expansion)
    if document is not None:
        check_count("document_length", document)
        checkpoint = replace(checkpoint, document=replace(checkpoint.document, length=document))
    return checkpoint


class LateModel(FixedAttributes):
    """Makes a vector of each token of a text. Safe to use from several threads.

    Batch invariance: the vectors of a text are the same bits alone, in any batch, in any order, with any number of
    threads. A pickled model is the path of its folder, from which it is loaded again.
    """

    _settable = frozenset({"checkpoint", "precision"})

    def __init__(
        self,
        checkpoint: LateCheckpoint | str | Path,
        *,
        precision: Precision = "float32",
        engine: EngineName = "auto",
        device: str = "cpu",
    ) -> None:
        if isinstance(checkpoint, str | Path):  # LateModel("name") is load_late("name")
            folder = find_model(checkpoint)
            checkpoint = read_late(folder, name=given_name(checkpoint, folder))
        if engine == "torch":
            raise InputError("engine 'torch' does not run late interaction. Use engine='auto'")
        self.checkpoint = checkpoint
        self.precision: Precision = EncodeOptions(precision=precision).precision or "float32"
        self._where = engine, device
        self._lanes = Lanes()
        self._network = late_network(checkpoint)
        self._tokenizer = LateTokenizer(checkpoint)
        self._engines = EnginePool(checkpoint.encoder, engine=engine, device=device, network=self._network)
        self._engines[self.precision]  # a network that cannot run here is refused now, not at the first text

    @property
    def name(self) -> str:
        """The name that was given to `load_late`, or the name of the folder."""
        return self.checkpoint.name

    @property
    def dim(self) -> int:
        """Numbers in the vector of a token."""
        return self._network.width

    @property
    def query_length(self) -> int | None:
        """Tokens of a query that count, special tokens included; None: all."""
        return self._tokenizer.limit("query")

    @property
    def document_length(self) -> int | None:
        """Tokens of a document that count, special tokens included; None: all."""
        return self._tokenizer.limit("document")

    @property
    def engine_name(self) -> str:
        """native, or onnxruntime and numpy, which leaves queries whose mask tokens are unseen to NumPy."""
        return self._engines[self.precision].name

    @property
    def score_kind(self) -> Literal["maxsim"]:
        """What `scores` and `rank` give."""
        return "maxsim"

    @property
    def tokenizer(self) -> TextTokenizer:
        """Texts to tokens and back; safe to use from several threads."""
        return self._tokenizer.texts

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of everything that vectors depend on; computed on first use."""
        checkpoint = self.checkpoint
        facts = [
            asdict(checkpoint.query),
            asdict(checkpoint.document),
            checkpoint.skipped,
            checkpoint.skipping,
        ]
        expansion = None if checkpoint.expansion is None else asdict(checkpoint.expansion)
        text = json.dumps([*facts, expansion, checkpoint.normalize], sort_keys=True)
        hashed = hashlib.sha256(f"{weights_hash(checkpoint.encoder)}{text}".encode())
        for layer in checkpoint.projection:
            hashed.update(np.ascontiguousarray(layer.read()).tobytes())
            hashed.update(b"" if layer.bias is None else np.ascontiguousarray(layer.bias).tobytes())
        return hashed.hexdigest()

    def passages(self, texts: Sequence[str], *, tokens: int | None = None) -> list[list[str]]:
        """Each text as passages that `encode_document` reads whole; joined they are the text.

        `tokens`: the most of a passage, with special tokens and prompt; None: as many as the model reads.
        """
        side = self.checkpoint.document
        most = passage_limit(tokens, self.document_length)
        checked = check_text_list(texts, "texts", "passages([text])")
        if most is None:
            return [[text] for text in checked]
        divider = Divider(self.tokenizer, side.prompt, most - (side.prefix is not None))
        return [[passage.text for passage in parts] for parts in divider.divide(checked)]

    def encode_query(
        self,
        texts: Sequence[str],
        options: CrossOptions | None = None,
        *,
        output: LateOutput = "float32",
        **keywords: Unpack[CrossKeywords],
    ) -> MultiVectors:
        """The token vectors of each query: with the prefix or prompt of queries, filled up with mask tokens.

        `keywords` are fields of CrossOptions; `max_length` is that of a query. `output`: float32, float16, int8 with a
        scale for each vector, or 2bit, residuals of centroids that are made from these texts.
        """
        settings = with_keywords(options or CrossOptions(), keywords, "late interaction")
        return self._encode(texts, "query", settings).as_form(output)

    def encode_document(
        self,
        texts: Sequence[str],
        options: CrossOptions | None = None,
        *,
        output: LateOutput = "float32",
        **keywords: Unpack[CrossKeywords],
    ) -> MultiVectors:
        """The token vectors of each document, without those of punctuation; arguments as for `encode_query`."""
        settings = with_keywords(options or CrossOptions(), keywords, "late interaction")
        return self._encode(texts, "document", settings).as_form(output)

    def scores(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> Vectors:
        """(n,) the MaxSim of each pair `queries[i]`, `documents[i]`, as `CrossModel.scores`; a text is encoded once.

        `max_length` is that of a document. All queries with all documents: `gemel.maxsim` of encoded texts.
        """
        settings = with_keywords(options or CrossOptions(), keywords, "late interaction")
        pairs = check_pairs(queries, documents)
        distinct, rows = distinct_rows([pair[0] for pair in pairs])
        vectors = self._encode(distinct, "query", replace(settings, max_length=None))
        distinct, columns = distinct_rows([pair[1] for pair in pairs])
        out = np.empty(len(pairs), dtype=np.float32)
        for start in range(0, len(distinct), _BLOCK):
            block = self._encode(distinct[start : start + _BLOCK], "document", settings)
            for pair in np.flatnonzero((columns >= start) & (columns < start + _BLOCK)):
                out[pair] = maxsim(vectors.of(int(rows[pair])), [block.of(int(columns[pair]) - start)])[0]
        return out

    def rank(
        self,
        query: str,
        documents: Sequence[str] | MultiVectors,
        k: int | None = None,
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> Ranking:
        """The `k` documents with the best MaxSim for `query` (None: all of them), best first.

        `documents`: texts, or what `encode_document` gave for them. Ties break on the lower position.
        """
        if not isinstance(query, str):
            raise InputError(f"rank takes one query, a string, got {type(query).__name__}")
        if k is not None:
            check_count("k", k)
        settings = with_keywords(options or CrossOptions(), keywords, "late interaction")
        if isinstance(documents, MultiVectors):
            encoded = self._encode([query], "query", replace(settings, max_length=None))
            score = maxsim(encoded.of(0), documents, threads=settings.threads)
        else:
            texts = check_text_list(documents, "documents", "rank(query, [document])")
            score = self.scores([query] * len(texts), texts, settings)
        best = np.argsort(-score, kind="stable")[:k]
        return Ranking(best, score[best], self.score_kind)

    def explain(
        self,
        query: str,
        document: str,
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> LateExplanation:
        """For each token of a query the best token of a document, and what the two add to the MaxSim.

        `max_length` is that of the document, as for `scores`.
        """
        for name, text in (("query", query), ("document", document)):
            if not isinstance(text, str):
                raise InputError(f"explain takes one {name}, a string, got {type(text).__name__}")
        settings = with_keywords(options or CrossOptions(), keywords, "late interaction")
        left = self._encode([query], "query", replace(settings, max_length=None))
        right = self._encode([document], "document", settings)
        score = float(maxsim(left.of(0), [right.of(0)])[0])
        if not len(right.tokens):
            return LateExplanation(score, ())
        products = left.of(0) @ right.of(0).T
        best = products.argmax(axis=1)
        spans = self._tokenizer.offsets(document, "document", settings.max_length)
        matches = (
            TokenMatch(token, right.tokens[at], float(products[row, at]), *spans[at])
            for row, (token, at) in enumerate(zip(left.tokens, best.tolist(), strict=True))
        )
        return LateExplanation(score, tuple(matches))

    def _encode(self, texts: Sequence[str], side: SearchSide, options: CrossOptions) -> MultiVectors:
        checked = check_text_list(texts, "texts", f"encode_{side}([text])")
        distinct, rows = distinct_rows(checked)
        ready = self._tokenizer.prepare(distinct, side, options.max_length, parallel=options.threads != 1)
        if options.on_long == "error":
            refuse_long(as_windows(ready), distinct, checked, advice="'truncate'")
        vectors = self._vectors(ready, options)
        if options.on_long == "warn":
            counts = np.array([(text.tokens, text.kept) for text in ready], dtype=np.int64).reshape(-1, 2)[
                rows
            ]
            limit = self._tokenizer.limit(side, options.max_length)
            what = "queries" if side == "query" else "documents"
            warn_of_long(counts[:, 0], counts[:, 1], limit, what=what, advice=_ADVICE)
        names = [self.tokenizer.names(text.ids[text.counted]) for text in ready]
        tokens = (token for row in rows for token in names[row])
        return join_texts([vectors[row] for row in rows], tokens, self.dim)

    def _vectors(self, texts: Sequence[LateTokens], options: CrossOptions) -> list[Vectors]:
        """The vectors of the tokens that count, text by text."""
        vectors: list[Vectors] = [np.zeros((0, self.dim), np.float32)] * len(texts)
        progress = Progress(len(texts), "texts", shown=options.progress)

        def finish(position: int, states: Vectors) -> None:
            check_finite(states, self.checkpoint.encoder)
            chosen = states[texts[position].counted]
            vectors[position] = normalize(chosen) if self.checkpoint.normalize else chosen
            progress.add(1)

        def keep(positions: Positions, hidden: Vectors) -> None:
            for position, states in zip(positions.tolist(), hidden, strict=True):
                finish(position, states)

        engine = self._engines[options.precision or self.precision]
        seen = np.array([text.keys for text in texts], dtype=np.int64)
        whole = np.arange(len(texts))
        if not isinstance(engine, MixingEngine):  # it cannot leave tokens unseen
            whole = np.array(
                [at for at, text in enumerate(texts) if text.keys == len(text.ids)], dtype=np.int64
            )
        run(
            engine,
            [texts[position].ids for position in whole.tolist()],
            lambda positions, hidden: keep(whole[positions], hidden),
            lanes=self._lanes,
            threads=options.threads,
            memory=options.memory,
            seen=seen[whole],
        )
        for position in np.setdiff1d(np.arange(len(texts)), whole).tolist():
            finish(position, self._unseen.run(texts[position]))
        progress.close()
        return vectors

    @cached_property
    def _unseen(self) -> UnseenTokensNetwork:
        return UnseenTokensNetwork(self._network)

    def __reduce__(self) -> tuple[Any, ...]:
        checkpoint = self.checkpoint
        expansion = checkpoint.expansion
        lengths = (
            checkpoint.query.length if expansion is None else expansion.length,
            checkpoint.document.length,
        )
        folder = str(checkpoint.encoder.folder.resolve())
        return _reload, (folder, self.name, lengths, self.precision, *self._where)

    def __repr__(self) -> str:
        return (
            f"LateModel({self.name!r}, dim={self.dim}, query_length={self.query_length}, "
            f"document_length={self.document_length}, engine={self.engine_name!r})"
        )


@lru_cache(maxsize=2)  # a pool sends the model with every task, and loads it once per process
def _reload(
    folder: str,
    name: str,
    lengths: tuple[int | None, int | None],
    precision: Precision,
    engine: EngineName,
    device: str,
) -> LateModel:
    """The model that was pickled, from its folder."""
    checkpoint = _with_lengths(read_late(Path(folder), name=name), *lengths)
    return LateModel(checkpoint, precision=precision, engine=engine, device=device)
