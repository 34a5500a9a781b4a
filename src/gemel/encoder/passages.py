"""Long texts to passages that a model can read. They end at paragraphs, sentences or words, and joined are the text.

Late chunking (arXiv 2409.04701): the network reads the whole text, and the vectors of the tokens of each passage are
averaged, so that the vector of a passage knows what stands around it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.batches import TokenReader
from gemel.encoder.head import check_finite, finish_as
from gemel.encoder.pooling import sum_of_tokens
from gemel.encoder.tokenizer import (
    SpecialTokens,
    TextPreparer,
    TextTokenizer,
    TokenIds,
    Windows,
    cut,
    refuse_long,
)
from gemel.errors import InputError
from gemel.options import EncodeOptions, check_choice, check_count
from gemel.types import AnyVectors, ShownResult, Vectors

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


# Late chunking.

PassageRule: TypeAlias = Literal["passage", "sentence", "paragraph", "tokens"]
"""How a text is divided: as `Model.passages` does, by sentences or paragraphs, or every so many tokens."""

LATE_TOKENS = 128
"""Tokens of a passage, unless another number is given."""

_OVERLAP = 16  # tokens that two neighbors share, with "tokens"


@dataclass(frozen=True, eq=False)
class PassageVectors(ShownResult):
    """Several vectors per text: one for each of its passages, in order."""

    vectors: AnyVectors
    """(n, dim)"""
    texts: NDArray[np.int64]
    """(n,) the position of the text that each passage is of, ascending."""
    spans: NDArray[np.int64]
    """(n, 2) the characters [start, stop) of its text."""

    def __len__(self) -> int:
        return len(self.vectors)

    def of(self, text: int) -> AnyVectors:
        """(passages, dim) of one text."""
        own: AnyVectors = self.vectors[self.texts == text]
        return own

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for text, (start, stop), vector in zip(self.texts, self.spans, self.vectors, strict=True):
            yield {"text": text, "start": start, "stop": stop, "vector": vector}


@dataclass(frozen=True)
class PassageDivider:
    """Divides texts into spans of characters, by a rule or as the caller says."""

    by: PassageRule | Sequence[Sequence[tuple[int, int]]]
    tokens: int | None = None
    overlap: int | None = None
    chunks: Literal["late", "plain"] = "late"

    def __post_init__(self) -> None:
        check_choice("chunks", self.chunks, ("late", "plain"))
        if isinstance(self.by, str):
            check_choice("by", self.by, get_args(PassageRule))
        if self.tokens is not None:
            check_count("tokens", self.tokens)
        if self.overlap is not None and self.by != "tokens":
            raise InputError("overlap is for by='tokens'; other passages do not overlap")
        if not 0 <= self._overlap < self._tokens:
            raise InputError(
                f"overlap must be less than tokens, {self._tokens}, and not negative, got {self.overlap}"
            )

    @property
    def _tokens(self) -> int:
        return LATE_TOKENS if self.tokens is None else self.tokens

    @property
    def _overlap(self) -> int:
        return min(_OVERLAP, self._tokens - 1) if self.overlap is None else self.overlap

    def spans(self, position: int, text: str, starts: Sequence[int], offsets: Offsets) -> list[Span]:
        """Of one text; `starts` and `offsets` are those of its tokens."""
        if not isinstance(self.by, str):
            return self._given(position, text)
        if self.by == "tokens":
            return self._windows(text, starts)
        if self.by == "passage":
            spans = split(text, offsets, self._tokens)
        else:
            ends = (match.end() for match in _ENDS[self.by == "sentence"].finditer(text))
            spans = [Span(*each) for each in pairwise(dict.fromkeys([0, *ends, len(text)]))]
            if self.tokens is not None:
                spans = [
                    part for span in spans for part in _shorter(text, span, starts, offsets, self.tokens)
                ]
        return _with_tokens(spans or [Span(0, len(text))], starts)

    def _given(self, position: int, text: str) -> list[Span]:
        assert not isinstance(self.by, str)
        spans = [Span(*each) for each in self.by[position]]
        for span in spans:
            if not 0 <= span.start <= span.stop <= len(text):
                raise InputError(
                    f"by[{position}] has the span ({span.start}, {span.stop}), but texts[{position}] has {len(text)} "
                    "characters"
                )
        return spans

    def _windows(self, text: str, starts: Sequence[int]) -> list[Span]:
        step, count = self._tokens - self._overlap, len(starts)
        firsts = range(0, max(1, count - self._overlap), step)
        ends = [
            starts[first + self._tokens] if first + self._tokens < count else len(text) for first in firsts
        ]
        return [Span(starts[first] if first else 0, end) for first, end in zip(firsts, ends, strict=True)]


def _shorter(text: str, span: Span, starts: Sequence[int], offsets: Offsets, tokens: int) -> list[Span]:
    """The span, divided where it has more than so many tokens."""
    first, last = bisect_left(starts, span.start), bisect_left(starts, span.stop)
    if last - first <= tokens:
        return [span]
    inside = split(span.of(text), offsets[first:last] - span.start, tokens)
    return [Span(span.start + each.start, span.start + each.stop) for each in inside]


def _with_tokens(spans: Sequence[Span], starts: Sequence[int]) -> list[Span]:
    """Adjacent spans; one without a token (white space) is joined with the one before it, or after it."""
    out: list[Span] = []
    for span in spans:
        empty = bisect_left(starts, span.start) == bisect_left(starts, span.stop)
        before_empty = bool(out) and bisect_left(starts, out[-1].start) == bisect_left(starts, out[-1].stop)
        if out and (empty or before_empty):
            out[-1] = Span(out[-1].start, span.stop)
        else:
            out.append(span)
    return out


@dataclass(frozen=True)
class _LateText:
    """One text in windows, and which of their tokens count for which span."""

    windows: Windows
    spans: list[Span]
    parts: list[list[tuple[int, int, int]]]
    """For each span (window, first token, last token + 1), special tokens included."""


def late_passages(
    reader: TokenReader, texts: Sequence[str], options: EncodeOptions, divider: PassageDivider
) -> PassageVectors:
    """The mean of the token vectors of each passage, finished.

    A text that is longer than the model reads is read in windows that overlap; each token counts in the window in which
    it is farther from an edge.
    """
    checkpoint = reader.checkpoint
    check_late_chunking(checkpoint)
    late = [_late_text(reader.preparer, n, text, options, divider) for n, text in enumerate(texts)]
    pooled = _span_means(reader, late)
    check_finite(pooled, checkpoint)
    vectors = finish_as(checkpoint, pooled, options)
    check_finite(vectors, checkpoint)
    if options.output != "float32":
        from gemel.vectors.search import quantize

        return _passage_vectors(quantize(vectors, options.output), [each.spans for each in late])
    return _passage_vectors(vectors, [each.spans for each in late])


def _span_means(reader: TokenReader, late: Sequence[_LateText]) -> Vectors:
    """(spans, width). Sums of a span that is in two windows are added in their order, whichever is done first."""
    every = [parts for each in late for parts in each.parts]
    first_piece = np.cumsum([0, *(len(each.windows.pieces) for each in late)]).tolist()
    firsts = [first for each, first in zip(late, first_piece, strict=False) for _ in each.parts]
    wanted: dict[
        int, list[tuple[int, int]]
    ] = {}  # piece: spans that have tokens in it, with the number of the part
    for span, (first, parts) in enumerate(zip(firsts, every, strict=True)):
        for number, (window, _, _) in enumerate(parts):
            wanted.setdefault(first + window, []).append((span, number))
    sums: dict[tuple[int, int], Vectors] = {}

    def keep(positions: NDArray[np.int64], hidden: Vectors) -> None:
        for position, states in zip(positions.tolist(), hidden, strict=True):
            for span, number in wanted.get(position, ()):
                _, start, stop = every[span][number]
                sums[span, number] = sum_of_tokens(states[start:stop])

    reader.run([piece for each in late for piece in each.windows.pieces], keep=keep)
    pooled = np.zeros((len(every), reader.width), dtype=np.float32)
    for span, parts in enumerate(every):
        for number in range(len(parts)):
            pooled[span] = pooled[span] + sums[span, number] if number else sums[span, number]
        if parts:
            pooled[span] /= np.float32(sum(stop - start for _, start, stop in parts))
    return pooled


def plain_passages(
    preparer: TextPreparer,
    texts: Sequence[str],
    divider: PassageDivider,
    encode: Callable[[Sequence[str]], AnyVectors],
) -> PassageVectors:
    """The same passages, each encoded alone."""
    every = []
    for position, text in enumerate(texts):
        offsets = preparer.tokenizer.offsets(text)
        every.append(divider.spans(position, text, _starts(text, offsets), offsets))
    parts = [span.of(text) for text, spans in zip(texts, every, strict=True) for span in spans]
    return _passage_vectors(encode(parts), every)


def check_late_chunking(checkpoint: Checkpoint) -> None:
    """Refuse a model whose vectors are not means of token vectors: a part of a text has no such vector."""
    modes = checkpoint.pooling.modes
    if modes != ("mean",):
        raise InputError(
            f"late chunking needs a model with mean pooling, but {checkpoint.name} has {' and '.join(modes)}. Encode "
            "its passages one by one: encode_passages(..., chunks='plain'), or an index without late chunks"
        )


def _passage_vectors(vectors: AnyVectors, spans: Sequence[Sequence[Span]]) -> PassageVectors:
    owners = np.repeat(np.arange(len(spans)), [len(each) for each in spans])
    offsets = [(span.start, span.stop) for each in spans for span in each]
    return PassageVectors(vectors, owners, np.array(offsets, dtype=np.int64).reshape(-1, 2))


def _late_text(
    preparer: TextPreparer, position: int, text: str, options: EncodeOptions, divider: PassageDivider
) -> _LateText:
    prompt, special = preparer.prompt(options), preparer.tokenizer.special
    full = prompt + text
    content, offsets = preparer.tokenizer.content([full], parallel=False)[0], preparer.tokenizer.offsets(full)
    windows = cut(content, special, preparer.limit(options), "chunk")
    starts = [start - len(prompt) for start in _starts(full, offsets)]
    before = bisect_left(starts, 0)  # tokens of the prompt
    spans = divider.spans(position, text, starts[before:], offsets[before:] - len(prompt))
    skip = preparer.prompt_tokens(options)
    parts = []
    for span in spans:
        first, last = bisect_left(starts, span.start), bisect_left(starts, span.stop)
        # The prompt belongs to the first passage, as do the special tokens before the text.
        parts.append(_parts(windows, special, (first if first > before else 0, last), skip))
    return _LateText(windows, spans, parts)


def _parts(
    windows: Windows, special: SpecialTokens, tokens: tuple[int, int], skip: int
) -> list[tuple[int, int, int]]:
    """Where tokens [first, last) of a text are in its windows. `skip`: tokens at the start that do not count.

    Special tokens belong to the first and the last passage, as in the code of the paper: a text of one passage has the
    vector that `encode` gives. Those of windows inside of a text count nowhere.
    """
    lead, count = len(special.before), windows.tokens - len(special)
    ends = [
        start + len(piece) - len(special) for start, piece in zip(windows.starts, windows.pieces, strict=True)
    ]
    borders = [0, *((end + start) // 2 for end, start in zip(ends, windows.starts[1:], strict=False)), count]
    first, last = max(tokens[0], skip - lead), tokens[1]
    parts = []
    for number, (start, piece) in enumerate(zip(windows.starts, windows.pieces, strict=True)):
        left, right = max(first, borders[number]), min(last, borders[number + 1])
        at, to = lead + left - start, lead + right - start
        if number == 0 and tokens[0] == 0:
            at = skip
        if number == len(windows.pieces) - 1 and last == count:
            to = len(piece)
        if to > at:
            parts.append((number, at, to))
    return parts
