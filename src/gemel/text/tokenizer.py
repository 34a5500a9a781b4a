"""Texts -> token ids, whole: what is cut, and how, is decided later and in the open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tokenizers
from numpy.typing import NDArray

from gemel.errors import InputError, ModelError

TokenIds = NDArray[np.int32]
_PROBES = ("a", "the", "1", ".")


@dataclass(frozen=True)
class Piece:
    """One token and the characters of the text it stands for."""

    id: int
    token: str
    """As the vocabulary writes it."""
    mark: bool
    """Put there by the tokenizer, not found in the text."""
    start: int
    stop: int


@dataclass(frozen=True)
class Marks:
    """Special tokens around every text: [CLS] ... [SEP] for BERT, none for a static table."""

    before: TokenIds
    after: TokenIds

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, content: TokenIds) -> TokenIds:
        return np.concatenate([self.before, content, self.after])


class TextTokenizer:
    """A tokenizer that is never changed after it was made, so any number of threads may use it at once.

    `dropped` is the id of the token that never counts, or None.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, *, marked: bool = True, drop: str | None = None
    ) -> None:
        """`marked` False: no marks are put around a text. `drop` names a token that never counts."""
        self._tokenizer = tokenizer
        self.dropped: int | None = tokenizer.token_to_id(drop) if drop else None
        self.marks = _find_marks(tokenizer) if marked else Marks(*np.empty((2, 0), np.int32))

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    @cached_property
    def specials(self) -> frozenset[int]:
        """Ids of special tokens: those that `text` leaves out."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    def lead(self, prompt: str) -> int:
        """Tokens that stand before a text's own: the marks, and those of a prompt."""
        return len(self.marks.before) + len(self.content([prompt])[0])

    def content(self, texts: Sequence[str], *, parallel: bool = True) -> list[TokenIds]:
        """Token ids of each text, without marks."""
        with _tokenizing():
            if parallel and len(texts) > 1:
                encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            else:
                encodings = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
            contents = [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
        if self.dropped is not None:
            contents = [content[content != self.dropped] for content in contents]
        return contents

    def places(self, text: str) -> NDArray[np.int64]:
        """(t, 2): for each token of `content` the characters [start, stop) of the text that it stands for."""
        with _tokenizing():
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        places = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return places if self.dropped is None else places[np.asarray(encoding.ids) != self.dropped]

    def names(self, ids: TokenIds) -> list[str]:
        """The tokens as the vocabulary writes them."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]

    def pieces(self, text: str, *, marked: bool = True) -> list[Piece]:
        """The tokens of a text with their places in it, marks included where a text has them."""
        with _tokenizing():
            found = self._tokenizer.encode(text, add_special_tokens=marked and len(self.marks) > 0)
        columns = zip(found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True)
        return [Piece(i, token, bool(mark), *place) for i, token, mark, place in columns]

    def text(self, ids: Sequence[int], *, marks: bool = False) -> str:
        """The text that these ids stand for, as near as the vocabulary can say it; `marks`: special tokens too."""
        with _tokenizing():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=not marks))


@contextmanager
def _tokenizing() -> Iterator[None]:
    """A tokenizer.json may be read and still fail at a text: no unknown token, ids that are none, a panic inside."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises plain Exception, and its panics are not even that
        raise ModelError(
            f"the tokenizer fails at a text: {error}. Is its tokenizer.json whole? Fetch or copy the model again"
        ) from error


def check_texts(texts: object, name: str = "texts") -> list[str]:
    """A list of strings that can be encoded, or an error that names the first position that cannot.

    `name` is what the error calls the list.
    """
    if isinstance(texts, str | bytes):
        raise InputError("encode takes a list of texts, got one string. Write encode([text])[0]")
    try:
        checked: list[str] = list(texts)  # type: ignore[call-overload]
    except TypeError:
        raise InputError(f"encode takes a list of texts, got {type(texts).__name__}") from None
    for position, text in enumerate(checked):
        if not isinstance(text, str):
            raise InputError(f"{name}[{position}] is {_what(text)}, not a string. Remove or convert it first")
        if not text.isascii():
            _check_characters(f"{name}[{position}]", text)
    return checked


def _check_characters(place: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place} has half a character (a lone surrogate, U+{ord(text[error.start]):04X}) at place "
            f"{error.start}. Repair it with: text.encode('utf-8', 'replace').decode()"
        ) from None


def _what(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _find_marks(tokenizer: tokenizers.Tokenizer) -> Marks:
    """What the tokenizer puts before and after a text, seen on a short one."""
    for probe in _PROBES:
        with _tokenizing():
            bare = tokenizer.encode(probe, add_special_tokens=False).ids
            full = tokenizer.encode(probe, add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1) if bare else ():
            if full[start : start + len(bare)] == bare:
                end = start + len(bare)
                with _tokenizing():  # an id may be too large
                    return Marks(np.asarray(full[:start], np.int32), np.asarray(full[end:], np.int32))
    raise ModelError(
        "the tokenizer gives no tokens for the texts 'a', 'the', '1' and '.': is its vocabulary empty?"
    )
