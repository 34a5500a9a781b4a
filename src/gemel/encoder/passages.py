"""Long texts to passages that a model can read. They end at paragraphs, sentences or words, and joined are the text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.tokenizer import TextPreparer, TextTokenizer, TokenIds, Windows, cut, refuse_long
from gemel.errors import InputError
from gemel.options import EncodeOptions, check_count

Offsets = NDArray[np.int64]
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


def split(text: str, offsets: Offsets, room: int) -> list[Span]:
    """Passages of at most `room` tokens, from the first character to the last; white space goes to the one before it.

    A passage ends at a paragraph, else at a sentence or line, if that fills a third of the room; else at a word. A
    word of more than `room` tokens is cut. One character of more than `room` tokens is a passage of its own.
    """
    starts = _starts(text, offsets)
    spans: list[Span] = []
    begin = first = 0
    while len(starts) - first > room:
        least, limit = starts[first + int(room * _FILLED)], starts[first + room]
        cut = _nice_cut(text, begin, least, limit) or _hard_cut(starts, first, room, begin)
        if cut is None:
            break
        spans.append(Span(begin, cut))
        begin, first = cut, bisect_left(starts, cut, lo=first)
        if first and offsets[first - 1, 1] > cut:  # a token across the cut counts on both sides
            first -= 1
    return [*spans, Span(begin, len(text))]


def _starts(text: str, offsets: Offsets) -> list[int]:
    """Where each token starts, without the white space before a word that some tokenizers include."""
    starts, before = [], 0
    for start, stop in offsets.tolist():
        spaces = _SPACES.match(text, start, stop)
        before = max(before, spaces.end() if spaces is not None and spaces.end() < stop else start)
        starts.append(before)
    return starts


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
    """Splits texts for one tokenizer, one prompt, and at most `most` tokens of passage, prompt and special tokens."""

    def __init__(self, tokenizer: TextTokenizer, prompt: str, most: int, *, parallel: bool = True) -> None:
        self._tokenizer, self._prompt, self._parallel = tokenizer, prompt, parallel
        self._most = most - len(tokenizer.special)
        self._room = self._most - (len(tokenizer.content([prompt])[0]) if prompt else 0)
        if self._room < 1:
            raise InputError(
                f"passages of {most} tokens leave no room for a text beside the special tokens and the prompt of this "
                f"model, which take {most - self._room}. Use at least {most - self._room + 1}"
            )

    def divide(self, texts: Sequence[str]) -> list[list[Passage]]:
        """The passages of each text. A text that fits is tokenized once, without offsets."""
        return [
            [full] if len(full.tokens) <= self._most else self._passages(full.text, self._room)
            for full in self._tokenized(texts)
        ]

    def _passages(self, text: str, room: int) -> list[Passage]:
        """A passage may have more tokens alone than inside its text: what does not fit is split again, smaller."""
        parts = [span.of(text) for span in split(text, self._tokenizer.offsets(text), room)]
        passages: list[Passage] = []
        for part in self._tokenized(parts):
            over = len(part.tokens) - self._most
            if over <= 0 or len(part.text) == 1 or (len(parts) == 1 and room == 1):
                passages.append(part)
            else:
                passages += self._passages(part.text, max(1, room - over))
        return passages

    def _tokenized(self, texts: Sequence[str]) -> list[Passage]:
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        contents = self._tokenizer.content(prompted, parallel=self._parallel)
        return [Passage(text, content) for text, content in zip(texts, contents, strict=True)]


@dataclass(frozen=True)
class PreparedPassage:
    """One passage of a text, tokenized."""

    text: str
    windows: Windows


def split_texts(
    preparer: TextPreparer, texts: Sequence[str], options: EncodeOptions, tokens: int | None
) -> list[list[str]]:
    """The passages of each text, at most `tokens` tokens each; None: as many as the model reads."""
    most = passage_limit(tokens, preparer.limit(options))
    if most is None:
        return [[text] for text in texts]
    return [[passage.text for passage in parts] for parts in _divider(preparer, options, most).divide(texts)]


def prepare_passages(
    preparer: TextPreparer, texts: Sequence[str], options: EncodeOptions, tokens: int | None
) -> list[list[PreparedPassage]]:
    """As `split_texts`, each passage with its tokens, ready to run."""
    limit = preparer.limit(options)
    most = passage_limit(tokens, limit)
    if most is None:
        windows = preparer.windows(texts, options)
        return [[PreparedPassage(*each)] for each in zip(texts, windows, strict=True)]
    special = preparer.tokenizer.special
    passages = [
        [PreparedPassage(each.text, cut(each.tokens, special, limit, options.on_long)) for each in parts]
        for parts in _divider(preparer, options, most).divide(texts)
    ]
    if options.on_long == "error":
        every = [passage for parts in passages for passage in parts]
        all_texts = [passage.text for passage in every]
        refuse_long([passage.windows for passage in every], all_texts, all_texts)
    return passages


def _divider(preparer: TextPreparer, options: EncodeOptions, most: int) -> Divider:
    return Divider(preparer.tokenizer, preparer.prompt(options), most, parallel=options.threads != 1)


def passage_limit(tokens: int | None, reads: int | None) -> int | None:
    """The most tokens of a passage: the requested `tokens`, or what the model reads; None: no limit."""
    if tokens is None:
        return reads
    check_count("tokens", tokens)
    if reads is not None and tokens > reads:
        raise InputError(
            f"passages of {tokens} tokens would be cut: the model reads {reads}. Use at most that"
        )
    return tokens
