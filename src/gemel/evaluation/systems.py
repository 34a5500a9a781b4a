"""What can be evaluated, and the only place that looks which kind it is.

An encoder ranks through exact search. It may know queries from documents (`PromptedEncoder`) or need texts to learn
from first (`Learner`, such as TF-IDF). A `Retriever`, such as BM25, ranks without vectors. A `PairScorer`, a
cross-encoder, scores two texts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from gemel.errors import InputError
from gemel.nearest import Hits, search
from gemel.types import AnyVectors, Encoder


@runtime_checkable
class Retriever(Protocol):
    """Ranks texts for queries in a way of its own."""

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` of the corpus, best first; a position of -1 is an empty place: nothing more was found."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """Gives a number to each pair of texts, and no text a vector."""

    def scores(self, left: Sequence[str], right: Sequence[str]) -> AnyVectors:
        """(n,) higher for pairs that belong together."""
        ...


@runtime_checkable
class PromptedEncoder(Protocol):
    """An encoder that treats the two sides of a search differently."""

    def encode_query(self, texts: Sequence[str]) -> AnyVectors: ...

    def encode_document(self, texts: Sequence[str]) -> AnyVectors: ...


@runtime_checkable
class Learner(Protocol):
    """Becomes an encoder once it has seen unlabelled texts."""

    def fitted(self, texts: Sequence[str]) -> Encoder: ...


System: TypeAlias = Encoder | Retriever | PairScorer


def rank(system: System, queries: Sequence[str], corpus: Sequence[str], k: int, metric: str) -> Hits:
    """The best `k` of the corpus for each query, by whatever the system is."""
    if isinstance(system, PairScorer):
        raise InputError(
            f"{_name(system)} is a cross-encoder: to rank a corpus it would read every text with every query. "
            "Evaluate it with the task 'reranking'"
        )
    if isinstance(system, Retriever):
        return system.rank(queries, corpus, k)
    encoder = system.fitted(corpus) if isinstance(system, Learner) else system
    return search(encode_queries(encoder, queries), encode_documents(encoder, corpus), k, metric)


def encode_queries(encoder: Encoder, texts: Sequence[str]) -> AnyVectors:
    """With the encoder's way for queries, where it has one."""
    return encoder.encode_query(texts) if isinstance(encoder, PromptedEncoder) else encoder.encode(texts)


def encode_documents(encoder: Encoder, texts: Sequence[str]) -> AnyVectors:
    """With the encoder's way for documents, where it has one."""
    return encoder.encode_document(texts) if isinstance(encoder, PromptedEncoder) else encoder.encode(texts)


def with_vectors(system: System, texts: Sequence[str], task: str) -> Encoder:
    """An encoder for a task that compares vectors: the system itself, or what it learns from the task's `texts`."""
    if isinstance(system, Learner):
        return system.fitted(texts)
    if isinstance(system, PairScorer):
        raise InputError(
            f"task {task!r} compares vectors, but {_name(system)} is a cross-encoder. Give a sentence encoder"
        )
    if isinstance(system, Retriever):
        raise InputError(f"task {task!r} compares vectors, but {_name(system)} only ranks. Give an encoder")
    return system


def search_protocol(system: System, metric: str) -> dict[str, str]:
    """How the system ranks: by which similarity, and with which prompts for the two sides."""
    if isinstance(system, Retriever | PairScorer):
        return {"metric": f"{_name(system)}'s own", "prompts": "none"}
    own = "the encoder's own for queries and documents"
    return {"metric": metric, "prompts": own if isinstance(system, PromptedEncoder) else "none"}


def _name(system: object) -> str:
    return str(getattr(system, "name", type(system).__name__))
