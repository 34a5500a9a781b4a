"""Pairs of texts -> token ids of both in one row, with the marks between them, cut where they are too long.

A token of the second kind of text (token type 1) has its id raised by the size of the vocabulary, so that one row of
numbers says all: `id % vocabulary` is the token, `id // vocabulary` its type.

What is refused about pairs of texts, before and after they are tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import tokenizers

from gemel.encoder.tokenizer import TextTokenizer, TokenIds, check_texts, token_ids, tokenizer_errors
from gemel.errors import InputError, ModelError

_PROBES = ("a", "the", "1", ".")


@dataclass(frozen=True)
class PairSpecialTokens:
    """What stands around two texts: [CLS] left [SEP] right [SEP] for BERT. Ids are raised by their types."""

    before: TokenIds
    between: TokenIds
    after: TokenIds
    left: int
    """Added to every id of the left text."""
    right: int

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, left: TokenIds, right: TokenIds) -> TokenIds:
        return np.concatenate([self.before, left + self.left, self.between, right + self.right, self.after])


@dataclass(frozen=True, eq=False)
class PairTokens:
    """One pair, ready to run."""

    ids: TokenIds
    tokens: int
    """Tokens of both whole texts, marks included."""

    @property
    def kept(self) -> int:
        return len(self.ids)


class PairTokenizer:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, vocabulary: int, typed: bool) -> None:
        """`vocabulary`: rows of the network's word table. `typed`: the network is told which text a token is of."""
        self._tokenizer = TextTokenizer(tokenizer, marked=False)
        self.marks = _find_marks(tokenizer, vocabulary if typed else 0)

    def pairs(
        self, left: Sequence[str], right: Sequence[str], limit: int | None, *, parallel: bool = True
    ) -> list[PairTokens]:
        """Each pair in at most `limit` tokens, marks included; a text that stands in many pairs is split once."""
        distinct = list(dict.fromkeys([*left, *right]))
        known = dict(zip(distinct, self._tokenizer.content(distinct, parallel=parallel), strict=True))
        return [self._pair(known[a], known[b], limit) for a, b in zip(left, right, strict=True)]

    def _pair(self, left: TokenIds, right: TokenIds, limit: int | None) -> PairTokens:
        tokens = len(left) + len(right) + len(self.marks)
        if limit is not None and tokens > limit:
            room = limit - len(self.marks)
            if room < 2:
                raise InputError(
                    f"max_length {limit} leaves no room for a token of each text beside the {len(self.marks)} marks "
                    f"of this model. Use at least {len(self.marks) + 2}"
                )
            keep_left, keep_right = longest_first(len(left), len(right), room)
            left, right = left[:keep_left], right[:keep_right]
        return PairTokens(self.marks.around(left, right), tokens)


def longest_first(left: int, right: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay when both together have more than `room`.

    The longer one is cut to the length of the other, then both alike; an odd token goes to the longer, or to the
    right one of two equals. This is the rule `longest_first` of transformers.
    """
    short = min(left, right)
    long = room - short
    if long < short:
        short = room // 2
        long = room - short
    return (long, short) if left > right else (short, long)


def _find_marks(tokenizer: tokenizers.Tokenizer, step: int) -> PairSpecialTokens:
    """What the tokenizer puts around a pair, seen on a short one."""
    for probe in _PROBES:
        with tokenizer_errors():
            encoding = tokenizer.encode(probe, probe)
        parts = groupby(
            zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True), lambda t: t[2]
        )
        found = [(owner, [(number, kind) for number, kind, _ in part]) for owner, part in parts]
        owners = [owner for owner, _ in found if owner is not None]
        if not owners:
            continue
        if owners != [0, 1] or not set(encoding.type_ids) <= {0, 1}:
            break
        texts = [place for place, (owner, _) in enumerate(found) if owner is not None]
        marks = [
            _flat(found[: texts[0]]),
            _flat(found[texts[0] + 1 : texts[1]]),
            _flat(found[texts[1] + 1 :]),
        ]
        ids = [token_ids([number + kind * step for number, kind in part]) for part in marks]
        kinds = [found[place][1][0][1] * step for place in texts]
        return PairSpecialTokens(ids[0], ids[1], ids[2], kinds[0], kinds[1])
    raise ModelError(
        "the tokenizer does not put two texts one after the other, with types 0 and 1: it is not one of a cross-encoder"
    )


def _flat(parts: list[tuple[int | None, list[tuple[int, int]]]]) -> list[tuple[int, int]]:
    return [mark for _, part in parts for mark in part]


def check_pairs(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    """`left[i]` with `right[i]`; the two must be lists of texts, of one length."""
    lefts = check_text_list(left, "left", "scores([left], [right])")
    rights = check_text_list(right, "right", "scores([left], [right])")
    if len(lefts) != len(rights):
        raise InputError(
            f"left has {len(lefts):,} texts, right has {len(rights):,}. Give one right text for each left one"
        )
    return list(zip(lefts, rights, strict=True))


def check_text_list(texts: Sequence[str], name: str, example: str) -> list[str]:
    """A list of texts, called `name` in errors; `example` is what to write for one text."""
    if isinstance(texts, str | bytes):
        raise InputError(f"{name} must be a list of texts, got one string. Write {example}")
    return check_texts(texts, name)


def refuse_long_pairs(
    ready: Sequence[PairTokens], block: Sequence[tuple[str, str]], pairs: Sequence[tuple[str, str]]
) -> None:
    """An error that names the first pair of `block` that was cut by its position in `pairs`."""
    for pair, texts in zip(ready, block, strict=True):
        if pair.kept < pair.tokens:
            raise InputError(
                f"pair {pairs.index(texts)} has {pair.tokens:,} tokens, the model reads {pair.kept:,}. "
                "Shorten it, or use on_long='truncate'"
            )
