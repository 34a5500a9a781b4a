"""The model of an index: what encodes its texts, and the record that ties the stored vectors to that model.

The record (`Binding`) is JSON in the header of the table: a fingerprint, prompts, options, and a few texts with their
vectors (canaries). A model that differs in anything that changes a vector is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.encoder.canary import CANARIES, pack_vectors, unpack_vectors
from gemel.encoder.passages import PreparedPassage
from gemel.encoder.tokenizer import PreparedTexts
from gemel.errors import InputError, ModelError
from gemel.index.port import Table
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.types import Vectors

_UNIT_TOLERANCE = 1e-6  # of a length of 1: such vectors keep their bits

_IRRELEVANT = {"threads", "memory", "progress", "output"}
"""Options that change no vector, or that an index fixes."""


@dataclass(frozen=True, eq=False)
class IndexState:
    """What an index works with at one moment; replaced as a whole when the index is migrated."""

    table: Table
    lazy_encoder: LazyIndexEncoder
    binding: Binding | None
    """None: the index has vectors only and no model."""

    @property
    def encoder(self) -> IndexEncoder:
        """Loads the model on first use; an InputError if the index has none."""
        return self.lazy_encoder.get()

    @cached_property
    def dim(self) -> int:
        """Numbers in a vector; read once, as a table never changes it."""
        return self.table.header.dim

    @property
    def passage_tokens(self) -> int | None:
        """As the index recorded it; part of every digest."""
        return None if self.binding is None else self.binding.passage_tokens


@dataclass(frozen=True, eq=False)
class EncodedPassages:
    vectors: Vectors
    """(n, dim), each of length 1; 0 where a text has nothing that the model knows."""
    truncated: int


class IndexEncoder:
    """A loaded model with the options of an index."""

    def __init__(self, model: Model, options: EncodeOptions, passage_tokens: int | None = None) -> None:
        if options.output != "float32":
            raise InputError(f"an index keeps float32 vectors; output {options.output!r} is for storing")
        if passage_tokens is not None and (isinstance(passage_tokens, bool) or passage_tokens < 1):
            raise InputError(f"passage_tokens must be a whole number of at least 1, got {passage_tokens!r}")
        self.options, self.passage_tokens = options, passage_tokens
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
            windows = self.model.prepare(texts, self.document_options).windows
            return [[PreparedPassage(*each)] for each in zip(texts, windows, strict=True)]
        return self.model.prepare_passages(texts, self.document_options, tokens=self.passage_tokens)

    def encode_passages(self, passages: Sequence[PreparedPassage]) -> EncodedPassages:
        """The vectors of passages that `split` gave."""
        windows = tuple(passage.windows for passage in passages)
        vectors = self.model.run(PreparedTexts(windows, self.document_options))
        return EncodedPassages(unit(vectors), sum(window.kept < window.tokens for window in windows))

    def encode_whole(self, texts: Sequence[str]) -> Vectors:
        """(n, dim): each text as one document, cut where it is longer than the model reads."""
        return unit(self.model.encode(texts, self.document_options))

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return unit(self.model.encode(texts, self.query_options))


class LazyIndexEncoder:
    """An encoder that is loaded at the first text, by one thread."""

    def __init__(self, load: Callable[[], IndexEncoder]) -> None:
        self._load = load
        self.loaded: IndexEncoder | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, encoder: IndexEncoder) -> LazyIndexEncoder:
        """One that is loaded already."""
        lazy = cls(lambda: encoder)
        lazy.loaded = encoder
        return lazy

    def get(self) -> IndexEncoder:
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
        names = [field.name for field in fields(cls)]
        content = {"task": None, **content}  # older headers do not have it
        missing = [name for name in names if name not in content]
        if missing:
            raise ModelError(
                f"the index does not say which model made it: its header has no {', '.join(missing)}"
            )
        fingerprint = Fingerprint.from_json(content["fingerprint"])
        known = {field.name for field in fields(EncodeOptions)}
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
    )


def differences(binding: Binding, encoder: IndexEncoder) -> list[str]:
    """One line for each setting that would make other vectors than the index has."""
    model = encoder.model
    if "weights_hash" not in vars(model) and binding.stamp == stamp_of(model):
        # The files are those that were hashed when the index was made: 0.1 s to 2 s saved at every opening.
        vars(model)["weights_hash"] = binding.fingerprint.weights
    recorded, given = binding.fingerprint.to_json(), encoder.fingerprint.to_json()
    recorded |= {"query prompt": binding.query_prompt, "passage_tokens": binding.passage_tokens}
    given |= {"query prompt": encoder.query_prompt, "passage_tokens": encoder.passage_tokens}
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
        "Open it without a model, or encode it again with index.migrate(model)"
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
