"""What is refused about pairs of texts, before and after they are tokenised."""

from __future__ import annotations

from collections.abc import Sequence

from gemel.errors import InputError
from gemel.text.pair_tokens import PairTokens
from gemel.text.tokenizer import check_texts


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
