"""Token ids that clients send, and texts cut at their beginning or to a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from gemel.errors import InputError
from gemel.model import Model
from gemel.serve.limits import TooLarge
from gemel.serve.port import Services
from gemel.serve.routes.texts import LONG_CHARACTERS, check_tokens

CHARACTERS_PER_TOKEN = 4  # a list of ids may have as many as a text of the longest length has, roughly
PIECE = 64  # texts tokenized at once


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
        for start in range(0, len(texts), PIECE)
        for content in tokenizer.content(texts[start : start + PIECE])
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
