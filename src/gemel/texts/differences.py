"""What a cosine cannot tell: a number, a negation or swapped roles that set two similar texts apart.

The vectors of "The ticket costs twelve euros" and "The ticket costs twenty euros" are nearly equal. These checks
compare words: they cost nothing, know English only, miss what is said in other words ("refused" for "not accepted")
and mark some pairs that do mean the same. A cross-encoder or an NLI model reads both texts and tells more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from gemel.vectors.bm25 import STOP_WORDS

Difference = Literal["number", "negation", "swapped roles"]

_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*")

_NEGATIONS = frozenset(
    ("not", "no", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "without", "cannot")
)

# fmt: off
_NUMBERS = {  # without "one", which is mostly a pronoun
    "zero": 0, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17,
    "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70,
    "eighty": 80, "ninety": 90, "hundred": 100, "thousand": 1000, "million": 1_000_000,
}
# fmt: on

_LONGEST = 60  # words among which swapped roles are looked for

_SAME_WORDS = 0.6  # share of equal content words from which a negation in one text is marked


def differences(left: str, right: str) -> tuple[Difference, ...]:
    """What sets two similar texts apart, as far as their words show it; empty: nothing was found.

    number: both have numbers, and other ones. negation: nearly the same words, negated in one of them. swapped roles:
    the same words, two of them exchanged around a third, as in "the dog chased the cat".
    """
    one, other = _tokens(left), _tokens(right)
    checks: dict[Difference, bool] = {
        "number": _numbers_differ(one, other),
        "negation": _negation_differs(one, other),
        "swapped roles": _roles_swapped(one, other),
    }
    return tuple(name for name, differs in checks.items() if differs)


def _tokens(text: str) -> list[str]:
    return [token.replace("’", "'") for token in _TOKEN.findall(text.casefold())]


def _numbers_differ(one: Sequence[str], other: Sequence[str]) -> bool:
    left, right = _numbers(one), _numbers(other)
    return bool(left) and bool(right) and left != right


def _numbers(tokens: Sequence[str]) -> Counter[str]:
    """The numbers of a text, "12" and "twelve" alike; "twenty five" and "25" count as different."""
    numbers = (str(_NUMBERS.get(token, token)) for token in tokens)
    return Counter(number.replace(",", "") for number in numbers if number[0].isdigit())


def _negation_differs(one: Sequence[str], other: Sequence[str]) -> bool:
    if _negations(one) % 2 == _negations(other) % 2:
        return False
    left, right = _content(one), _content(other)
    return len(left & right) >= _SAME_WORDS * len(left | right)


def _negations(tokens: Sequence[str]) -> int:
    return sum(token in _NEGATIONS or token.endswith("n't") for token in tokens)


def _content(tokens: Sequence[str]) -> set[str]:
    return {
        token
        for token in tokens
        if token not in STOP_WORDS and token not in _NEGATIONS and not token.endswith("n't")
    }


def _roles_swapped(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the texts are A X B and B X A within equal words; X is more than "and" or "or", which swap freely."""
    if one == other or Counter(one) != Counter(other):
        return False
    begin = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    end = next(at for at, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=True)) if a != b)
    left, right = one[begin : len(one) - end], other[begin : len(other) - end]
    count = len(left)
    if count > _LONGEST:
        return False
    for first in range(1, count - 1):  # words of A
        for second in range(1, count - first):  # words of B
            middle = left[first : count - second]
            swapped = [*left[count - second :], *middle, *left[:first]] == right
            if swapped and not set(middle) <= {"and", "or", "the", "a", "an"}:
                return True
    return False
