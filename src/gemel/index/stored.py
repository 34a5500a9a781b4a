"""Rows of a table, document by document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemel.index.digest import digest_of
from gemel.index.port import Rows, Scalar
from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Stored:
    """One document as its passages."""

    id: str
    passages: Sequence[str]
    parts: Sequence[int]
    vectors: Vectors
    digest: str
    fields: Mapping[str, Scalar]

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
