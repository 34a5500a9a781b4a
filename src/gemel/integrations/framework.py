"""What the integrations share: encoders of queries and documents, models with options, metadata as fields of an index.

No framework is imported here.
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
    """Vectors of queries and documents as lists of floats, each with its prompt of the checkpoint.

    `options` are fields of EncodeOptions. A model given by name is loaded with the first text.
    """

    def __init__(self, model: Model | str | Path, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._options = EncodeOptions.of(None, cast("EncodeKeywords", self.options))
        if (output := self._options.output) != "float32":
            raise InputError(
                f"frameworks take vectors of floats; output {output!r} is for storage. Leave it out"
            )
        self._given = model
        self._model = model if isinstance(model, Model) else None
        self._loading = threading.Lock()

    @property
    def name(self) -> str:
        """The argument of `load` for this model: the given name, or the folder of a loaded model."""
        return str(self._given.checkpoint.folder if isinstance(self._given, Model) else self._given)

    def model(self) -> Model:
        """The model, loaded on the first call."""
        with self._loading:
            if self._model is None:
                assert not isinstance(self._given, Model)
                self._model = load(self._given)
            return self._model

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, with the query prompt."""
        return self._configured().encode_query(texts).tolist()  # type: ignore[no-any-return]

    def documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, with the document prompt."""
        return self._configured().encode_document(texts).tolist()  # type: ignore[no-any-return]

    def _configured(self) -> ConfiguredModel:
        return self.model().with_options(self._options)


def encoder_of(model: Encoder, changes: dict[str, Any]) -> Encoder:
    """The model with these fields of EncodeOptions; any other object with an `encode` takes none."""
    if not isinstance(model, Model):
        if isinstance(model, str) or not hasattr(model, "encode"):
            raise InputError(f"model must be a loaded model, got {model!r}. Write gemel.load(...) first")
        if changes:
            kind = type(model).__name__
            raise InputError(f"options are for a gemel model, got a {kind}: leave {', '.join(changes)} out")
        return model
    options = EncodeOptions.of(None, cast("EncodeKeywords", changes))
    if options.output != "float32":
        raise InputError(f"vectors are float32 here, got output={options.output!r}: leave it out")
    return model.with_options(options)


REST = "more_metadata"
"""The field with the metadata that cannot be fields of their own, as JSON."""


def store_fields(
    index: Index,
    metadatas: Iterable[Mapping[str, Any] | None],
    only: Collection[str] | None = None,
    *,
    rest: bool = True,
) -> list[dict[str, FieldValue]]:
    """The fields of each document, none for None; missing fields are added to the index.

    Lists, mappings, None, and names that no field can have go to `REST`, or are left out with `rest=False`. `only`: the
    names that become fields; None: all.
    """
    names = [*index.fields, REST]  # a name that differs from one of these only in case cannot be a field
    rows = [_row(metadata or {}, names, only, rest=rest) for metadata in metadatas]
    new = infer(rows, index.fields)
    if new:
        index.add_fields(new)
    return rows


def metadata_of(fields: Mapping[str, FieldValue]) -> dict[str, Any]:
    """The metadata that `store_fields` was given; of other documents, the fields that are not null."""
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
