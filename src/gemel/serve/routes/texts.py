"""Texts of a request: within the limits, and as vectors. Large requests go to the batcher piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from gemel.errors import InputError
from gemel.model import Model
from gemel.serve.limits import TooLarge
from gemel.serve.port import Ask, Embedded, Services

PIECE = 512  # texts of a large request that wait at once, so that it never fills the queue alone
WHERE_CHARACTERS = 50_000  # of a condition
WHERE_VALUES = 5_000  # of a condition written as JSON
LONG_CHARACTERS = 20_000  # in a request, from which work on its texts may take a second


def is_long(texts: Sequence[str]) -> bool:
    """Work on these texts is long work: see `Services.work`."""
    return sum(map(len, texts)) > LONG_CHARACTERS


def check_sizes(services: Services, texts: Sequence[str], name: str, most: int | None = None) -> None:
    """Refuse an empty list, too many texts, or one that is too long. `most`: how many; else the limit of a request."""
    allowed = services.limits.texts if most is None else most
    if not texts:
        raise InputError(f"{name} is empty: give at least one text")
    if len(texts) > allowed:
        raise TooLarge(
            f"{name} has {len(texts):,} texts; one request takes at most {allowed:,}. Send several"
        )
    for place, text in enumerate(texts):
        if len(text) > services.limits.characters:
            raise TooLarge(
                f"{name}[{place}] has {len(text):,} characters; a text takes at most {services.limits.characters:,}"
            )


def check_where(where: object, name: str = "where") -> None:
    """Refuse a condition that is too long to be read in a moment."""
    size = len(where) if isinstance(where, str) else _leaves(where)
    most = WHERE_CHARACTERS if isinstance(where, str) else WHERE_VALUES
    if size > most:
        unit = "characters" if isinstance(where, str) else "values"
        raise TooLarge(f"{name} has {size:,} {unit}; a condition takes at most {most:,}")


def _leaves(part: object) -> int:
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return 1 + sum(map(_leaves, inside))


def check_tokens(services: Services, texts: Sequence[str]) -> None:
    """Refuse texts with more tokens together than one request may have, marks included. Runs on a worker thread.

    For work that does not go through the batcher, which counts its own. Tokens are those of the model, also where a
    cross-encoder reads the texts. One text at a time: a request that is far too large is not tokenised whole.
    """
    tokenizer, most, count = services.model.tokenizer, services.limits.tokens, 0
    for text in texts:
        count += len(tokenizer.content([text])[0]) + len(tokenizer.marks)
        if count > most:
            raise _too_many(most)


def check_dimensions(services: Services, dimensions: int | None) -> None:
    """Refuse more numbers than a vector has."""
    if dimensions is not None and dimensions > services.model.dim:
        raise InputError(
            f"dimensions must be at most {services.model.dim}, the model's own, got {dimensions}"
        )


def side(model: Model, which: Literal["query", "document"]) -> str | None:
    """The name of the checkpoint's own prompt for this side of a search, as `Model.encode_query` takes it."""
    names = ("query",) if which == "query" else ("document", "passage", "corpus")
    return next((name for name in names if name in model.checkpoint.prompts), None)


def unit(model: Model) -> bool | None:
    """`normalize` for clients that expect vectors of length 1; None where the model's own have it."""
    return None if model.checkpoint.normalize else True


async def embed_many(
    services: Services, texts: Sequence[str], ask: Ask, *, before: int = 0, limited: bool = True
) -> Embedded:
    """As `services.embed`, for more texts than one request of the batcher may have.

    The limit of tokens is that of all pieces together; `before`: tokens that the request has had already; `limited`
    False: for texts that the server has found, not the client sent.
    """
    piece, most = min(PIECE, services.limits.texts), services.limits.tokens
    parts: list[Embedded] = []
    for at in range(0, max(len(texts), 1), piece):
        parts.append(await services.embed(texts[at : at + piece], ask))
        before += int(parts[-1].tokens.sum())
        if limited and before > most:
            raise _too_many(most)
    if len(parts) == 1:
        return parts[0]
    return Embedded(
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.kept for part in parts]),
    )


async def embed_sides(
    services: Services, query: str, documents: Sequence[str], ask: Ask
) -> tuple[Embedded, Embedded]:
    """Vectors of a query and of documents, each with the prompt of its side."""
    asked = await services.embed([query], replace(ask, prompt_name=side(services.model, "query")))
    beside = replace(ask, prompt_name=side(services.model, "document"))
    known = await embed_many(services, documents, beside, before=int(asked.tokens.sum()))
    return asked, known


def _too_many(most: int) -> TooLarge:
    return TooLarge(
        f"the request has more than {most:,} tokens, which is the most that is taken. Send several"
    )
