"""A model as frameworks ask for it: texts of either side of a search in, lists of floats out. Imports no framework.

A model and options by name -> an encoder that needs nothing more said.

Metadata of frameworks in the fields of an index: plain values are columns for conditions, the rest is JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from gemel.errors import InputError
from gemel.index.fields import check_name, infer
from gemel.index.index import Index
from gemel.index.port import FieldValue
from gemel.model import ConfiguredModel, Model, load
from gemel.options import EncodeKeywords, EncodeOptions
from gemel.types import Encoder

DEFAULT_MODEL = "all-MiniLM-L6-v2"


class QueryDocumentEncoder:
    """Queries and documents by one model, each with the prompt that the checkpoint has for it.

    `options` are fields of EncodeOptions by name. A model that is given by name is loaded at the first text.
    """

    def __init__(self, model: Model | str | Path, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._options = EncodeOptions.of(None, cast("EncodeKeywords", self.options))
        if (output := self._options.output) != "float32":
            raise InputError(
                f"frameworks take vectors of floats; output {output!r} is for storing. Leave it out"
            )
        self._given = model
        self._model = model if isinstance(model, Model) else None
        self._loading = threading.Lock()

    @property
    def name(self) -> str:
        """What `load` takes to find the model again: what was given, or the folder of a loaded one."""
        return str(self._given.checkpoint.folder if isinstance(self._given, Model) else self._given)

    def model(self) -> Model:
        """Loaded if it is not yet."""
        with self._loading:
            if self._model is None:
                assert not isinstance(self._given, Model)
                self._model = load(self._given)
            return self._model

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order, with the query prompt."""
        return self._configured().encode_query(texts).tolist()  # type: ignore[no-any-return]

    def documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order, with the document prompt."""
        return self._configured().encode_document(texts).tolist()  # type: ignore[no-any-return]

    def _configured(self) -> ConfiguredModel:
        return self.model().with_options(self._options)


def encoder_of(model: Encoder, changes: dict[str, Any]) -> Encoder:
    """The model under these fields of EncodeOptions; any other object with an `encode` has no options."""
    if not isinstance(model, Model):
        if isinstance(model, str) or not hasattr(model, "encode"):
            raise InputError(f"model is a loaded model, got {model!r}. Write gemel.load(...) first")
        if changes:
            kind = type(model).__name__
            raise InputError(f"options are for a gemel model, got a {kind}: leave {', '.join(changes)} out")
        return model
    options = EncodeOptions.of(None, cast("EncodeKeywords", changes))
    if options.output != "float32":
        raise InputError(f"vectors are float32 here, got output={options.output!r}: leave it out")
    return model.with_options(options)


REST = "more_metadata"
"""The column of what no column of its own can hold."""


def store_fields(
    index: Index,
    metadatas: Iterable[Mapping[str, Any] | None],
    only: Collection[str] | None = None,
    *,
    rest: bool = True,
) -> list[dict[str, FieldValue]]:
    """The fields of each document, none for None; columns that the index lacks are added to it.

    Lists, mappings, None, and names that no field can have are the rest; `rest` False: it is left out, being kept
    elsewhere. `only`: the names that get a column; None: all.
    """
    names = [*index.fields, REST]  # a name that differs from one of these in case only is no field
    rows = [_row(metadata or {}, names, only, rest=rest) for metadata in metadatas]
    new = infer(rows, index.fields)
    if new:
        index.add_fields(new)
    return rows


def metadata_of(fields: Mapping[str, FieldValue]) -> dict[str, Any]:
    """What `store_fields` was given. Of a document that came another way: its fields that are not null."""
    plain = {name: value for name, value in fields.items() if value is not None and name != REST}
    rest: dict[str, Any] = json.loads(str(fields.get(REST) or "{}"))
    return plain | rest


def _row(
    metadata: Mapping[str, Any], names: list[str], only: Collection[str] | None, *, rest: bool
) -> dict[str, FieldValue]:
    row: dict[str, FieldValue] = {}
    others: dict[str, Any] = {}
    for name, value in metadata.items():
        plain = isinstance(value, str | int | float | np.generic) and name != REST
        if plain and (only is None or name in only) and _can_be_field(name, names):
            row[name] = value
        else:
            others[name] = value
    if others and rest:
        row[REST] = _as_json(others)
    return row


def _can_be_field(name: str, names: list[str]) -> bool:
    if name in names:
        return True
    try:
        check_name(name, names)
    except InputError:
        return False
    names.append(name)
    return True


def _as_json(rest: Mapping[str, Any]) -> str:
    try:
        return json.dumps(rest, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the metadata {', '.join(map(repr, rest))} cannot be written as JSON: {error}. Convert it first"
        ) from error
