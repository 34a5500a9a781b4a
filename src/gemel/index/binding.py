"""The model of an index: what encodes its texts, and the record that ties the stored vectors to that model.

The record (`Binding`) is JSON in the header of the table: a fingerprint, prompts, options, and a few texts with their
vectors (canaries). A model that differs in anything that changes a vector is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import numpy as np

from gemel.checkpoint.architecture import least
from gemel.checkpoint.fingerprint import Fingerprint
from gemel.encoder.canary import CANARIES, pack_vectors, unpack_vectors
from gemel.encoder.passages import LATE_TOKENS, PreparedPassage, check_late_chunking
from gemel.encoder.tokenizer import PreparedTexts, Windows
from gemel.errors import InputError, ModelError
from gemel.index.kinds import KindEncoder, KindModel
from gemel.index.port import Header, Splitting, Table
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.types import Vectors

Loaded = TypeVar("Loaded")

_NO_TOKENS = Windows((), (), 0, 0)

_UNIT_TOLERANCE = 1e-6  # of a length of 1: such vectors keep their bits

_IRRELEVANT = {"threads", "memory", "progress", "output"}
"""Options that change no vector, or that an index fixes."""


@dataclass(frozen=True, eq=False)
class IndexState:
    """What an index works with at one moment; replaced as a whole when the index is migrated."""

    table: Table
    lazy_encoder: LazyEncoder[IndexEncoder]
    binding: Binding | None
    """None: the index has no dense vectors, or vectors only and no model."""
    kinds: Mapping[str, LazyEncoder[KindEncoder]] = field(default_factory=dict)
    """Encoders of further kinds of vectors."""

    @property
    def encoder(self) -> IndexEncoder:
        """Loads the model on first use; an InputError if the index has none."""
        return self.lazy_encoder.get()

    def split(self, texts: Sequence[str]) -> list[list[PreparedPassage]]:
        """Each text as passages that every model of the index reads whole; joined they are the text.

        Without a dense model they have no tokens.
        """
        models = [lazy.get().model for lazy in self.kinds.values()]
        if self.binding is None:
            passages = [[text] for text in texts]
            for n, model in enumerate(models):  # the number of tokens is that of the first model
                passages = _divided(passages, model, None if n else self.passage_tokens)
            return [[PreparedPassage(part, _NO_TOKENS) for part in parts] for parts in passages]
        prepared = self.encoder.split(texts)
        passages = [[part.text for part in parts] for parts in prepared]
        for model in models:
            passages = _divided(passages, model, None)
        known = {part.text: part for parts in prepared for part in parts}
        new = [
            part for part in dict.fromkeys(each for parts in passages for each in parts) if part not in known
        ]
        if new:
            known |= {part.text: part for part in self.encoder.prepare_whole(new)}
        return [[known[part] for part in parts] for parts in passages]

    @cached_property
    def header(self) -> Header:
        """Read once, for what a table never changes; fields may have been added since."""
        return self.table.header

    @property
    def dim(self) -> int:
        """Numbers in a dense vector; 0: there are none."""
        return self.header.dim

    @property
    def late_chunks(self) -> bool:
        """The dense vector of a passage depends on the whole document."""
        return self.binding is not None and self.binding.late_chunks

    @property
    def splitting(self) -> Splitting:
        """How documents become passages with vectors; part of every digest."""
        return f"late {self.passage_tokens}" if self.late_chunks else self.passage_tokens

    @cached_property
    def passage_tokens(self) -> int | None:
        """As the index recorded it."""
        if self.binding is not None:
            return self.binding.passage_tokens
        recorded: int | None = self.header.bound.get("passage_tokens")
        return recorded

    @property
    def models(self) -> str:
        """The names of all models, for a person."""
        dense = [] if self.binding is None else [self.binding.model]
        others = [f"{kind} {each.bound['model']}" for kind, each in self.header.kinds.items()]
        return " + ".join([*dense, *others])


def _divided(passages: list[list[str]], model: KindModel, tokens: int | None) -> list[list[str]]:
    """Each passage divided further where the model does not read it whole."""
    distinct = list(dict.fromkeys(part for parts in passages for part in parts))
    divided = dict(zip(distinct, model.passages(distinct, tokens=tokens), strict=True)) if distinct else {}
    return [[each for part in parts for each in divided[part]] for parts in passages]


@dataclass(frozen=True, eq=False)
class EncodedPassages:
    vectors: Vectors
    """(n, dim), each of length 1; 0 where a text has nothing that the model knows."""
    truncated: int


class IndexEncoder:
    """A loaded model with the options of an index."""

    def __init__(
        self,
        model: Model,
        options: EncodeOptions,
        passage_tokens: int | None = None,
        late_chunks: bool = False,
    ) -> None:
        if options.output != "float32":
            raise InputError(f"an index keeps float32 vectors; output {options.output!r} is for storing")
        if passage_tokens is not None and (isinstance(passage_tokens, bool) or passage_tokens < 1):
            raise InputError(f"passage_tokens must be a whole number of at least 1, got {passage_tokens!r}")
        if late_chunks:
            check_late_chunking(model.checkpoint)
            if options.on_long == "chunk":
                raise InputError(
                    "on_long='chunk' makes one vector of a document, late chunks one per passage"
                )
            passage_tokens = passage_tokens or least(LATE_TOKENS, options.max_length or model.max_length)
        self.options, self.passage_tokens, self.late_chunks = options, passage_tokens, late_chunks
        self.model = model
        quiet = "truncate" if options.on_long == "warn" else options.on_long  # truncated texts are counted
        self.document_options = model.options_for("document", options, on_long=quiet)
        self.query_options = model.options_for("query", options)

    @property
    def dim(self) -> int:
        return self.options.dim or self.model.dim

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of the document side: what the stored vectors depend on."""
        return self.model.fingerprint_for(self.document_options)

    @cached_property
    def query_prompt(self) -> str:
        return self.model.fingerprint_for(self.query_options).prompt

    def split(self, texts: Sequence[str]) -> list[list[PreparedPassage]]:
        """Each text as passages that the model reads whole, tokenized; joined they are the text."""
        if self.options.on_long == "chunk":  # the model reads long texts whole, window by window
            return [[whole] for whole in self.prepare_whole(texts)]
        return self.model.prepare_passages(texts, self.document_options, tokens=self.passage_tokens)

    def prepare_whole(self, texts: Sequence[str]) -> list[PreparedPassage]:
        """Each text as one passage, tokenized."""
        windows = self.model.prepare(texts, self.document_options).windows
        return [PreparedPassage(*each) for each in zip(texts, windows, strict=True)]

    def encode_passages(self, passages: Sequence[PreparedPassage]) -> EncodedPassages:
        """The vectors of passages that `split` gave."""
        windows = tuple(passage.windows for passage in passages)
        vectors = self.model.run(PreparedTexts(windows, self.document_options))
        return EncodedPassages(unit(vectors), sum(window.kept < window.tokens for window in windows))

    def encode_late(self, texts: Sequence[str], passages: Sequence[Sequence[str]]) -> Vectors:
        """(passages, dim): each text is read as a whole; its passages, joined, are the text."""
        spans = [list(pairwise(accumulate(map(len, parts), initial=0))) for parts in passages]
        return unit(self.model.encode_passages(texts, self.document_options, by=spans).vectors)

    def encode_whole(self, texts: Sequence[str]) -> Vectors:
        """(n, dim): each text as one document, cut where it is longer than the model reads."""
        return unit(self.model.encode(texts, self.document_options))

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return unit(self.model.encode(texts, self.query_options))


