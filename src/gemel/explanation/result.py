"""The answer of `explain`: a table of tokens or of words that sums to the score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.explanation.page import page
from gemel.explanation.pieces import Word, words_of


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each token of `left` and each of `right` add to their cosine together."""

    left: str
    right: str
    left_tokens: tuple[str, ...]
    right_tokens: tuple[str, ...]
    table: NDArray[np.float64]
    """(left tokens, right tokens); negative where a pair of tokens speaks against."""
    score: float
    """The cosine: the sum of the table."""

    @property
    def tokens(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the rows and of the columns."""
        return self.left_tokens, self.right_tokens

    def words(self) -> Explanation:
        """The same with the pieces of a word added up; the sum stays."""
        rows, columns = words_of(self.left_tokens), words_of(self.right_tokens)
        table = _added(_added(self.table, rows).T, columns).T
        return replace(self, left_tokens=_texts(rows), right_tokens=_texts(columns), table=table)

    def to_json(self) -> dict[str, Any]:
        """Tokens, words, both tables and the score, as plain lists."""
        words = self.words()
        return {
            "left": self.left,
            "right": self.right,
            "score": self.score,
            "left_tokens": list(self.left_tokens),
            "right_tokens": list(self.right_tokens),
            "table": self.table.tolist(),
            "left_words": list(words.left_tokens),
            "right_words": list(words.right_tokens),
            "word_table": words.table.tolist(),
        }

    def to_html(self) -> str:
        """A page of its own: a heat map of the words, and one of the tokens below."""
        words = self.words()
        maps = [("Words", *words.tokens, words.table)]
        if words.tokens != self.tokens:
            maps.append(("Tokens", *self.tokens, self.table))
        return page(self.left, self.right, self.score, maps)


def _texts(words: list[Word]) -> tuple[str, ...]:
    return tuple(word.text for word in words)


def _added(table: NDArray[np.float64], words: list[Word]) -> NDArray[np.float64]:
    """The rows of each word summed."""
    out = np.empty((len(words), table.shape[1]))
    for row, word in zip(out, words, strict=True):
        row[:] = table[list(word.places)].sum(axis=0)
    return out
