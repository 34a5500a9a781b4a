"""Search by words: BM25 over words that `WordRules` define, and reciprocal rank fusion with other rankings.

BM25 is the variant of Lucene (idf never below zero): rare words count more, repeated ones less and less, long documents
less. Words are lower case runs of letters and digits; scripts without spaces between words are cut into bigrams.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.types import Vectors
from gemel.vectors.search import Hits

__all__ = ["BM25Index", "fuse"]

RRF_K = 60  # the larger, the less the first ranks stand out; the value of the method's authors

_WORD = re.compile(r"[^\W_]+")

_LAST_MARK = 0x1E94B  # above it there are only variation selectors

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f"  # Myanmar, Khmer
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"  # Hangul: its words carry their particles
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U00020000-\U0003ffff"  # Han, the rare ones
    "\u3041-\u3096\u3099-\u309f\u30a1-\u30ff\u3105-\u312f\u31f0-\u31ff\U0001b000-\U0001b16f"  # kana, Bopomofo
)

_stemmers = threading.local()  # a stemmer is for one thread


class BM25Index:
    """For each word, the documents that have it and what it adds to their scores."""

    def __init__(
        self,
        corpus: Sequence[str],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        stop_words: bool = True,
        rules: WordRules | None = None,
    ) -> None:
        """`k1`: how slowly repeated words saturate. `b`: how much long documents are penalized.

        `stop_words`: count them as words. `rules`: None: the newest, without stemming.
        """
        self._rules, self._stop_words = rules or WordRules(), stop_words
        self._documents = len(corpus)
        self._vocabulary: dict[str, int] = {}
        words: list[int] = []
        documents: list[int] = []
        counts: list[int] = []
        lengths = np.zeros(len(corpus))
        for document, text in enumerate(corpus):
            for word, count in self._counts(self._rules.document(text)).items():
                words.append(self._vocabulary.setdefault(word, len(self._vocabulary)))
                documents.append(document)
                counts.append(count)
                lengths[document] += count
        order = np.argsort(np.asarray(words, dtype=np.int64), kind="stable")
        having = np.bincount(np.asarray(words, dtype=np.int64), minlength=len(self._vocabulary))
        self._ends = np.concatenate([[0], np.cumsum(having)]).astype(np.int64)
        self._postings = np.asarray(documents, dtype=np.int64)[order]
        idf = np.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
        mean = (lengths.mean() if len(corpus) else 0) or 1.0  # no document has a word
        saturation = k1 * (1 - b + b * lengths / mean)
        frequency = np.asarray(counts, dtype=np.float64)[order]
        self._adds = np.repeat(idf, having) * frequency / (frequency + saturation[self._postings])

    def rank(self, queries: Sequence[str], k: int, where: NDArray[np.bool_] | None = None) -> Hits:
        """The best `k` documents per query, of those where `where` is true; ties go to the earlier one.

        Documents that share no word with the query are left out: the row ends in -1, with scores of 0.
        """
        columns = min(k, self._documents)
        index = np.full((len(queries), columns), -1, dtype=np.int64)
        score: Vectors = np.zeros(index.shape, dtype=np.float32)
        for row, query in enumerate(queries):
            values = self._scores(query)
            if where is not None:
                values[~where] = 0
            matching = np.flatnonzero(values)
            best = matching[np.lexsort((matching, -values[matching]))[:columns]]
            index[row, : len(best)] = best
            score[row, : len(best)] = values[best]
        return Hits(index, score)

    def _scores(self, query: str) -> NDArray[np.float64]:
        """(documents,) the sum over the words of the query."""
        total = np.zeros(self._documents)
        for word, count in self._counts(self._rules.query(query)).items():
            number = self._vocabulary.get(word)
            if number is not None:
                postings = slice(self._ends[number], self._ends[number + 1])
                total[self._postings[postings]] += count * self._adds[postings]  # each document once
        return total

    def _counts(self, words: list[str]) -> Counter[str]:
        return Counter(words if self._stop_words else [word for word in words if word not in STOP_WORDS])


def fuse(
    rankings: Sequence[Hits], k: int, *, rrf_k: int = RRF_K, weights: Sequence[float] | None = None
) -> Hits:
    """The best `k` by the sum of weight / (rrf_k + rank) over the rankings, ranks from 1.

    `weights`: one per ranking; None: 1 each. Scores of the rankings need not be comparable. Ties go to the lower
    position. Entries of -1 do not count; a row with fewer than k documents ends in -1.
    """
    if not rankings or len({len(each) for each in rankings}) != 1:
        raise InputError("fuse takes rankings of the same queries, at least one")
    factors = [1.0] * len(rankings) if weights is None else list(weights)
    if len(factors) != len(rankings) or not all(np.isfinite(each) and each >= 0 for each in factors):
        raise InputError(
            f"weights must be one number of at least 0 for each of {len(rankings)} rankings, got {factors}"
        )
    index = np.full((len(rankings[0]), k), -1, dtype=np.int64)
    score = np.zeros(index.shape, dtype=np.float32)
    for row in range(len(index)):
        ranked = np.concatenate([each.index[row] for each in rankings])
        gain = np.concatenate(
            [
                factor / (rrf_k + 1 + np.arange(each.index.shape[1]))
                for each, factor in zip(rankings, factors, strict=True)
            ]
        )
        documents, numbers = np.unique(ranked[ranked >= 0], return_inverse=True)
        total = np.bincount(numbers, weights=gain[ranked >= 0], minlength=len(documents))
        best = np.lexsort((documents, -total))[:k]
        index[row, : len(best)] = documents[best]
        score[row, : len(best)] = total[best]
    return Hits(index, score)


@dataclass(frozen=True)
class WordRules:
    """What counts as a word. An index stores the rules that it was made with."""

    version: int = 2
    """2: characters are normalized (NFKC), combining marks belong to their letters; Chinese, Japanese, Korean, Thai,
    Lao, Khmer and Burmese are cut into bigrams. 1: runs of letters and digits, as in indexes of earlier versions."""
    stemming: str | None = None
    """The language whose endings are removed (English: `connections` is found by `connect`); None: no stemming."""

    def __post_init__(self) -> None:
        if self.version not in (1, 2):
            raise InputError(
                f"the words of this index follow version {self.version!r} of the rules; this gemel supports 1 and 2. "
                "Upgrade gemel"
            )
        if self.stemming is not None:
            check_stemming(self.stemming)

    def document(self, text: str) -> list[str]:
        """The words of a document, repeated as in the text."""
        return self._words(text, single=True)

    def query(self, text: str) -> list[str]:
        """The words of a query: of a run without spaces its bigrams only, or its one character."""
        return self._words(text, single=False)

    def shared_words(self, query: str, text: str) -> dict[str, list[tuple[int, int]]]:
        """Each word of a query, in its order, and where a text has it: start and stop in characters."""
        found: dict[str, list[tuple[int, int]]] = {word: [] for word in self.query(query)}
        patterns = _patterns()
        for run in (_WORD if self.version == 1 else patterns.part).finditer(text):
            if self.version == 1 or run[1]:
                for word in self.document(run[0]):
                    if word in found:
                        found[word].append(run.span())
                continue
            units = [unit.start() for unit in patterns.unit.finditer(run[2])] + [len(run[2])]
            for first, start in enumerate(units[:-1]):
                for stop in units[first + 1 : first + 3]:
                    word = unicodedata.normalize("NFKC", run[2][start:stop]).lower()
                    if word in found:
                        found[word].append((run.start() + start, run.start() + stop))
        return found

    def _words(self, text: str, *, single: bool) -> list[str]:
        if self.version == 1:
            return words_of(text)
        if text.isascii():
            words = _WORD.findall(text.lower())
            return words if self.stemming is None else _stemmed(self.stemming, words)
        words = []
        patterns, plain = _patterns(), unicodedata.normalize("NFKC", text).lower()
        for spaced, unspaced in patterns.part.findall(plain):
            if spaced:
                words += [spaced] if self.stemming is None else _stemmed(self.stemming, [spaced])
            else:
                words += _bigrams(patterns.unit.findall(unspaced), single=single)
        return words

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "stemming": self.stemming}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> WordRules:
        """The stored rules; None: those of an index made before there was a choice."""
        return cls(version=1) if stored is None else cls(stored["version"], stored["stemming"])


def words_of(text: str, *, stop_words: bool = True) -> list[str]:
    """The runs of letters and digits of a text in order, with or without the stop words."""
    words = _WORD.findall(text.lower())
    return words if stop_words else [word for word in words if word not in STOP_WORDS]


STOP_WORDS = frozenset(
    """
    a an the this that these those and or but nor so yet if then than as because while until although though
    of at by for with about against between into through during before after above below to from up down in out
    on off over under again further once here there when where why how what which who whom whose
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves one
    am is are was were be been being have has had having do does did doing done
    will would shall should can could may might must ought
    all any both each few more most other some such no not only own same too very just also
    s t d ll m o re ve don isn aren wasn weren hasn haven hadn doesn didn won wouldn shouldn couldn mustn
    """.split()  # noqa: SIM905 - a hundred quoted words would not be read by anyone
)
"""English words that carry grammar rather than content; the last line is what is left of short forms (don't)."""


def check_stemming(language: str) -> None:
    """Raise if there is no stemmer for the language."""
    available = _snowball().algorithms()
    if language not in available:
        raise InputError(f"no stemming for {language!r}. Known: {', '.join(sorted(available))}")


def _stemmed(language: str, words: list[str]) -> list[str]:
    stemmers: dict[str, Any] = _stemmers.__dict__
    if language not in stemmers:
        stemmers[language] = _snowball().Stemmer(language)
    stems: list[str] = stemmers[language].stemWords(words)
    return stems


def _snowball() -> Any:  # noqa: ANN401 - PyStemmer has no types
    try:
        import Stemmer
    except ImportError as error:
        raise MissingExtra("stemming", "PyStemmer", "stemming") from error
    return Stemmer


@dataclass(frozen=True)
class _Patterns:
    part: re.Pattern[str]
    """(a word, or a run of a script without spaces); one of the two is empty."""
    unit: re.Pattern[str]
    """A character with its combining marks."""


@cache
def _patterns() -> _Patterns:
    """Python's \\w has no combining marks, so a word of Hindi or Thai would be split at each vowel sign."""
    marks = "".join(
        chr(code) for code in range(0x300, _LAST_MARK) if unicodedata.category(chr(code)).startswith("M")
    )
    spaced = rf"[^\W_{_UNSPACED}]"
    # The blocks of these scripts have signs and unassigned codes too.
    unspaced = rf"(?:(?=[^\W_])[{_UNSPACED}])"
    return _Patterns(
        part=re.compile(rf"({spaced}+(?:[{marks}]+{spaced}*)*)|({unspaced}(?:{unspaced}|[{marks}])*)"),
        unit=re.compile(rf".[{marks}]*", re.DOTALL),
    )


def _bigrams(units: list[str], *, single: bool) -> list[str]:
    pairs = [one + other for one, other in pairwise(units)]
    return [*units, *pairs] if single or not pairs else pairs
