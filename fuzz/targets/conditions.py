"""The language of conditions, as text and as JSON: memory, Lance and PostgreSQL give the same rows or one error."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from fuzz.target import Job, WrongAnswerError, target

FIELDS = {"lang": "text", "year": "int", "price": "float", "open": "bool", "And1": "int", "a b": "text"}
ROWS: list[dict[str, Any]] = [
    {"lang": "en", "year": 2020, "price": 1.5, "open": True, "And1": 1, "a b": "x"},
    {"lang": "de", "year": -1, "price": -0.0, "open": False, "And1": None, "a b": "it's"},
    {"lang": None, "year": None, "price": None, "open": None, "And1": 3, "a b": None},
    {"lang": "", "year": 2**63 - 1, "price": 1e308, "open": True, "And1": 0, "a b": "%s"},
    {"lang": "é", "year": -(2**63), "price": 5e-324, "open": None, "And1": -1, "a b": "\\"},
    {"lang": "e\u0301", "year": 0, "price": 2**53 + 1.0, "open": False, "And1": 2, "a b": '"'},
    {"lang": "EN", "year": 2**53 + 1, "price": 0.1, "open": True, "And1": 1, "a b": "\U0010ffff"},
]
TEXTS = [
    "lang = 'en' and year >= 2020", "year between -1 and 10 or price < 1.5", "not (open = true) and lang is not null",
    "lang in ('en', 'de') or id = '3'", "year not in (1, 2, 2020)", "\"And1\" = 1 and \"a b\" != 'it''s'",
    "open is null",
    "price = 1e308 or price > -5e-324", "lang > 'a' and lang <= 'é'", "year = 9223372036854775807",
]  # fmt: skip
TREES: list[dict[str, Any]] = [
    {"lang": "en", "year": {">=": 2020, "<": 2025}}, {"lang": ["en", None]}, {"open": None},
    {"or": [{"year": 0}, {"not": {"lang": "de"}}]}, {"and": [{"price": {"between": [0, 2]}}, {"a b": {"!=": "x"}}]},
    {"year": {"not in": [1, 2020]}}, {"id": {"in": ["1", "2"]}},
]  # fmt: skip
NEWER = {"tags": "texts", "sizes": "ints", "day": "date", "at": "datetime"}
"""Fields of types that an older index does not have: used if they exist."""
NEWER_ROWS: list[dict[str, Any]] = [
    {"tags": ["x", "it's"], "sizes": [1, 2**62], "day": "2024-02-29", "at": "2024-02-29T12:00:00+00:00"},
    {"tags": [], "sizes": None, "day": None, "at": "1970-01-01T00:00:00+00:00"},
    {"tags": None, "sizes": [], "day": "0001-01-01", "at": None},
]
NEWER_TEXTS = [
    "tags contains 'x' and day >= '2024-01-01'",
    "lang like 'e\\%_%' and lang not contains 'x'",
    "not (sizes contains 1) or at < '2000-01-01'",
    "tags is null",
]
COVERS = (
    "gemel.index.where_parse",
    "gemel.index.where",
)
STORES = ("gemel.index.lance.columns", "gemel.index.postgres.search", "gemel.index.memory")


@target("where-text", "text", *COVERS, *STORES, postgres=True)
def where_text(folder: Path) -> Job:
    return _job(
        folder, [text.encode() for text in TEXTS], lambda data: data.decode("utf-8", "surrogateescape")
    )


@target("where-json", "json", *COVERS, *STORES, postgres=True)
def where_json(folder: Path) -> Job:
    def tree(data: bytes) -> Any:  # noqa: ANN401 - what JSON holds
        from gemel.errors import InputError

        try:
            result = json.loads(data)
        except (ValueError, RecursionError):
            raise InputError("not JSON") from None
        return result if isinstance(result, Mapping | str) else {"and": result}

    return _job(folder, [json.dumps(each).encode() for each in TREES], tree)


def _job(folder: Path, seeds: list[bytes], where_of: Any) -> Job:  # noqa: ANN401
    from gemel.index.open import open_index
    from gemel.index.port import FieldType

    locations = {"memory": ":memory:", "lance": str(folder / "index")}
    if address := os.environ.get("GEMEL_FUZZ_POSTGRES"):
        locations["postgres"] = f"{address}#fuzz_{os.getpid()}"
    newer = set(NEWER.values()) <= set(get_args(FieldType))
    fields = {**FIELDS, **NEWER} if newer else FIELDS
    stores = {name: open_index(location, dim=2, fields=fields) for name, location in locations.items()}
    more = NEWER_ROWS if newer else [{}]
    rows = [{**row, **more[number % len(more)]} for number, row in enumerate(ROWS)]
    for index in stores.values():
        ids, vectors = range(len(rows)), [[1.0, float(number)] for number in range(len(rows))]
        index.add([f"text {number}" for number in ids], ids=ids, vectors=vectors, fields=rows)

    def ask(data: bytes) -> None:
        where = where_of(data)
        answers = {name: _answer(index, where) for name, index in stores.items()}
        if len({repr(answer) for answer in answers.values()}) > 1:
            raise WrongAnswerError(f"{where!r:.300}: {answers}")
        if isinstance(answers["memory"], Exception):
            raise answers["memory"]

    def close() -> None:
        for index in stores.values():
            index.close()

    return Job([*seeds, *(text.encode() for text in NEWER_TEXTS)] if newer else seeds, ask, close)


def _answer(index: Any, where: Any) -> object:  # noqa: ANN401
    """Ids that meet the condition, and their number; or the error."""
    from gemel.errors import GemelError

    try:
        result = index.search([1.0, 0.5], len(ROWS), where=where, exact=True)
        return sorted(hit.id for hit in result.hits), index.count(where).documents
    except GemelError as error:
        return error
