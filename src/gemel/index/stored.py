"""Rows of a table, document by document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gemel.index.digest import digest_of
from gemel.index.port import FieldValue, Rows
from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Stored:
    """One document as its passages."""

    id: str
    passages: Sequence[str]
    parts: Sequence[int]
    vectors: Vectors
    digest: str
    fields: Mapping[str, FieldValue]

    @property
    def text(self) -> str:
        return "".join(self.passages)

    def made_by_model(self, passage_tokens: int | None) -> bool:
        """The vectors were encoded from the text; False: the caller gave one."""
        return self.digest == digest_of(self.text, self.fields, passage_tokens)


def stored_documents(rows: Rows) -> Iterator[Stored]:
    """The documents of the rows, in their order."""
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and rows.id[end] == rows.id[start]:
            end += 1
        yield Stored(
            id=rows.id[start],
            passages=rows.text[start:end],
            parts=[int(part) for part in rows.part[start:end]],
            vectors=rows.vector[start:end],
            digest=rows.digest[start],
            fields={name: values[start] for name, values in rows.fields.items()},
        )
        start = end


def rows_of(documents: Sequence[Stored], fields: Sequence[str]) -> Rows:
    """The other way: the rows of these documents, with these fields."""
    owners = [document for document in documents for _ in document.parts]
    return Rows(
        id=[document.id for document in owners],
        part=np.array([part for document in documents for part in document.parts], dtype=np.int32),
        text=[passage for document in documents for passage in document.passages],
        digest=[document.digest for document in owners],
        vector=np.concatenate([document.vectors for document in documents]),
        fields={name: [document.fields.get(name) for document in owners] for name in fields},
    )
