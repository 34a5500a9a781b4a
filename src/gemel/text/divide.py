"""Texts to passages that a model reads whole: short ones are left alone, long ones are split and counted again."""

from __future__ import annotations

from collections.abc import Sequence

from gemel.errors import InputError
from gemel.text.passages import split
from gemel.text.tokenizer import TextTokenizer


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

    def divide(self, texts: Sequence[str]) -> list[list[str]]:
        """The passages of each text. A text that fits was tokenised once, without places."""
        return [
            [text] if over <= 0 else self._passages(text, self._room)
            for text, over in zip(texts, self._over(texts), strict=True)
        ]

    def _passages(self, text: str, room: int) -> list[str]:
        """Text alone may have other tokens than inside a longer one: what does not fit is split again, smaller."""
        parts = [span.of(text) for span in split(text, self._tokenizer.places(text), room)]
        found: list[str] = []
        for part, over in zip(parts, self._over(parts), strict=True):
            if over <= 0 or len(part) == 1 or (len(parts) == 1 and room == 1):
                found.append(part)
            else:
                found += self._passages(part, max(1, room - over))
        return found

    def _over(self, texts: Sequence[str]) -> list[int]:
        """By how many tokens each text, as a passage, is too long; 0 and less: it fits."""
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        contents = self._tokenizer.content(prompted, parallel=self._parallel)
        return [len(content) - self._most for content in contents]


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
