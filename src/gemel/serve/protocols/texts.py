"""Texts of a request: within the limits, and as vectors. Large requests go to the batcher piece by piece.

Token ids that clients send, and texts cut at their beginning or to a number of tokens.

Which model a client means by a name. A name is only ever compared, never looked for on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from gemel.errors import InputError
from gemel.model import Model
from gemel.serve.errors import RouteError
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


CHARACTERS_PER_TOKEN = 4  # a list of ids may have as many as a text of the longest length has, roughly

IDS_AT_ONCE = 64  # texts tokenized at once


def many_ids(lists: Sequence[Sequence[int]]) -> bool:
    """Work on these ids is long work: see `Services.work`."""
    return CHARACTERS_PER_TOKEN * sum(map(len, lists)) > LONG_CHARACTERS


def texts_of_ids(
    services: Services, lists: Sequence[Sequence[int]], name: str, *, marks: bool = False
) -> list[str]:
    """The texts that lists of token ids stand for. `marks`: special tokens are written too."""
    tokenizer, count = services.model.tokenizer, sum(map(len, lists))
    if len(lists) > services.limits.texts:
        raise TooLarge(
            f"{name} has {len(lists):,} lists; one request takes at most {services.limits.texts:,}"
        )
    if count > services.limits.tokens:
        raise TooLarge(f"{name} has {count:,} tokens; one request takes at most {services.limits.tokens:,}")
    longest = max(1, services.limits.characters // CHARACTERS_PER_TOKEN)
    for place, ids in enumerate(lists):
        if len(ids) > longest:
            where = f"{name}[{place}]" if len(lists) > 1 else name
            raise TooLarge(f"{where} has {len(ids):,} tokens; a text takes at most {longest:,}. Send several")
    known = tokenizer.vocabulary
    for ids in lists:
        wrong = next((each for each in ids if not 0 <= each < known), None)
        if wrong is not None:
            raise InputError(
                f"{name} has the token id {wrong}; {services.model_name} knows ids from 0 to {known - 1}. "
                "Send texts, or ids of this model's own tokenizer (those of tiktoken mean other words)"
            )
    return [tokenizer.text(ids, marks=marks) for ids in lists]


def texts_to_encode(services: Services, lists: Sequence[Sequence[int]], name: str) -> list[str]:
    """As `texts_of_ids`, refusing ids that would reach the model as others: its tokenizer never makes such a sequence.

    So a vector is that of the very ids that were sent, and most ids of a foreign tokenizer are noticed.
    """
    tokenizer = services.model.tokenizer
    texts = texts_of_ids(services, lists, name)
    contents = (
        content
        for start in range(0, len(texts), IDS_AT_ONCE)
        for content in tokenizer.content(texts[start : start + IDS_AT_ONCE])
    )
    for place, (ids, again) in enumerate(zip(lists, contents, strict=True)):
        sent = [each for each in ids if each not in tokenizer.specials]
        if sent != [each for each in again.tolist() if each not in tokenizer.specials]:
            raise InputError(
                f"{name}[{place}] is no sequence of token ids that the tokenizer of {services.model_name} makes. "
                "Send texts, or ids of this model's own tokenizer (those of tiktoken mean other words)"
            )
    return texts


def last_tokens(model: Model, text: str, prompt: str = "") -> str:
    """The end of a text that the model reads whole, where it would otherwise read the beginning."""
    if model.max_length is None:
        return text
    room = model.max_length - len(model.tokenizer.marks)
    room -= len(model.tokenizer.content([prompt])[0]) if prompt else 0
    pieces = model.tokenizer.pieces(text, marked=False)
    if room < 1 or len(pieces) <= room:
        return text
    for piece in pieces[len(pieces) - room :]:
        end = text[piece.start :]
        # The rest of a word that was cut may take more tokens than it had before.
        if len(model.tokenizer.content([end])[0]) <= room:
            return end
    return text


def last_tokens_of(services: Services, texts: Sequence[str], prompt: str = "") -> list[str]:
    """The ends of texts, if they are within the tokens of a request. Runs on a worker thread."""
    check_tokens(services, texts)
    return [last_tokens(services.model, text, prompt) for text in texts]


def first_tokens(model: Model, text: str, most: int) -> str:
    """The beginning of a text, at most so many tokens."""
    if len(text) <= most:  # a token stands for at least one character, but for marks
        return text
    pieces = model.tokenizer.pieces(text, marked=False)
    return text if len(pieces) <= most else text[: pieces[most - 1].stop]


_OWNER = "sentence-transformers/"


def aliases(services: Services) -> set[str]:
    """What the loaded model may be called: with and without the owner of its repository."""
    names = {services.model_name, services.model.name}
    names |= {name.rpartition("/")[2] for name in names}
    return names | {_OWNER + name for name in names if "/" not in name}


def known_models(services: Services) -> list[str]:
    """What is loaded, by the names to use."""
    return [services.model_name, *([services.cross_name] if services.cross_name else [])]


def check_model(services: Services, name: str) -> None:
    """Refuse (404) a name that is not the loaded model's."""
    if name not in aliases(services):
        _refuse(services, name)


def check_ranker(services: Services, name: str | None) -> None:
    """Refuse (404) a name that is neither the cross-encoder's nor the model's; None means what is loaded."""
    cross = {services.cross_name, (services.cross_name or "").rpartition("/")[2]} - {None, ""}
    if name is not None and name not in aliases(services) | cross:
        _refuse(services, name)


def _refuse(services: Services, name: str) -> None:
    known = ", ".join(known_models(services))
    raise RouteError(
        404,
        f"the model {name[:100]!r} is not loaded here. Loaded: {known}",
        code="model_not_found",
        param="model",
    )
