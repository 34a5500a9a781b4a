"""Encoders that no single checkpoint describes: vectors post-processed after a pooling, queries by a second model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.model import Model
    from gemel.texts.whitening import Fitted


@dataclass(frozen=True)
class Adjusted:
    """Vectors of the model, then the fitted map."""

    model: Model
    change: Fitted
    threads: int | None = None

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dim(self) -> int:
        return self.model.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self.change.apply(self.model.encode(texts, threads=self.threads))


@dataclass(frozen=True)
class TwoModels:
    """Queries by a student, documents by its teacher: an index of the teacher's vectors stays in use."""

    queries: Model
    documents: Model
    threads: int | None = None

    @classmethod
    def open(cls, queries: str, documents: str, threads: int | None) -> TwoModels:
        import gemel

        return cls(gemel.load(queries), gemel.load(documents), threads)

    @property
    def name(self) -> str:
        return f"{self.queries.name}, documents by {self.documents.name}"

    @property
    def dim(self) -> int:
        return self.documents.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self.encode_document(texts)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        return self.queries.encode(texts, threads=self.threads, on_long="truncate")

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        return self.documents.encode(texts, threads=self.threads, on_long="truncate")


def adjusted(
    source: str, method: str, pooling: str | None, texts: Sequence[str], threads: int | None
) -> Adjusted:
    import gemel
    from gemel.texts.whitening import METHODS, Settings

    model = gemel.load(source, pooling=pooling)
    fitted = METHODS[method](model.encode(texts, threads=threads), Settings())
    return Adjusted(model, fitted, threads)
