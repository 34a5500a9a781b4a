"""Texts to unit vectors for an index: by a model with its options, by one that is loaded when it is needed, by none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.errors import InputError
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.types import Vectors

_OFF = 1e-6  # a length of 1 up to rounding: such vectors are kept to the bit


@dataclass(frozen=True, eq=False)
class EncodedPassages:
    vectors: Vectors
    """(n, dim), each of length 1; 0 where a text has nothing that the model knows."""
    truncated: int


class IndexEncoder(Protocol):
    """What an index asks of a model."""

    def model(self) -> Model | None:
        """The model itself, loaded if it is not yet; None: the index is bound to none."""
        ...

    def documents(self, texts: Sequence[str]) -> EncodedPassages: ...

    def queries(self, texts: Sequence[str]) -> Vectors: ...

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Each text as passages that the model reads whole; joined they are the text."""
        ...


class ModelIndexEncoder:
    """A model that is there, with its options fixed."""

    def __init__(self, model: Model, options: EncodeOptions, passage_tokens: int | None = None) -> None:
        if options.output != "float32":
            raise InputError(f"an index keeps float32 vectors; output {options.output!r} is for storing")
        if passage_tokens is not None and (isinstance(passage_tokens, bool) or passage_tokens < 1):
            raise InputError(f"passage_tokens must be a whole number of at least 1, got {passage_tokens!r}")
        self.options, self.passage_tokens = options, passage_tokens
        self._model = model
        quiet = "truncate" if options.on_long == "warn" else options.on_long  # what is cut is counted
        self.document_options = _side(model, replace(options, on_long=quiet), "document")
        self.query_options = _side(model, options, "query")

    @property
    def dim(self) -> int:
        return self.options.dim or self._model.dim

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of the document side: what the stored vectors depend on."""
        return self._model.fingerprint_for(self.document_options)

    @cached_property
    def query_prompt(self) -> str:
        return self._model.fingerprint_for(self.query_options).prompt

    def model(self) -> Model:
        return self._model

    def documents(self, texts: Sequence[str]) -> EncodedPassages:
        report = self._model.encode_report(texts, self.document_options)
        return EncodedPassages(unit(report.vectors), len(report.truncated))

    def queries(self, texts: Sequence[str]) -> Vectors:
        return unit(self._model.encode(texts, self.query_options))

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        if self.options.on_long == "chunk":  # the model reads long texts whole, window by window
            return [[text] for text in texts]
        split = self._model.passages(texts, self.document_options, tokens=self.passage_tokens)
        return [parts or [""] for parts in split]  # an empty text is a document too


class LazyIndexEncoder:
    """A model that is loaded at the first text."""

    def __init__(self, load: Callable[[], ModelIndexEncoder]) -> None:
        self._load = load
        self._loaded: ModelIndexEncoder | None = None
        self._lock = threading.Lock()

    def loaded(self) -> ModelIndexEncoder:
        """The coder behind this one."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def model(self) -> Model:
        return self.loaded().model()

    def documents(self, texts: Sequence[str]) -> EncodedPassages:
        return self.loaded().documents(texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self.loaded().queries(texts)

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        return self.loaded().split(texts)


class NoIndexEncoder:
    """Of an index of vectors only."""

    def __init__(self, place: str) -> None:
        self._place = place

    def model(self) -> None:
        return None

    def documents(self, texts: Sequence[str]) -> EncodedPassages:
        raise self._refusal("add texts with their vectors")

    def queries(self, texts: Sequence[str]) -> Vectors:
        raise self._refusal("search by a vector")

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        raise self._refusal("add texts with their vectors")

    def _refusal(self, instead: str) -> InputError:
        return InputError(f"the index {self._place} has no model, so it cannot encode a text: {instead}")


def unit(vectors: Vectors) -> Vectors:
    """Each row of length 1; rows that are so already keep their bits, rows of zeros stay."""
    rows = np.asarray(vectors, dtype=np.float32)
    length = np.linalg.norm(rows.astype(np.float64), axis=1)
    off = (np.abs(length - 1) > _OFF) & (length > 0)
    if not off.any():
        return rows
    out = rows.copy()
    out[off] = (rows[off] / length[off, None]).astype(np.float32)
    return out


def _side(model: Model, options: EncodeOptions, side: Literal["query", "document"]) -> EncodeOptions:
    """The options with the checkpoint's prompt for one side, unless they name a prompt themselves."""
    if options.prompt is not None or options.prompt_name is not None:
        return options
    return replace(options, prompt_name=model.checkpoint.prompt_name(side))
