"""Where a long text is divided: passages that follow one another, joined are the text, and end where a reader would.

Works on the places of tokens, so it needs no tokenizer; the places count characters of the text.

Texts to passages that a model reads whole: short ones are left alone, long ones are split and counted again.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.tokenizer import TextTokenizer, TokenIds
from gemel.errors import InputError

Places = NDArray[np.int64]
"""(t, 2): where each token of a text starts and stops, ascending."""

_FILLED = 1 / 3  # of the room; a paragraph that ends sooner would leave a title or half a line alone

_ENDS = (
    re.compile(r"\n[^\S\n]*\n\s*"),  # paragraphs
    re.compile(r"""[.!?…؟।]["'”’»)\]]*\s+|[。！？｡]["'”’」』）]*\s*|\n\s*"""),  # sentences, lines
)

# Words; scripts that are written without spaces may be divided after any character.
_WORD_END = re.compile(r"\s+|(?<=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff])")

_SPACES = re.compile(r"\s*")


@dataclass(frozen=True)
class Span:
    """Characters [start, stop) of a text."""

    start: int
    stop: int

    def of(self, text: str) -> str:
        return text[self.start : self.stop]


def split(text: str, places: Places, room: int) -> list[Span]:
    """Passages of at most `room` tokens, from the first character to the last; white space goes to the one before it.

    A passage ends at a paragraph, else at a sentence or line, if that fills a third of the room; else at a word. A
    word of more than `room` tokens is cut. One character of more than `room` tokens is a passage of its own.
    """
    starts = _starts(text, places)
    spans: list[Span] = []
    begin = first = 0
    while len(starts) - first > room:
        least, limit = starts[first + int(room * _FILLED)], starts[first + room]
        cut = _nice_cut(text, begin, least, limit) or _hard_cut(starts, first, room, begin)
        if cut is None:
            break
        spans.append(Span(begin, cut))
        begin, first = cut, bisect_left(starts, cut, lo=first)
        if first and places[first - 1, 1] > cut:  # a token that goes on after the cut counts on both sides
            first -= 1
    return [*spans, Span(begin, len(text))]


def _starts(text: str, places: Places) -> list[int]:
    """Where each token starts to be more than the white space before a word, which some tokenizers count to it."""
    found, before = [], 0
    for start, stop in places.tolist():
        word = _SPACES.match(text, start, stop)
        place = word.end() if word is not None and word.end() < stop else start
        before = max(before, place)
        found.append(before)
    return found


def _nice_cut(text: str, begin: int, least: int, limit: int) -> int | None:
    """The last end of a paragraph, sentence or word up to `limit`; None: there is none."""
    for ends in _ENDS:
        cut = _last(ends, text, begin, limit)
        if cut is not None and cut > least:
            return cut
    while begin < limit and text[begin].isspace():  # nothing but white space is no passage
        begin += 1
    return _last(_WORD_END, text, begin + 1, limit)


def _last(pattern: re.Pattern[str], text: str, start: int, limit: int) -> int | None:
    return max((match.end() for match in pattern.finditer(text, start, limit)), default=None)


def _hard_cut(starts: list[int], first: int, room: int, begin: int) -> int | None:
    """Inside a word: before the first token that has no room, but never inside a character."""
    token = first + room
    while token > first and starts[token] == starts[token - 1]:
        token -= 1
    if starts[token] > begin:
        return starts[token]
    return next((start for start in starts[first + room :] if start > begin), None)


@dataclass(frozen=True, eq=False)
class Passage:
    """A part of a text, with its tokens (prompt included, special tokens not): it need not be tokenized again."""

    text: str
    tokens: TokenIds


class Divider:
    """One tokenizer, one prompt before every passage, and the tokens that passage, prompt and marks may have."""

    def __init__(self, tokenizer: TextTokenizer, prompt: str, most: int, *, parallel: bool = True) -> None:
        self._tokenizer, self._prompt, self._parallel = tokenizer, prompt, parallel
        self._most = most - len(tokenizer.marks)
        self._room = self._most - (len(tokenizer.content([prompt])[0]) if prompt else 0)
        if self._room < 1:
            raise InputError(
                f"passages of {most} tokens leave no room for a text beside the marks and the prompt of this "
                f"model, which take {most - self._room}. Use at least {most - self._room + 1}"
            )

    def divide(self, texts: Sequence[str]) -> list[list[Passage]]:
        """The passages of each text. A text that fits is tokenized once, without offsets."""
        return [
            [whole] if len(whole.tokens) <= self._most else self._passages(whole.text, self._room)
            for whole in self._tokenized(texts)
        ]

    def _passages(self, text: str, room: int) -> list[Passage]:
        """Text alone may have other tokens than inside a longer one: what does not fit is split again, smaller."""
        parts = [span.of(text) for span in split(text, self._tokenizer.places(text), room)]
        found: list[Passage] = []
        for part in self._tokenized(parts):
            over = len(part.tokens) - self._most
            if over <= 0 or len(part.text) == 1 or (len(parts) == 1 and room == 1):
                found.append(part)
            else:
                found += self._passages(part.text, max(1, room - over))
        return found

    def _tokenized(self, texts: Sequence[str]) -> list[Passage]:
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        contents = self._tokenizer.content(prompted, parallel=self._parallel)
        return [Passage(text, content) for text, content in zip(texts, contents, strict=True)]


def passage_limit(tokens: int | None, reads: int | None) -> int | None:
    """The tokens of a passage where `tokens` were asked for and the model reads `reads`; None: no limit."""
    if tokens is None:
        return reads
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"tokens must be a whole number of at least 1, got {tokens!r}")
    if reads is not None and tokens > reads:
        raise InputError(
            f"passages of {tokens} tokens would be cut: the model reads {reads}. Use at most that"
        )
    return tokens