class LazyEncoder(Generic[Loaded]):
    """An encoder that is loaded at the first text, by one thread."""

    def __init__(self, load: Callable[[], Loaded]) -> None:
        self._load = load
        self.loaded: Loaded | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, encoder: Loaded) -> LazyEncoder[Loaded]:
        """One that is loaded already."""
        lazy = cls(lambda: encoder)
        lazy.loaded = encoder
        return lazy

    def get(self) -> Loaded:
        """The encoder, or the error of loading it."""
        if self.loaded is not None:
            return self.loaded
        with self._lock:
            if self.loaded is None:
                self.loaded = self._load()
            return self.loaded


def unit(vectors: Vectors) -> Vectors:
    """Each row scaled to length 1; rows of that length already keep their bits, rows of zeros stay."""
    rows = np.asarray(vectors, dtype=np.float32)
    length = np.linalg.norm(rows.astype(np.float64), axis=1)
    off = (np.abs(length - 1) > _UNIT_TOLERANCE) & (length > 0)
    if not off.any():
        return rows
    out = rows.copy()
    out[off] = (rows[off] / length[off, None]).astype(np.float32)
    return out


@dataclass(frozen=True, eq=False)
class Binding:
    """All that is needed later to make vectors that are comparable with those of the index."""

    model: str
    """Its name, as it was given."""
    folder: str
    """Where it was on the machine that made the index."""
    stamp: str
    """Sizes and times of the model's files there, hashed: if equal, the weights need not be hashed again."""
    fingerprint: Fingerprint
    """Of the document side."""
    query_prompt: str
    options: EncodeOptions
    passage_tokens: int | None
    canary_texts: Sequence[str]
    canaries: Vectors
    """(8, dim)"""
    gemel: str
    """The version that made the index."""
    task: str | None = None
    """That the model was loaded for; None: none, or both sides of a search."""
    late_chunks: bool = False
    """The model reads documents whole, and the vectors of their passages are taken from that."""

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        options = {name: value for name, value in asdict(self.options).items() if name not in _IRRELEVANT}
        return vars(self) | {
            "fingerprint": self.fingerprint.to_json(),
            "options": options,
            "canary_texts": list(self.canary_texts),
            "canaries": pack_vectors(self.canaries),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Binding:
        """The binding of a header; further keys are ignored."""
        names = [each.name for each in fields(cls)]
        content = {"task": None, "late_chunks": False, **content}  # older headers do not have them
        missing = [name for name in names if name not in content]
        if missing:
            raise ModelError(
                f"the index does not say which model made it: its header has no {', '.join(missing)}"
            )
        fingerprint = Fingerprint.from_json(content["fingerprint"])
        known = {each.name for each in fields(EncodeOptions)}
        values = {name: content[name] for name in names} | {
            "fingerprint": fingerprint,
            "options": EncodeOptions(**{k: v for k, v in content["options"].items() if k in known}),
            "canaries": unpack_vectors(content["canaries"], len(content["canary_texts"])),
        }
        return cls(**values)


def bind(encoder: IndexEncoder) -> Binding:
    """The binding of a new index: encodes the canaries."""
    from importlib.metadata import version

    model = encoder.model
    return Binding(
        model=model.name,
        folder=str(model.checkpoint.folder.resolve()),
        stamp=stamp_of(model),
        fingerprint=encoder.fingerprint,
        query_prompt=encoder.query_prompt,
        options=encoder.options,
        passage_tokens=encoder.passage_tokens,
        canary_texts=CANARIES,
        canaries=encoder.encode_whole(CANARIES),
        gemel=version("gemel"),
        task=model.checkpoint.task,
        late_chunks=encoder.late_chunks,
    )


def differences(binding: Binding, encoder: IndexEncoder) -> list[str]:
    """One line for each setting that would make other vectors than the index has."""
    model = encoder.model
    if "weights_hash" not in vars(model) and binding.stamp == stamp_of(model):
        # The files are those that were hashed when the index was made: 0.1 s to 2 s saved at every opening.
        vars(model)["weights_hash"] = binding.fingerprint.weights
    recorded, given = binding.fingerprint.to_json(), encoder.fingerprint.to_json()
    for facts, source in ((recorded, binding), (given, encoder)):
        facts["query prompt"] = source.query_prompt
        facts |= {name: getattr(source, name) for name in ("passage_tokens", "late_chunks")}
    return [
        f"{name}: {_short(recorded[name])} in the index, {_short(given[name])} now"
        for name in recorded
        if recorded[name] != given[name]
    ]


def check_binding(binding: Binding, encoder: IndexEncoder, location: str) -> None:
    """A ModelError that names both sides and each difference, if there is one."""
    different = differences(binding, encoder)
    if not different:
        return
    name = encoder.model.name
    given = f"{name!r} with other weights or settings" if name == binding.model else repr(name)
    raise ModelError(
        f"the index {location} was made by {binding.model!r}, but was opened with {given}: {'; '.join(different)}. "
        "Open it without a model, or encode it again with index.migrate(model)",
        code="GEM-401",
    )


def made_by(binding: Binding, source: str | Path) -> bool:
    """The name or folder is that of the model which made the index."""
    return str(source) == binding.model or str(Path(source).resolve()) == binding.folder


def load_for(binding: Binding, source: str | Path, *, pooling: bool) -> Model:
    """In the precision of the index and, for the model that made it, with the `pooling` and task it was loaded with."""
    made = binding.fingerprint
    precision: Precision = next((each for each in get_args(Precision) if each == made.precision), "float32")
    own: dict[str, Any] = {"pooling": made.pooling, "task": binding.task} if pooling else {}
    return load(source, precision=precision, **own)


def _short(value: object) -> str:
    """A hash by its first digits."""
    return repr(value[:12] + "…") if isinstance(value, str) and len(value) == 64 else repr(value)


def stamp_of(model: Model) -> str:
    """A hash of path, size, times and inode of each file of the model, and of its settings; "" if a file is missing.

    Equal stamps mean the same files on the same machine, not written since. Different ones mean nothing: a copy has
    other times.
    """
    checkpoint = model.checkpoint
    try:
        files = [
            (str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            for path in (*checkpoint.parts, checkpoint.tokenizer_file)
            for stat in [path.stat()]
        ]
    except OSError:
        return ""
    settings = [
        dict(checkpoint.config),
        [dense.activation for dense in checkpoint.dense],
        checkpoint.kind,
        checkpoint.lowercase,
        checkpoint.skip_unknown,
        asdict(checkpoint.pooling),
        [dict(checkpoint.tokenizer_settings), checkpoint.truncation_side, checkpoint.truncate_dim],
    ]
    content = json.dumps([files, settings], sort_keys=True, default=str)
    return hashlib.sha256(content.encode("ascii")).hexdigest()[:32]
