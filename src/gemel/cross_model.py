"""`load_cross` gives a `CrossModel`, which reads both texts of a pair and gives a score or probabilities of labels.

More accurate than comparing two vectors, and slower: nothing can be computed before the pair is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import architecture_of, least, max_positions, model_types
from gemel.checkpoint.cross import Activation, CrossCheckpoint, read_cross, write_cross
from gemel.checkpoint.fingerprint import weights_hash
from gemel.checkpoint.pair_prompt import AnswerTokens, PairPrompt
from gemel.checkpoint.sources import find_model, given_name
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.encoder.batches import Lanes, Positions, distinct_rows, run
from gemel.encoder.cross import (
    CrossHead,
    PairTokenizer,
    PromptTokenizer,
    answer_head,
    check_pairs,
    check_text_list,
    read_head,
    with_token_types,
)
from gemel.encoder.engines.engine import EnginePool
from gemel.encoder.engines.torch import TorchPairEngine
from gemel.encoder.head import sigmoid, softmax
from gemel.encoder.tokenizer import Windows, refuse_long, warn_of_long
from gemel.encoder.weights import read_network
from gemel.errors import InputError, ModelError
from gemel.options import CrossKeywords, CrossOptions, EncodeOptions, EngineName, Precision, check_count
from gemel.terminal import Progress
from gemel.types import FixedAttributes, ShownResult, Vectors

BLOCK = 8192  # pairs tokenized at once
_ADVICE = "Shorten them, or use on_long='truncate' to cut them without this line"


ScoreKind = Literal["logit", "probability"]


@dataclass(frozen=True, eq=False)
class Ranking(ShownResult):
    """Documents by their score for one query, best first; ties break on the lower position."""

    index: NDArray[np.int64]
    """(k,) positions in the documents."""
    score: Vectors
    """(k,)"""
    kind: ScoreKind | Literal["maxsim"]
    """What the scores are: probabilities from 0 to 1, logits, which have no bounds, or MaxSim of a `LateModel`."""

    def __len__(self) -> int:
        return len(self.index)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for rank, (position, score) in enumerate(zip(self.index, self.score, strict=True)):
            yield {"rank": rank + 1, "index": position, "score": score}


def load_cross(
    model: str | Path,
    *,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    device: str = "cpu",
    revision: str | None = None,
    offline: bool = False,
    template: str = "auto",
) -> CrossModel:
    """The cross-encoder in a folder, or of a name: from the cache or the Hugging Face Hub.

    `precision` is the default of scoring. `offline`: nothing is downloaded.
    `template`: what a decoder reads around the two texts. "auto": as its files or its name say. "none": nothing, where
    the texts have it already. "qwen3-reranker", "mxbai-rerank-v2": the prompts of those models.
    """
    checkpoint = _read(model, revision=revision, offline=offline, template=template)
    return CrossModel(checkpoint, precision=precision, engine=engine, device=device)


def _read(
    model: str | Path, *, revision: str | None = None, offline: bool = False, template: str = "auto"
) -> CrossCheckpoint:
    folder = find_model(model, revision=revision, offline=offline)
    return read_cross(folder, name=given_name(model, folder), template=template)


class CrossModel(FixedAttributes):
    """Scores pairs of texts. Safe to use from several threads.

    Batch invariance: a pair's score is the same bits alone, in any batch, in any order, with any number of threads.
    A pickled model is the path of its folder, from which it is loaded again: pools of processes can be given one.
    """

    _settable = frozenset({"checkpoint", "precision"})

    def __init__(
        self,
        checkpoint: CrossCheckpoint | str | Path,
        *,
        precision: Precision = "float32",
        engine: EngineName = "auto",
        device: str = "cpu",
    ) -> None:
        if isinstance(checkpoint, str | Path):  # CrossModel("name") is load_cross("name")
            checkpoint = _read(checkpoint)
        self.checkpoint = checkpoint
        self._where = engine, device
        self.precision: Precision = EncodeOptions(precision=precision).precision or "float32"
        self._lanes = Lanes()
        architecture = architecture_of(checkpoint.encoder.config)
        own = engine != "torch" and architecture is not None and architecture.head is not None
        parts = _own_parts if own else _torch_parts
        tokenizer = load_tokenizer(checkpoint.encoder)
        # A network that cannot run here is refused now, not at the first pair.
        opened = parts(checkpoint, precision=self.precision, engine=engine, device=device)
        self._engines, self._head, self._positions = opened.engines, opened.head, opened.positions
        self._tokenizer: PairTokenizer | PromptTokenizer = (
            PairTokenizer(tokenizer, vocabulary=opened.vocabulary, typed=checkpoint.typed)
            if checkpoint.prompt is None
            else PromptTokenizer(tokenizer, checkpoint.prompt)
        )

    @property
    def name(self) -> str:
        """The name that was given to `load_cross`, or the name of the folder."""
        return self.checkpoint.name

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of the columns of `probabilities`."""
        return self.checkpoint.labels

    @property
    def score_kind(self) -> ScoreKind:
        """What `scores` and `rank` give, as the checkpoint says: probabilities (0 to 1), or logits without bounds."""
        return "logit" if self.checkpoint.activation == "identity" else "probability"

    @property
    def max_length(self) -> int | None:
        """Tokens of a pair that count, special tokens included; None: all."""
        return least(self.checkpoint.encoder.max_length, self._positions)

    @property
    def engine_name(self) -> str:
        """native, onnxruntime, numpy or torch"""
        return self._engines[self.precision].name

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of everything that scores depend on; computed on first use."""
        config = self.checkpoint.encoder.config
        settings = {key: config.get(key) for key in ("classifier_pooling", "classifier_activation")}
        facts = {**settings, "activation": self.checkpoint.activation, "typed": self.checkpoint.typed}
        if self.checkpoint.prompt is not None or self.checkpoint.answers is not None:
            facts |= {"prompt": str(self.checkpoint.prompt), "answers": str(self.checkpoint.answers)}
        text = weights_hash(self.checkpoint.encoder) + json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def scores(
        self,
        left: Sequence[str],
        right: Sequence[str],
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> Vectors:
        """(n,) one score per pair `left[i]`, `right[i]`: `score_kind` says whether it is a probability or a logit.

        `keywords` are fields of CrossOptions: `scores(left, right, max_length=128)`.
        """
        self._check_one_output("scores")
        return self._score(self.logits(left, right, options, **keywords))

    def probabilities(
        self,
        left: Sequence[str],
        right: Sequence[str],
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> Vectors:
        """(n, k) the probability of each of `labels` for each pair, from 0 to 1 whatever `score_kind` is.

        A row adds up to 1, unless there is one label, or several may be true at once (multi-label classification).
        """
        logits = self.logits(left, right, options, **keywords)
        if len(self.labels) == 1 or self.checkpoint.activation == "sigmoid":
            return sigmoid(logits)
        return softmax(logits)

    def relation(
        self, left: Sequence[str], right: Sequence[str], **keywords: Unpack[CrossKeywords]
    ) -> Vectors:
        """`probabilities`, by the name that it has in `Model`; the task "nli" calls it."""
        if len(self.labels) == 1:
            raise InputError(
                f"{self.name} has one output, so no labels to choose from. Use scores(left, right)"
            )
        return self.probabilities(left, right, **keywords)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        k: int | None = None,
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> Ranking:
        """The `k` documents with the best scores for `query` (None: all of them), best first."""
        self._check_one_output("rank")
        if not isinstance(query, str):
            raise InputError(f"rank takes one query, a string, got {type(query).__name__}")
        if k is not None:
            check_count("k", k)
        texts = check_text_list(documents, "documents", "rank(query, [document])")
        logits = self.logits([query] * len(texts), texts, options, **keywords)
        best = np.argsort(-logits[:, 0], kind="stable")[:k]  # scores near 1 may be equal where logits differ
        return Ranking(best, self._score(logits[best]), self.score_kind)

    def logits(
        self,
        left: Sequence[str],
        right: Sequence[str],
        options: CrossOptions | None = None,
        **keywords: Unpack[CrossKeywords],
    ) -> Vectors:
        """(n, k) the outputs of the network for each pair, before a sigmoid or softmax."""
        settings = CrossOptions.of(options, keywords)
        pairs = check_pairs(left, right)
        distinct, rows = distinct_rows(pairs)
        logits = np.empty((len(distinct), len(self.labels)), dtype=np.float32)
        tokens, kept = np.zeros((2, len(distinct)), dtype=np.int64)
        progress = Progress(len(distinct), "pairs", shown=settings.progress)
        for start in range(0, len(distinct), BLOCK):
            block = slice(start, start + BLOCK)
            ready = self._tokens(distinct[block], settings)
            tokens[block], kept[block] = [pair.tokens for pair in ready], [pair.kept for pair in ready]
            if settings.on_long == "error":
                refuse_long(ready, distinct[block], pairs, name="pair {}", advice="'truncate'")
            logits[block] = self._logits(ready, settings, progress)
        progress.close()
        if settings.on_long == "warn":
            warn_of_long(tokens[rows], kept[rows], self._limit(settings), what="pairs", advice=_ADVICE)
        return logits[rows]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a folder that `load_cross`, transformers and sentence-transformers read."""
        if self.checkpoint.prompt is not None or self.checkpoint.answers is not None:
            raise InputError(
                f"{self.name} is a decoder with a prompt for its pairs, which is not written. Copy its folder: "
                f"{self.checkpoint.encoder.folder}"
            )
        return write_cross(
            folder,
            source=self.checkpoint.encoder,
            weights=self.checkpoint.encoder.weights,
            labels=self.labels,
            activation=self.checkpoint.activation,
            typed=self.checkpoint.typed,
            overwrite=overwrite,
        )

    def _tokens(self, pairs: Sequence[tuple[str, str]], options: CrossOptions) -> list[Windows]:
        left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return self._tokenizer.pairs(left, right, self._limit(options), parallel=options.threads != 1)

    def _logits(self, pairs: Sequence[Windows], options: CrossOptions, progress: Progress) -> Vectors:
        """One row per pair."""
        engine = self._engines[options.precision or self.precision]
        pooled = np.empty((len(pairs), engine.width), dtype=np.float32)

        def keep(positions: Positions, hidden: Vectors) -> None:
            pooled[positions] = self._head.pool(hidden)
            progress.add(len(positions))

        ids = [pair.pieces[0] for pair in pairs]
        run(engine, ids, keep, lanes=self._lanes, threads=options.threads, memory=options.memory)
        return self._head.logits(pooled)

    def _score(self, logits: Vectors) -> Vectors:
        return logits[:, 0] if self.checkpoint.activation == "identity" else sigmoid(logits[:, 0])

    def _limit(self, options: CrossOptions) -> int | None:
        return least(options.max_length or self.max_length, self._positions)

    def _check_one_output(self, method: str) -> None:
        if len(self.labels) > 1:
            raise InputError(
                f"{self.name} has {len(self.labels)} labels ({', '.join(self.labels)}), so a pair has no single "
                f"score and {method} cannot work. Use probabilities(left, right)"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        checkpoint = self.checkpoint
        kept = (
            checkpoint.labels,
            checkpoint.activation,
            checkpoint.encoder.name,
            checkpoint.encoder.max_length,
            checkpoint.prompt,
            checkpoint.answers,
        )
        folder = str(checkpoint.encoder.folder.resolve())
        return _reload, (folder, self.weights_hash, kept, self.precision, *self._where)

    def __repr__(self) -> str:
        labels = f"one {self.score_kind}" if len(self.labels) == 1 else f"labels={list(self.labels)}"
        return (
            f"CrossModel({self.name!r}, {labels}, max_length={self.max_length}, engine={self.engine_name!r})"
        )


@lru_cache(maxsize=2)  # a pool sends the model with every task, and loads it once per process
def _reload(
    folder: str,
    weights: str,
    kept: tuple[tuple[str, ...], Activation, str, int | None, PairPrompt | None, AnswerTokens | None],
    precision: Precision,
    engine: EngineName,
    device: str,
) -> CrossModel:
    """The model that was pickled, from its folder."""
    labels, activation, name, max_length, prompt, answers = kept
    checkpoint = _read(Path(folder), template="auto" if prompt else "none")
    encoder = replace(checkpoint.encoder, name=name, max_length=max_length)
    checkpoint = replace(
        checkpoint, encoder=encoder, labels=labels, activation=activation, prompt=prompt, answers=answers
    )
    model = CrossModel(checkpoint, precision=precision, engine=engine, device=device)
    if model.weights_hash != weights:
        raise ModelError(
            f"the pickled model {name} differs from the one in {folder}: its files have changed. "
            "Load it again, and pickle that one"
        )
    return model


@dataclass(frozen=True, eq=False)
class _Parts:
    """What runs the pairs of one cross-encoder."""

    engines: EnginePool
    head: CrossHead
    vocabulary: int
    positions: int | None
    """Tokens of a pair that the network has positions for; None: any number."""


def _own_parts(
    checkpoint: CrossCheckpoint, *, precision: Precision, engine: EngineName, device: str
) -> _Parts:
    """gemel's own network and head."""
    encoder = checkpoint.encoder
    network = read_network(encoder.config, encoder.weights)
    if checkpoint.answers is None:
        head = read_head(encoder.config, encoder.weights, len(checkpoint.labels))
    else:
        head = answer_head(encoder.config, encoder.weights, network.word, checkpoint.answers)
    typed = with_token_types(network, encoder.config, encoder.weights) if checkpoint.typed else network
    engines = EnginePool(encoder, engine=engine, device=device, network=typed)
    engines[precision]
    return _Parts(engines, head, network.vocabulary, network.max_positions)


def _torch_parts(
    checkpoint: CrossCheckpoint, *, precision: Precision, engine: EngineName, device: str
) -> _Parts:
    """The network and head of transformers, for architectures that gemel does not read itself."""
    if checkpoint.answers is not None:
        raise ModelError(
            f"{checkpoint.name} is a language model of the architecture {checkpoint.encoder.config['model_type']!r}; "
            f"as rerankers gemel runs those only by itself, not with torch. Known: {', '.join(model_types())}"
        )
    engines = EnginePool(checkpoint.encoder, engine=engine, device=device, typed=checkpoint.typed)
    opened = engines[precision]
    assert isinstance(opened, TorchPairEngine)
    if opened.width != len(checkpoint.labels):
        raise ModelError(
            f"{checkpoint.name} gives {opened.width} numbers for a pair, but its config.json names "
            f"{len(checkpoint.labels)} labels. One of its files belongs to another model"
        )
    # The engine gives the numbers of the labels, so the head has no layers.
    return _Parts(engines, CrossHead("cls", ()), opened.vocabulary, max_positions(checkpoint.encoder.config))
