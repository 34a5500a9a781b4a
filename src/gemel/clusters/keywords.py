"""Words that tell a cluster from the rest, by class-based tf-idf; no list of stop words, so any language will do."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from gemel.clusters.points import Labels

COUNT = 6
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")  # kana and Chinese characters


def keywords(texts: Sequence[str], labels: Labels, clusters: int) -> list[tuple[str, ...]]:
    """For each cluster its best words, at most `COUNT`.

    A word's weight is the share of the cluster's texts that hold it, times the logarithm of how many times larger
    that is than the share of all texts.
    """
    inside: list[Counter[str]] = [Counter() for _ in range(clusters)]
    everywhere: Counter[str] = Counter()
    sizes = [0] * clusters
    for text, label in zip(texts, labels.tolist(), strict=True):
        words = set(words_of(text))
        everywhere.update(words)
        if label >= 0:
            inside[label].update(words)
            sizes[label] += 1
    return [_best(found, size, everywhere, len(texts)) for found, size in zip(inside, sizes, strict=True)]


def _best(found: Counter[str], size: int, everywhere: Counter[str], texts: int) -> tuple[str, ...]:
    least = 2 if size > 2 else 1  # a word of one text says nothing about a larger cluster
    weights = {
        word: (count / size) * math.log((count / size) / (everywhere[word] / texts))
        for word, count in found.items()
        if count >= least
    }
    ranked = sorted((-weight, word) for word, weight in weights.items() if weight > 0)
    return tuple(word for _, word in ranked[:COUNT])


def words_of(text: str) -> list[str]:
    """Words in small letters, without numbers and single letters; where a script has no spaces, pairs of characters."""
    found = []
    for word in _WORD.findall(text.casefold()):
        if _UNSPACED.fullmatch(word):
            found += [word[at : at + 2] for at in range(len(word) - 1)] or [word]
        elif len(word) > 1 and not word.isdigit():
            found.append(word)
    return found
