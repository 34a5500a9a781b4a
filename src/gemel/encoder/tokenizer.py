"""Texts -> token ids, whole: what is cut, and how, is decided later and in the open.

A text that is longer than the model reads: what is kept of it, and in how many pieces.

What is said of texts that are longer than the model reads: an error, or one line with the numbers.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from gemel.errors import InputError, ModelError
from gemel.options import OnLong

TokenIds = NDArray[np.int32]

CutSide = Literal["left", "right"]

_PROBES = ("a", "the", "1", ".")

LONG = 10_000  # characters of a text whose tokenizing must not hold up other threads


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
class SpecialTokens:
    """Special tokens around every text: [CLS] ... [SEP] for BERT, none for a static table."""

    before: TokenIds
    after: TokenIds
    cut: CutSide = "right"
    """The end at which a text that is too long loses tokens."""

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, content: TokenIds) -> TokenIds:
        return np.concatenate([self.before, content, self.after])


class TextTokenizer:
    """A tokenizer that is never changed after it was made, so any number of threads may use it at once.

    `dropped` is the id of the token that never counts, or None.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        marked: bool = True,
        drop: str | None = None,
        cut: CutSide = "right",
    ) -> None:
        """`marked` False: no special tokens are put around a text. `drop` names a token that never counts.

        `cut` is the end at which long texts lose tokens.
        """
        self._tokenizer = tokenizer
        self.dropped: int | None = tokenizer.token_to_id(drop) if drop else None
        around = _find_marks(tokenizer) if marked else SpecialTokens(*np.empty((2, 0), np.int32))
        self.marks = replace(around, cut=cut)

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
        if parallel and len(texts) > 1:
            with tokenizer_errors():
                encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        else:
            encodings = [self._encoding(text, special=False, fast=True) for text in texts]
        contents = [token_ids(encoding.ids) for encoding in encodings]
        if self.dropped is not None:
            contents = [content[content != self.dropped] for content in contents]
        return contents

    def places(self, text: str) -> NDArray[np.int64]:
        """(t, 2): for each token of `content` the characters [start, stop) of the text that it stands for."""
        encoding = self._encoding(text, special=False)
        places = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return places if self.dropped is None else places[np.asarray(encoding.ids) != self.dropped]

    def names(self, ids: TokenIds) -> list[str]:
        """The tokens as the vocabulary writes them."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]

    def pieces(self, text: str, *, marked: bool = True) -> list[Piece]:
        """The tokens of a text with their places in it, marks included where a text has them."""
        found = self._encoding(text, special=marked and len(self.marks) > 0)
        columns = zip(found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True)
        return [Piece(i, token, bool(mark), *place) for i, token, mark, place in columns]

    def _encoding(self, text: str, *, special: bool, fast: bool = False) -> tokenizers.Encoding:
        """Of one text; a long one as a batch of its own, which leaves Python's lock to other threads meanwhile.

        `fast`: without offsets.
        """
        with tokenizer_errors():
            if len(text) > LONG:
                encode = self._tokenizer.encode_batch_fast if fast else self._tokenizer.encode_batch
                return encode([text], add_special_tokens=special)[0]
            return self._tokenizer.encode(text, add_special_tokens=special)

    def text(self, ids: Sequence[int], *, marks: bool = False) -> str:
        """The text that these ids stand for, as near as the vocabulary can say it; `marks`: special tokens too."""
        with tokenizer_errors():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=not marks))


@contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Makes a ModelError of what the tokenizers library raises: a plain Exception, or a panic, which is none.

    Its regular expressions stop by themselves after ten million steps, and panic.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ModelError(
                f"the tokenizer of the model fails on a text: {error}. Its tokenizer.json is damaged, belongs to "
                "another model, or has a regular expression that takes too long"
            ) from error
        raise


def token_ids(ids: Sequence[int]) -> TokenIds:
    """The ids as an array; one that no network could have is an error."""
    try:
        return np.asarray(ids, dtype=np.int32)
    except OverflowError:
        raise ModelError(
            f"the tokenizer gives the token id {max(ids):,}, which no network has. Is tokenizer.json damaged?"
        ) from None


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


def _find_marks(tokenizer: tokenizers.Tokenizer) -> SpecialTokens:
    """What the tokenizer puts before and after a text, seen on a short one."""
    for probe in _PROBES:
        with tokenizer_errors():
            bare = tokenizer.encode(probe, add_special_tokens=False).ids
            full = tokenizer.encode(probe, add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1) if bare else ():
            if full[start : start + len(bare)] == bare:
                end = start + len(bare)
                return SpecialTokens(token_ids(full[:start]), token_ids(full[end:]))
    raise ModelError(
        "the tokenizer gives no tokens for the texts 'a', 'the', '1' and '.': is its vocabulary empty?"
    )


OVERLAP = 0.25
"""Part of a window that the next one reads again, so that no sentence is seen only from its edge."""


@dataclass(frozen=True)
class Windows:
    """One text, ready to run: each piece with its marks, and how much each piece weighs in the mean."""

    pieces: tuple[TokenIds, ...]
    weights: tuple[int, ...]
    tokens: int
    """Tokens of the whole text, marks included."""
    kept: int
    """Tokens that some piece holds, marks included."""
    starts: tuple[int, ...] = (0,)
    """Where each piece begins in the text's tokens, marks not counted."""


