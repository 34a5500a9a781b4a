"""`load_m3` gives an `M3Model` (BGE-M3, arXiv 2402.03216), which encodes texts in three ways in one pass.

A text becomes one vector (that of its first token), weights of its words, and a vector of each token after the first.
`load`, `load_sparse` and `load_late` give one of the three, for everything that takes such a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from gemel.checkpoint.files import has_m3_layers, m3_layer
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.sources import find_model, given_name
from gemel.checkpoint.sparse import read_token_layer
from gemel.encoder.batches import Lanes, Positions, distinct_rows, run
from gemel.encoder.engines.engine import EnginePool
from gemel.encoder.head import check_finite, finish_as
from gemel.encoder.pooling import pool_each
from gemel.encoder.sparse import token_weights
from gemel.encoder.tokenizer import TextPreparer, Windows, check_texts, refuse_long, warn_of_long
from gemel.errors import InputError, ModelError
from gemel.model import BLOCK
from gemel.options import EncodeOptions, EngineName, Precision, SparseKeywords, SparseOptions
from gemel.terminal import Progress
from gemel.texts.sparse_model import words_left_out
from gemel.types import FixedAttributes, ShownResult, Vectors
from gemel.vectors.maxsim import MultiVectors, join_texts, maxsim
from gemel.vectors.similarity import normalize, scores
from gemel.vectors.sparse import SparseRow, SparseVectors, largest

M3Kind = Literal["dense", "sparse", "late"]

_KINDS: tuple[M3Kind, ...] = ("dense", "sparse", "late")

_WEIGHTS: Mapping[str, float] = {"dense": 1.0, "sparse": 0.3, "late": 1.0}
"""Of the authors, for their multilingual search (MIRACL)."""

_ADVICE = "Shorten them, or use on_long='truncate' to cut them without this line"


@dataclass(frozen=True, eq=False)
class M3Vectors(ShownResult):
    """Texts in the three ways of BGE-M3; None: it was not requested."""

    dense: Vectors | None
    """(n, dim) one vector of length 1 per text, compared by the dot product."""
    sparse: SparseVectors | None
    """Weights of the words of each text, compared by the dot product."""
    late: MultiVectors | None
    """A vector of length 1 for each token but the first, compared by MaxSim."""

    def __len__(self) -> int:
        return next((len(part) for part in (self.dense, self.sparse, self.late) if part is not None), 0)

    def similarity(self, documents: M3Vectors, weights: Mapping[str, float] | None = None) -> Vectors:
        """(n, m) the score of each of these queries with each document: the weighted mean of the scores of the kinds.

        Dense and sparse scores are dot products. The late score is MaxSim divided by the number of vectors of the
        query, so that long queries have no larger ones. `weights`: of "dense", "sparse" and "late"; None: 1, 0.3 and
        1, of those that both have.
        """
        both = [kind for kind in _KINDS if getattr(self, kind) is not None]
        both = [kind for kind in both if getattr(documents, kind) is not None]
        chosen = dict(weights or {kind: _WEIGHTS[kind] for kind in both})
        wrong = [kind for kind in chosen if kind not in both]
        if wrong or not chosen:
            raise InputError(
                f"there is no {wrong[0] if wrong else 'kind'!r} to compare by: both have {', '.join(both) or 'nothing'}"
                " in common"
            )
        if min(chosen.values()) < 0 or not 0 < sum(chosen.values()) < float("inf"):
            raise InputError(f"weights must be numbers of at least 0, and not all 0, got {chosen}")
        total = np.zeros((len(self), len(documents)), dtype=np.float32)
        for kind, weight in chosen.items():
            if weight:
                total += np.float32(weight / sum(chosen.values())) * self._scores(documents, kind)
        return total

    def _scores(self, documents: M3Vectors, kind: str) -> Vectors:
        if kind == "dense":
            assert self.dense is not None
            assert documents.dense is not None
            return scores(self.dense, documents.dense, "dot")
        if kind == "sparse":
            assert self.sparse is not None
            assert documents.sparse is not None
            return self.sparse.similarity(documents.sparse)
        assert self.late is not None
        assert documents.late is not None
        counts = np.maximum(np.diff(self.late.offsets), 1).astype(np.float32)
        return np.asarray(maxsim(self.late, documents.late) / counts[:, None], dtype=np.float32)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for text in range(len(self)):
            row: dict[str, object] = {"text": text}
            if self.dense is not None:
                row["numbers"] = self.dense.shape[1]
            if self.sparse is not None:
                heaviest = self.sparse.tokens(text)[:5]
                row["heaviest"] = ", ".join(f"{token} {weight:.2f}" for token, weight in heaviest)
            if self.late is not None:
                row["token vectors"] = int(self.late.offsets[text + 1] - self.late.offsets[text])
            yield row


def load_m3(
    model: str | Path,
    *,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    device: str = "cpu",
    revision: str | None = None,
    offline: bool = False,
) -> M3Model:
    """The BGE-M3 in a folder, or of a name: from the cache or the Hugging Face Hub.

    `precision` is the default of encoding. `offline`: nothing is downloaded.
    """
    folder = find_model(model, revision=revision, offline=offline)
    return M3Model(
        _read(folder, given_name(model, folder)), precision=precision, engine=engine, device=device
    )


def _read(folder: Path, name: str | None) -> Checkpoint:
    if not has_m3_layers(folder):
        raise ModelError(
            f"{folder} is no BGE-M3: it has no sparse_linear and colbert_linear (.safetensors) beside its network. "
            "Load it with gemel.load(...), or fetch all files of the model"
        )
    return read_checkpoint(folder, name=name)


class M3Model(FixedAttributes):
    """Turns texts into vectors, weights of words and vectors of tokens at once. Safe to use from several threads.

    Batch invariance: what a text becomes is the same bits alone, in any batch, in any order, with any number of
    threads. A pickled model is the path of its folder, from which it is loaded again.
    """

    _settable = frozenset({"checkpoint", "precision"})

    def __init__(
        self,
        checkpoint: Checkpoint | str | Path,
        *,
        precision: Precision = "float32",
        engine: EngineName = "auto",
        device: str = "cpu",
    ) -> None:
        if isinstance(checkpoint, str | Path):  # M3Model("name") is load_m3("name")
            folder = find_model(checkpoint)
            checkpoint = _read(folder, given_name(checkpoint, folder))
        self.checkpoint = checkpoint
        self.precision: Precision = EncodeOptions(precision=precision).precision or "float32"
        self._where = engine, device
        self._preparer = TextPreparer(checkpoint)
        self._left_out = words_left_out(checkpoint, self._preparer.tokenizer)
        self._weights = read_token_layer(checkpoint)
        layer = m3_layer(checkpoint.folder, "colbert_linear")
        self._projection, self._bias = np.ascontiguousarray(layer["weight"].T), layer["bias"]
        if len(self._projection) != checkpoint.width:
            raise ModelError(
                f"{layer.files[0]}: the layer takes {len(self._projection)} numbers, but a token has "
                f"{checkpoint.width}. The file belongs to another model"
            )
        self._lanes = Lanes()
        self._engines = EnginePool(checkpoint, engine=engine, device=device)
        self._engines[self.precision]  # a network that cannot run here is refused now, not at the first text

    @property
    def name(self) -> str:
        """The name that was given to `load_m3`, or the name of the folder."""
        return self.checkpoint.name

    @property
    def dim(self) -> int:
        """Numbers in the vector of a text."""
        return self.checkpoint.dim or len(self._projection)

    @property
    def max_length(self) -> int | None:
        """Tokens of a text that count, special tokens included; None: all."""
        return self._preparer.limit(EncodeOptions())

    @property
    def engine_name(self) -> str:
        """native, onnxruntime, numpy or torch"""
        return self._engines[self.precision].name

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The name of each column of the weights: a token."""
        tokenizer = self._preparer.tokenizer
        columns = max(tokenizer.vocabulary, int(self.checkpoint.config.get("vocab_size") or 0))
        names = tokenizer.names(np.arange(columns, dtype=np.int32))
        return tuple(name or f"[{number}]" for number, name in enumerate(names))

    def encode(
        self,
        texts: Sequence[str],
        options: SparseOptions | None = None,
        *,
        dense: bool = True,
        sparse: bool = True,
        late: bool = True,
        **keywords: Unpack[SparseKeywords],
    ) -> M3Vectors:
        """Texts in the ways that are requested, in one pass of the network; queries and documents alike.

        `keywords` are fields of SparseOptions: `encode(texts, max_length=512)`.
        """
        settings = SparseOptions.of(options, keywords)
        if not (dense or sparse or late):
            raise InputError("nothing is requested: dense, sparse and late are all False")
        checked = check_texts(texts)
        distinct, rows = distinct_rows(checked)
        kinds = tuple(kind for kind, on in zip(_KINDS, (dense, sparse, late), strict=True) if on)
        modes = len(self.checkpoint.pooling.modes)
        parts = _M3Parts(len(distinct), modes * len(self._projection), self._projection.shape[1])
        tokens, kept = np.zeros((2, len(distinct)), dtype=np.int64)
        progress = Progress(len(distinct), "texts", shown=settings.progress)
        for start in range(0, len(distinct), BLOCK):
            block = slice(start, start + BLOCK)
            windows = self._preparer.windows(
                distinct[block], replace(settings.encode_options(), on_long="truncate")
            )
            tokens[block] = [window.tokens for window in windows]
            kept[block] = [window.kept for window in windows]
            if settings.on_long == "error":
                refuse_long(windows, distinct[block], checked, advice="'truncate'")
            self._run(windows, settings, parts, start, kinds, progress)
        progress.close()
        encoding = settings.encode_options()
        if settings.on_long == "warn":
            warn_of_long(tokens[rows], kept[rows], self._preparer.limit(encoding), advice=_ADVICE)
        names = (token for row in rows for token in parts.tokens[row]) if late else ()
        return M3Vectors(
            dense=finish_as(self.checkpoint, parts.pooled, encoding)[rows] if dense else None,
            sparse=SparseVectors.of([parts.sparse[row] for row in rows], self.vocabulary) if sparse else None,
            late=join_texts([parts.late[row] for row in rows], names, self._projection.shape[1])
            if late
            else None,
        )

    def _run(
        self,
        windows: Sequence[Windows],
        settings: SparseOptions,
        parts: _M3Parts,
        start: int,
        kinds: Sequence[M3Kind],
        progress: Progress,
    ) -> None:
        """The hidden states of one block of texts into `parts`."""
        pieces = [window.pieces[0] for window in windows]
        modes, tokenizer = self.checkpoint.pooling.modes, self._preparer.tokenizer
        skips = self._preparer.skips(windows, settings.encode_options())

        def keep(positions: Positions, hidden: Vectors) -> None:
            check_finite(hidden, self.checkpoint)
            if "dense" in kinds:
                parts.pooled[start + positions] = pool_each(hidden, modes, skips[positions])
            for position, states in zip(positions.tolist(), hidden, strict=True):
                ids = pieces[position]
                if "sparse" in kinds:
                    weights = token_weights(self._weights, ids, states, self._left_out, len(self.vocabulary))
                    most, least = settings.max_active_dims, settings.min_weight
                    parts.sparse[start + position] = largest(weights, most, least)
                if "late" in kinds:
                    parts.late[start + position] = normalize(states[1:] @ self._projection + self._bias)
                    parts.tokens[start + position] = tuple(tokenizer.names(ids[1:]))
            progress.add(len(positions))

        engine = self._engines[settings.precision or self.precision]
        run(engine, pieces, keep, lanes=self._lanes, threads=settings.threads, memory=settings.memory)

    def __reduce__(self) -> tuple[Any, ...]:
        folder = str(self.checkpoint.folder.resolve())
        return _reload, (folder, self.name, self.precision, *self._where)

    def __repr__(self) -> str:
        return f"M3Model({self.name!r}, dim={self.dim}, max_length={self.max_length}, engine={self.engine_name!r})"


class _M3Parts:
    """What is known of each distinct text so far; a text without a token keeps what is here at first."""

    def __init__(self, texts: int, width: int, dim: int) -> None:
        self.pooled: Vectors = np.zeros((texts, width), dtype=np.float32)
        nothing = largest(np.zeros(0, np.float32), None, None)
        self.sparse: list[SparseRow] = [nothing] * texts
        self.late: list[Vectors] = [np.zeros((0, dim), np.float32)] * texts
        self.tokens: list[tuple[str, ...]] = [()] * texts


def _reload(folder: str, name: str, precision: Precision, engine: EngineName, device: str) -> M3Model:
    """The model that was pickled, from its folder."""
    return M3Model(_read(Path(folder), name), precision=precision, engine=engine, device=device)
