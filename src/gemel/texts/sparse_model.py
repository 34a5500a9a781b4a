"""`load_sparse` gives a `SparseModel`, which turns texts into weights of words: SPLADE and models like it.

Few of the weights are not zero, so that an inverted index finds documents as it does for BM25; and a score can be
explained, because it is a sum over words.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np

from gemel.checkpoint.fingerprint import weights_hash
from gemel.checkpoint.folder import Checkpoint, SearchSide
from gemel.checkpoint.sources import find_model, given_name
from gemel.checkpoint.sparse import (
    AutoEncoder,
    SparseCheckpoint,
    SparsePart,
    Splade,
    TokenLayer,
    TokenWeights,
    read_sparse,
    sides_of,
)
from gemel.encoder.batches import Lanes, Positions, distinct_rows, run
from gemel.encoder.engines.engine import Engine, EnginePool
from gemel.encoder.head import check_finite
from gemel.encoder.passages import split_texts
from gemel.encoder.sparse import WordWeights, read_masked_head, strongest_dimensions, token_weights
from gemel.encoder.tokenizer import (
    PreparedTexts,
    TextPreparer,
    TextTokenizer,
    TokenIds,
    Windows,
    check_texts,
    refuse_long,
    warn_of_long,
)
from gemel.errors import InputError, ModelError
from gemel.files.machine import usable_cores
from gemel.model import BLOCK, Model
from gemel.options import EncodeOptions, EngineName, Precision, SparseKeywords, SparseOptions
from gemel.terminal import Progress
from gemel.types import FixedAttributes, ShownResult, Vectors
from gemel.vectors.sparse import SparseRow, SparseVectors, largest

_ADVICE = "Shorten them, or use on_long='truncate' to cut them without this line"


@dataclass(frozen=True)
class WordMatch(ShownResult):
    """A word that a query and a document share, and what it adds to their score."""

    token: str
    query: float
    """Its weight in the query."""
    document: float
    contribution: float
    """The product of the two weights."""


@dataclass(frozen=True)
class SparseExplanation(ShownResult):
    """Why a document has its score for a query."""

    score: float
    matches: tuple[WordMatch, ...]
    """The words of both; the one that contributes most is the first, and all contributions add up to the score."""
    missing: tuple[tuple[str, float], ...]
    """Words of the query that the document does not have, with their weights, heaviest first."""

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return (asdict(match) for match in self.matches)


def load_sparse(
    model: str | Path,
    *,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    device: str = "cpu",
    revision: str | None = None,
    offline: bool = False,
) -> SparseModel:
    """The sparse encoder in a folder, or of a name: from the cache or the Hugging Face Hub.

    `precision` is the default of encoding. `offline`: nothing is downloaded.
    """
    folder = find_model(model, revision=revision, offline=offline)
    checkpoint = read_sparse(folder, name=given_name(model, folder), offline=offline)
    return SparseModel(checkpoint, precision=precision, engine=engine, device=device)


class SparseModel(FixedAttributes):
    """Turns texts into weights of words. Safe to use from several threads.

    Batch invariance: the weights of a text are the same bits alone, in any batch, in any order, with any number of
    threads. A pickled model is the path of its folder, from which it is loaded again.
    """

    _settable = frozenset({"checkpoint", "precision"})

    def __init__(
        self,
        checkpoint: SparseCheckpoint | str | Path,
        *,
        precision: Precision = "float32",
        engine: EngineName = "auto",
        device: str = "cpu",
    ) -> None:
        if isinstance(checkpoint, str | Path):  # SparseModel("name") is load_sparse("name")
            checkpoint = read_sparse(find_model(checkpoint))
        self.checkpoint = checkpoint
        self.precision: Precision = EncodeOptions(precision=precision).precision or "float32"
        self._where = engine, device
        self._document = self._open(checkpoint.document)
        self._query = self._document if checkpoint.query is None else self._open(checkpoint.query)
        if self._query.dim != self._document.dim:
            raise ModelError(
                f"{self.name}: queries have weights for {self._query.dim:,} words and documents for "
                f"{self._document.dim:,}: they cannot be compared"
            )

    @property
    def name(self) -> str:
        """The name that was given to `load_sparse`, or the name of the folder."""
        return self.checkpoint.name

    @property
    def dim(self) -> int:
        """Columns of a vector: words of the vocabulary, or dimensions."""
        return self._document.dim

    @property
    def max_length(self) -> int | None:
        """Tokens of a document that count, special tokens included; None: all."""
        return self._document.preparer.limit(EncodeOptions())

    @property
    def engine_name(self) -> str:
        """native, onnxruntime, numpy or torch; static where no network runs. Of documents."""
        return self._document.engine_name

    @property
    def engine(self) -> Engine | None:
        """What runs the network of documents in the model's own precision; None: a table of weights."""
        return self._document.engine

    @property
    def tokenizer(self) -> TextTokenizer:
        """That of documents; safe to use from several threads."""
        return self._document.preparer.tokenizer

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The name of each column: a token, or the number of a dimension that has no name."""
        if isinstance(self.checkpoint.document.step, AutoEncoder):
            return tuple(map(str, range(self.dim)))
        names = self._document.preparer.tokenizer.names(np.arange(self.dim, dtype=np.int32))
        # The table may have rows for tokens that the tokenizer does not have.
        return tuple(name or f"[{number}]" for number, name in enumerate(names))

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of everything that weights depend on; computed on first use."""
        facts = []
        for part in sides_of(self.checkpoint).values():
            step = asdict(part.step) if isinstance(part.step, Splade) else type(part.step).__name__
            normalize = isinstance(part.step, AutoEncoder) and part.step.normalize
            facts.append([weights_hash(_with_layer(part)), step, normalize])
        text = json.dumps([facts, self.checkpoint.max_active_dims], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def encode(
        self, texts: Sequence[str], options: SparseOptions | None = None, **keywords: Unpack[SparseKeywords]
    ) -> SparseVectors:
        """One row of weights per text, in their order.

        `keywords` are fields of SparseOptions: `encode(texts, max_active_dims=128)`. Where queries have modules
        of their own, use `encode_query` and `encode_document`, or the name of a prompt.
        """
        settings = SparseOptions.of(options, keywords)
        side, prompt_name = self._side_named(settings.prompt_name)
        return self._encode(side, texts, replace(settings, prompt_name=prompt_name))

    def encode_query(
        self, texts: Sequence[str], options: SparseOptions | None = None, **keywords: Unpack[SparseKeywords]
    ) -> SparseVectors:
        """`encode` for search queries: with their prompt and their modules, if the checkpoint has them."""
        settings = self._with_prompt("query", SparseOptions.of(options, keywords))
        return self._encode(self._query, texts, settings)

    def encode_document(
        self, texts: Sequence[str], options: SparseOptions | None = None, **keywords: Unpack[SparseKeywords]
    ) -> SparseVectors:
        """`encode` for texts that are searched: with their prompt and their modules, if the checkpoint has them."""
        settings = self._with_prompt("document", SparseOptions.of(options, keywords))
        return self._encode(self._document, texts, settings)

    def passages(self, texts: Sequence[str], *, tokens: int | None = None) -> list[list[str]]:
        """Each text as passages that `encode_document` reads whole; joined they are the text.

        `tokens`: the most of a passage, with special tokens and prompt; None: as many as the model reads.
        """
        options = self._with_prompt("document", SparseOptions()).encode_options()
        return split_texts(self._document.preparer, check_texts(texts), options, tokens)

    def explain(
        self,
        query: str,
        document: str,
        options: SparseOptions | None = None,
        **keywords: Unpack[SparseKeywords],
    ) -> SparseExplanation:
        """The words that a query and a document share, and what each adds to their score."""
        for name, text in (("query", query), ("document", document)):
            if not isinstance(text, str):
                raise InputError(f"explain takes one {name}, a string, got {type(text).__name__}")
        left = self.encode_query([query], options, **keywords)
        right = self.encode_document([document], options, **keywords)
        (columns, weights), (others, theirs) = left.row(0), right.row(0)
        _, mine, yours = np.intersect1d(columns, others, assume_unique=True, return_indices=True)
        words = self.vocabulary
        matches = [
            WordMatch(
                words[columns[i]], float(weights[i]), float(theirs[j]), float(weights[i]) * float(theirs[j])
            )
            for i, j in zip(mine, yours, strict=True)
        ]
        shared = {match.token for match in matches}
        return SparseExplanation(
            score=float(left.similarity(right)[0, 0]),
            matches=tuple(sorted(matches, key=lambda match: -match.contribution)),
            missing=tuple((token, weight) for token, weight in left.tokens(0) if token not in shared),
        )

    def prepare(self, texts: Sequence[str], options: EncodeOptions) -> PreparedTexts:
        """The first half of `encode`, for callers that batch by themselves: tokens now, `run` later.

        Duplicates are not removed, and there is no warning of texts that were cut; see `Windows.kept`.
        """
        side, prompt_name = self._side_named(options.prompt_name)
        own = replace(options, prompt_name=prompt_name)
        return PreparedTexts(tuple(side.preparer.windows(check_texts(texts), own)), options)

    def run(self, prepared: PreparedTexts) -> SparseVectors:
        """One row per text: the same bits as `encode`."""
        options = prepared.options
        side, _ = self._side_named(options.prompt_name)
        settings = SparseOptions(
            max_active_dims=self.checkpoint.max_active_dims,
            precision=options.precision,
            on_long="truncate",
            threads=options.threads,
            memory=options.memory,
        )
        silent = Progress(len(prepared.windows), "texts", shown=False)
        return SparseVectors.of(side.rows(list(prepared.windows), settings, silent), self.vocabulary)

    def side_options(self, side: SearchSide) -> EncodeOptions:
        """The options of `prepare` for texts of one side of a search, as `encode_query` and `encode_document` do it."""
        if self._query is not self._document:
            return EncodeOptions(prompt_name=side, on_long="truncate")
        return self._with_prompt(side, SparseOptions(on_long="truncate")).encode_options()

    def _side_named(self, prompt_name: str | None) -> tuple[_Side, str | None]:
        """What encodes texts with a prompt of this name, and the name, unless it only says which side is meant."""
        if self._query is self._document:
            return self._document, prompt_name
        own = self.checkpoint.document.checkpoint
        named = own.side_of(prompt_name)
        if named is None:
            raise InputError(
                f"the model {self.name} encodes queries and documents with different modules. Use encode_query or "
                "encode_document, or prompt_name='query' or 'document'"
            )
        return (
            self._query if named == "query" else self._document,
            prompt_name if prompt_name in own.prompts else None,
        )

    def _encode(self, side: _Side, texts: Sequence[str], settings: SparseOptions) -> SparseVectors:
        checked = check_texts(texts)
        options = settings.encode_options()
        side.preparer.warn_of_no_prompt(options, checked)
        most = settings.max_active_dims or self.checkpoint.max_active_dims
        distinct, rows = distinct_rows(checked)
        found: list[SparseRow] = []
        tokens, kept = np.zeros((2, len(distinct)), dtype=np.int64)
        progress = Progress(len(distinct), "texts", shown=settings.progress)
        for start in range(0, len(distinct), BLOCK):
            block = slice(start, start + BLOCK)
            windows = side.preparer.windows(distinct[block], replace(options, on_long="truncate"))
            tokens[block] = [window.tokens for window in windows]
            kept[block] = [window.kept for window in windows]
            if settings.on_long == "error":
                refuse_long(windows, distinct[block], checked, advice="'truncate'")
            found += side.rows(windows, replace(settings, max_active_dims=most), progress)
        progress.close()
        if settings.on_long == "warn":
            warn_of_long(tokens[rows], kept[rows], side.preparer.limit(options), advice=_ADVICE)
        return SparseVectors.of([found[row] for row in rows], self.vocabulary)

    def _with_prompt(self, side: SearchSide, settings: SparseOptions) -> SparseOptions:
        if settings.prompt is not None or settings.prompt_name is not None:
            return settings
        checkpoint = self.checkpoint.document.checkpoint
        name = checkpoint.prompt_name(side)
        none = name is None and checkpoint.default_prompt_name is None
        return replace(settings, prompt="" if none else None, prompt_name=name)

    def _open(self, part: SparsePart) -> _Side:
        engine, device = self._where
        if isinstance(part.step, Splade):
            return _WordSide(part.checkpoint, part.step, self.precision, engine, device)
        if isinstance(part.step, TokenWeights):
            return _TableSide(part.checkpoint, part.step)
        if isinstance(part.step, TokenLayer):
            return _TokenSide(part.checkpoint, part.step, self.precision, engine, device)
        return _DimensionSide(part.checkpoint, part.step, self.precision, engine, device)

    def __reduce__(self) -> tuple[Any, ...]:
        folder = str(self.checkpoint.document.checkpoint.folder.resolve())
        return _reload, (folder, self.name, self.weights_hash, self.precision, *self._where)

    def __repr__(self) -> str:
        return f"SparseModel({self.name!r}, dim={self.dim}, max_length={self.max_length}, engine={self.engine_name!r})"


def _reload(
    folder: str, name: str, weights: str, precision: Precision, engine: EngineName, device: str
) -> SparseModel:
    """The model that was pickled, from its folder."""
    checkpoint = read_sparse(Path(folder), name=name, offline=True)
    model = SparseModel(checkpoint, precision=precision, engine=engine, device=device)
    if model.weights_hash != weights:
        raise ModelError(
            f"the pickled model {name} differs from the one in {folder}: its files have changed. "
            "Load it again, and pickle that one"
        )
    return model


def _with_layer(part: SparsePart) -> Checkpoint:
    """The checkpoint with the file of the layer after it among its parts, for its hash."""
    if not isinstance(part.step, AutoEncoder | TokenLayer):
        return part.checkpoint
    return replace(part.checkpoint, parts=(*part.checkpoint.parts, *part.step.files))


class _Side(Protocol):
    """What encodes one side of a search."""

    preparer: TextPreparer
    dim: int
    engine_name: str
    engine: Engine | None

    def rows(
        self, windows: Sequence[Windows], settings: SparseOptions, progress: Progress
    ) -> list[SparseRow]:
        """One row per text."""
        ...


class _WordSide:
    """A network and the head of a masked language model."""

    def __init__(
        self, checkpoint: Checkpoint, step: Splade, precision: Precision, engine: EngineName, device: str
    ) -> None:
        self._checkpoint, self._precision = checkpoint, precision
        self.preparer = TextPreparer(checkpoint)
        head = read_masked_head(checkpoint.config, checkpoint.weights)
        self._heads: dict[Precision, WordWeights] = {}
        self._open_head, self._lock = partial(WordWeights, head, step), threading.Lock()
        self._engines = EnginePool(checkpoint, engine=engine, device=device)
        self._lanes = Lanes()
        self.dim = head.vocabulary
        self.engine: Engine | None = self._engines[precision]
        self.engine_name = self._engines[precision].name

    def rows(
        self, windows: Sequence[Windows], settings: SparseOptions, progress: Progress
    ) -> list[SparseRow]:
        found: dict[int, SparseRow] = {}
        precision = settings.precision or self._precision
        with self._lock:
            if precision not in self._heads:
                self._heads[precision] = self._open_head(precision)
        word_weights = self._heads[precision]
        cores = (settings.threads or usable_cores()) if len(windows) == 1 else 1  # else each lane has one

        def keep(positions: Positions, hidden: Vectors) -> None:
            check_finite(hidden, self._checkpoint)  # integers would hide it
            for position, weights in zip(positions, word_weights(hidden, cores), strict=True):
                check_finite(weights, self._checkpoint)
                found[int(position)] = largest(weights, settings.max_active_dims, settings.min_weight)
            progress.add(len(positions))

        engine = self._engines[precision]
        pieces = [window.pieces[0] for window in windows]
        run(engine, pieces, keep, lanes=self._lanes, threads=settings.threads, memory=settings.memory)
        none = largest(np.zeros(0, np.float32), None, None)  # of a text without a token
        return [found.get(position, none) for position in range(len(windows))]


class _TokenSide:
    """A sentence encoder and a layer on the hidden state of each token."""

    def __init__(
        self, checkpoint: Checkpoint, step: TokenLayer, precision: Precision, engine: EngineName, device: str
    ) -> None:
        self._checkpoint, self._step, self._precision = checkpoint, step, precision
        self.preparer = TextPreparer(checkpoint)
        self._left_out = words_left_out(checkpoint, self.preparer.tokenizer)
        self._engines = EnginePool(checkpoint, engine=engine, device=device)
        self._lanes = Lanes()
        self.dim = max(self.preparer.tokenizer.vocabulary, int(checkpoint.config.get("vocab_size") or 0))
        self.engine: Engine | None = self._engines[precision]
        self.engine_name = self._engines[precision].name

    def rows(
        self, windows: Sequence[Windows], settings: SparseOptions, progress: Progress
    ) -> list[SparseRow]:
        found: dict[int, SparseRow] = {}
        pieces = [window.pieces[0] for window in windows]

        def keep(positions: Positions, hidden: Vectors) -> None:
            for position, states in zip(positions.tolist(), hidden, strict=True):
                weights = token_weights(self._step, pieces[position], states, self._left_out, self.dim)
                check_finite(weights, self._checkpoint)
                found[position] = largest(weights, settings.max_active_dims, settings.min_weight)
            progress.add(len(positions))

        engine = self._engines[settings.precision or self._precision]
        run(engine, pieces, keep, lanes=self._lanes, threads=settings.threads, memory=settings.memory)
        none = largest(np.zeros(0, np.float32), None, None)  # of a text without a token
        return [found.get(position, none) for position in range(len(windows))]


def words_left_out(checkpoint: Checkpoint, tokenizer: TextTokenizer) -> TokenIds:
    """Tokens that BGE-M3 gives no weight: those around a text, padding, and unknown words."""
    settings = checkpoint.tokenizer_settings
    named = (settings.get(f"{name}_token", default) for name, default in _NO_WORDS.items())
    tokens = (each.get("content") if isinstance(each, dict) else each for each in named)
    ids = (tokenizer.id_of(token) for token in tokens if isinstance(token, str))
    return np.array(sorted({number for number in ids if number is not None}), dtype=np.int32)


_NO_WORDS = {"cls": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}


class _TableSide:
    """A table of weights: a word that a text has counts once, however often it has it."""

    engine_name = "static"
    engine: Engine | None = None

    def __init__(self, checkpoint: Checkpoint, step: TokenWeights) -> None:
        self._weights = step.weights
        self.preparer = TextPreparer(checkpoint)
        self.dim = len(step.weights)
        if self.preparer.tokenizer.vocabulary > self.dim:
            raise ModelError(
                f"{checkpoint.name}: the tokenizer has {self.preparer.tokenizer.vocabulary:,} tokens, and there are "
                f"weights for {self.dim:,}. One of the files belongs to another model"
            )

    def rows(
        self, windows: Sequence[Windows], settings: SparseOptions, progress: Progress
    ) -> list[SparseRow]:
        rows = []
        for window in windows:
            weights = np.zeros(self.dim, dtype=np.float32)
            weights[window.pieces[0]] = self._weights[window.pieces[0]]
            rows.append(largest(weights, settings.max_active_dims, settings.min_weight))
        progress.add(len(windows))
        return rows


class _DimensionSide:
    """A sentence encoder and a layer on its vectors."""

    def __init__(
        self, checkpoint: Checkpoint, step: AutoEncoder, precision: Precision, engine: EngineName, device: str
    ) -> None:
        self._step = step
        self._model = Model(checkpoint, precision=precision, engine=engine, device=device)
        self.preparer = TextPreparer(checkpoint)
        self.dim = len(step.bias)
        self.engine: Engine | None = self._model.engine
        self.engine_name = self._model.engine_name

    def rows(
        self, windows: Sequence[Windows], settings: SparseOptions, progress: Progress
    ) -> list[SparseRow]:
        options = replace(settings.encode_options(), on_long="truncate")
        vectors = self._model.run(PreparedTexts(tuple(windows), options))
        progress.add(len(windows))
        most, least = settings.max_active_dims, settings.min_weight
        return [largest(strongest_dimensions(self._step, vector), most, least) for vector in vectors]