def cut(content: TokenIds, marks: SpecialTokens, limit: int | None, on_long: OnLong) -> Windows:
    """The pieces of one text under `limit` tokens a piece, marks included; None: no limit."""
    tokens = len(content) + len(marks)
    if limit is None or tokens <= limit:
        return Windows((marks.around(content),), (1,), tokens, tokens)
    room = limit - len(marks)
    if room < 1:
        raise InputError(
            f"max_length {limit} leaves no room for a token beside the {len(marks)} marks of this model. "
            f"Use at least {len(marks) + 1}"
        )
    if on_long != "chunk":
        start = 0 if marks.cut == "right" else len(content) - room
        return Windows((marks.around(content[start : start + room]),), (1,), tokens, limit, (start,))
    step = max(1, room - int(room * OVERLAP))
    starts = range(0, len(content) - room + step, step)
    parts = [content[start : start + room] for start in starts]
    pieces = tuple(marks.around(part) for part in parts)
    return Windows(pieces, tuple(map(len, parts)), tokens, tokens, tuple(starts))


_PACKAGE = str(Path(__file__).parent.parent)


class TruncationWarning(UserWarning):
    """Texts were longer than the model reads, and the rest of them did not count."""


def refuse_long(windows: Sequence[Windows], block: Sequence[str], texts: Sequence[str]) -> None:
    """An error that names the first text of `block` that was cut by its position in `texts`."""
    for window, text in zip(windows, block, strict=True):
        if window.kept < window.tokens:
            raise InputError(
                f"texts[{texts.index(text)}] has {window.tokens:,} tokens, the model reads {window.kept:,}. "
                "Shorten it, or use on_long='truncate' or 'chunk'"
            )


def warn_of_long(
    tokens: NDArray[np.int64],
    kept: NDArray[np.int64],
    limit: int | None,
    *,
    what: str = "texts",
    advice: str = "Use on_long='chunk' to read them whole, or 'truncate' to cut them without this line",
) -> None:
    """One line that says how many texts lost how many tokens; nothing where none did."""
    lost = tokens - kept
    count = int((lost > 0).sum())
    if count:
        warnings.warn(
            f"{count:,} of {len(tokens):,} {what} are longer than {limit:,} tokens "
            f"and lost {int(lost.sum()):,} tokens. {advice}",
            TruncationWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    """How many calls up the first line outside this package is: a warning points at the user's code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
