"""A gemel model as a function of DuckDB: `embed(text)` returns FLOAT[dim], computed for a block of rows at a time.

register(connection, gemel.load("all-MiniLM-L6-v2"))
connection.sql("SELECT body, array_cosine_similarity(vector, embed('late parcel')) AS score FROM tickets")
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from gemel.errors import InputError, MissingExtra
from gemel.integrations.framework import encoder_of
from gemel.integrations.tables import arrow_array, encode_texts
from gemel.types import Encoder


def register(connection: Any, model: Encoder, name: str = "embed", **changes: Any) -> None:  # noqa: ANN401 - theirs
    """Make `name` a function of this connection. A null stays null.

    `changes` are fields of EncodeOptions: register a model twice, with `prompt_name="query"` and "document", where its
    prompts differ.
    """
    if not hasattr(connection, "create_function"):
        raise InputError(f"connection is one of duckdb.connect(), got a {type(connection).__name__}")
    if find_spec("pyarrow") is None:
        raise MissingExtra("a function of DuckDB", "pyarrow", "parquet")
    encoder = encoder_of(model, changes)
    connection.create_function(
        name,
        lambda texts: arrow_array(encode_texts(texts.to_pylist(), name, encoder)),
        ["VARCHAR"],
        f"FLOAT[{encoder.dim}]",
        type="arrow",
        null_handling="special",  # nulls come here too, and leave as nulls
    )
