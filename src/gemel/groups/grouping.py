"""What clustering methods take and return, the table of methods, neighbors, and figures and keywords of clusters.

A method, which is a file of `methods/`, gets `Points`: the distinct directions among the rows, sorted by content, so
that its result cannot depend on the order of the rows. It returns a `Grouping`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.options import parse_bytes
from gemel.registry import Registry
from gemel.types import Vectors
from gemel.vectors.bm25 import STOP_WORDS
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.similarity import normalize

if TYPE_CHECKING:
    from gemel.encoder.tokenizer import TextTokenizer


Labels = NDArray[np.int64]

_BLOCK = 1024


@dataclass(frozen=True)
class ClusterRequest:
    """The arguments of `cluster`, validated."""

    method: str
    min_score: float | None
    k: int | None
    min_size: int
    seed: int
    memory: int | str
    threads: int | None
    progress: bool


@dataclass(frozen=True, eq=False)
class Grouping:
    """Clusters of points, in any order."""

    labels: Labels
    """(u,) from 0 without gaps; -1: in no cluster."""
    centers: Labels
    """(c,) the most central point of each."""
    centroids: Vectors
    """(c, dim): a later text belongs to the cluster whose centroid has the highest dot product with its unit vector,"""
    thresholds: NDArray[np.float64]
    """(c,) if that product is at least the threshold of the cluster."""


def no_clusters(points: Points) -> Grouping:
    """A grouping in which no point is in a cluster."""
    none = np.empty(0, dtype=np.int64)
    return Grouping(np.full(len(points), -1, dtype=np.int64), none, points.rows[:0], np.empty(0))


@dataclass(frozen=True, eq=False)
class Points:
    """The distinct directions among n rows."""

    rows: Vectors
    """(u, dim) of length 1, sorted by value, dimension by dimension. Rows of zeros are left out."""
    counts: NDArray[np.int64]
    """(u,) how often each occurs."""
    first: NDArray[np.int64]
    """(u,) the lowest position at which each occurs."""
    of_row: NDArray[np.int64]
    """(n,) the point of each given row; -1 for a row of zeros."""

    def __len__(self) -> int:
        return len(self.rows)

    def spread(self, labels: Labels) -> Labels:
        """(u,) labels to (n,): each given row gets that of its direction, a row of zeros gets -1."""
        return np.append(labels, -1)[self.of_row]


Method: TypeAlias = Callable[[Points, ClusterRequest], Grouping]

METHODS: Registry[Method] = Registry(
    "method of clustering", package="gemel.groups.methods", aliases={"spherical-k-means": "k_means"}
)


def centers_and_means(points: Points, labels: Labels, clusters: int) -> tuple[Labels, Vectors]:
    """The point of each cluster that is nearest to its mean, and the means of the unit rows, repeats counted."""
    sums, sizes = cluster_sums(points, labels, clusters)
    means = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    inside = np.flatnonzero(labels >= 0)
    score = np.einsum("nd,nd->n", points.rows[inside], means[labels[inside]])
    # By cluster, then nearest first, then the order of the points: the first of each cluster is its center.
    order = inside[np.lexsort((inside, -score, labels[inside]))]
    first = np.searchsorted(labels[order], np.arange(clusters))
    return order[first], means


def cluster_sums(points: Points, labels: Labels, clusters: int) -> tuple[NDArray[np.float64], Labels]:
    """(c, dim) sums of the unit rows of each cluster, and (c,) their number of texts; repeats counted."""
    sums = np.zeros((clusters, points.rows.shape[1]))
    inside = np.flatnonzero(labels >= 0)
    order = inside[np.argsort(labels[inside], kind="stable")]
    starts = np.searchsorted(labels[order], np.arange(clusters + 1))
    for cluster in range(clusters):
        part = order[starts[cluster] : starts[cluster + 1]]
        sums[cluster] = points.counts[part].astype(np.float64) @ points.rows[part].astype(np.float64)
    sizes = np.bincount(labels[inside], points.counts[inside], clusters).astype(np.int64)
    return sums, sizes


def points_of(vectors: Vectors) -> Points:
    """The points of (n, dim) vectors, which must be finite."""
    unit = normalize(vectors) + np.float32(0)  # -0 becomes 0: the same number, and now the same bytes
    present = np.flatnonzero(unit.any(axis=1))
    rows = np.ascontiguousarray(unit[present])
    of_row = np.full(len(unit), -1, dtype=np.int64)
    if not len(rows):
        nothing = np.empty(0, dtype=np.int64)
        return Points(rows, nothing, nothing, of_row)
    order = np.argsort(_sort_keys(rows), kind="stable")
    ordered = rows[order]
    new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    starts = np.flatnonzero(new)
    of_row[present[order]] = np.cumsum(new) - 1
    # The sort is stable, so the first of equal rows is the one that was given first.
    return Points(ordered[starts], np.diff(np.append(starts, len(order))), present[order[starts]], of_row)


def _sort_keys(rows: Vectors) -> NDArray[np.void]:
    """(n,) keys that compare as the rows do, dimension by dimension.

    By value rather than by raw bytes: processors differ in the last bits of a vector, which come first in memory, and
    those bits must not decide ties.
    """
    bits = rows.view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(">u4")
    return ascending.view(np.dtype((np.void, ascending.shape[1] * ascending.itemsize))).ravel()


# Figures and keywords. Mean similarities of all pairs follow from sums of unit vectors, so no pair is compared.

SAMPLE = 2000  # texts whose silhouette is taken


@dataclass(frozen=True, eq=False)
class Closeness:
    """(c,) of each cluster."""

    inside: NDArray[np.float64]
    """The mean similarity of two of its texts; 1 for a text alone."""
    nearest: Labels
    """The cluster with the highest mean similarity to it; -1 where there is no other."""
    outside: NDArray[np.float64]
    """That similarity; nan where there is no other."""


def closeness(sums: NDArray[np.float64], sizes: Labels) -> Closeness:
    """The mean similarities of clusters. `sums`: (c, dim) of the unit vectors of each cluster."""
    pairs = sizes * (sizes - 1.0)
    squares = np.einsum("cd,cd->c", sums, sums)
    inside = np.where(sizes > 1, (squares - sizes) / np.maximum(pairs, 1), 1.0)
    nearest = np.full(len(sums), -1, dtype=np.int64)
    outside = np.full(len(sums), np.nan)
    means = (sums / sizes[:, None]).astype(np.float32)
    for begin in range(0, len(sums) if len(sums) > 1 else 0, _BLOCK):
        scores = means[begin : begin + _BLOCK] @ means.T
        rows = np.arange(len(scores))
        scores[rows, begin + rows] = -np.inf
        nearest[begin : begin + _BLOCK] = scores.argmax(axis=1)
        outside[begin : begin + _BLOCK] = scores.max(axis=1)
    return Closeness(np.clip(inside, -1, 1), nearest, outside)


def silhouette(points: Points, labels: Labels, sums: NDArray[np.float64], sizes: Labels) -> float | None:
    """The mean silhouette by cosine distance, over at most `SAMPLE` different texts; None for fewer than two clusters.

    The value of each sampled text is exact: it is computed from all texts of all clusters.
    """
    if len(sums) < 2:
        return None
    inside = np.flatnonzero(labels >= 0)
    if len(inside) > SAMPLE:
        inside = np.sort(np.random.default_rng(0).choice(inside, SAMPLE, replace=False))
    total, weight = 0.0, 0
    for begin in range(0, len(inside), _BLOCK):
        part = inside[begin : begin + _BLOCK]
        values = _values(points.rows[part], labels[part], sums, sizes)
        total += float(values @ points.counts[part])
        weight += int(points.counts[part].sum())
    return total / weight


def _values(rows: Vectors, own: Labels, sums: NDArray[np.float64], sizes: Labels) -> NDArray[np.float64]:
    """(n,) silhouettes; 0 for a text alone in its cluster."""
    products = rows @ sums.T.astype(np.float32)
    each = np.arange(len(rows))
    others = np.maximum(sizes[own] - 1, 1)
    within = 1 - (products[each, own] - 1) / others  # without the text itself
    distances = 1 - products / sizes
    distances[each, own] = np.inf
    between = distances.min(axis=1)
    larger = np.maximum(np.maximum(within, between), 1e-12)
    return np.where(sizes[own] > 1, (between - within) / larger, 0.0)


COUNT = 6  # keywords of a cluster

_CANDIDATES = 60  # words of a cluster that can be part of a phrase

_WEAK = 0.2  # of the weight of the best keyword: what weighs less does not describe the cluster

_PHRASE = (
    0.4  # share of the texts with a word that have a phrase with it: then the phrase is named, not the word
)

_FREQUENT = 1000  # words of a language, the most frequent first, that weigh less

_VOCABULARY = 5000  # tokens among which they are

_GRAMMAR = 50  # the first of them, which are in no phrase

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")

_PARTICLE = re.compile(r"[ -](up|off|out|down)\b")  # top up, sign up: part of the word before

_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")  # kana and Chinese characters

_WORD_STARTS = ("▁", "Ġ")  # how tokens of SentencePiece and of byte-level BPE begin a word

_NO_TOPIC = STOP_WORDS | frozenset(
    """
    get gets getting got go goes going gone went come comes came make makes making made take takes taking took give
    gives giving gave put keep kept let see seen saw look looks looking want wants wanted need needs needed try tried
    trying know knows known think thinking thought say says said saying tell told ask asked use used uses using seem
    seems happen happened happens show shown find found work works help please thank thanks hello hi dear yes ok okay
    thing things something anything everything nothing someone anyone everyone people way ways lot lots bit kind sort
    much many several enough another else every either neither however therefore thus hence since without within upon
    among per via even still already ever never always often sometimes maybe perhaps actually really quite rather
    almost instead now today first second last next new old good better best great well right sure able like likely
    two three four five six seven eight nine ten time times day days week weeks month months year years
    long longer little big small cannot around away back onto etc mr mrs ago gotten
    lt gt quot amp nbsp href http https www html htm com org net edu gov ac cs ca writes wrote article subject
    """.split()  # noqa: SIM905 - quoted words would not be read by anyone
)
"""English words that name no topic, and remains of markup, addresses and quoted mail."""


def keywords(
    texts: Sequence[str], labels: Labels, clusters: int, vocabulary: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """For each cluster its best words and phrases of two words, at most `COUNT`, the best first.

    The weight of a word is the share of the cluster's texts that have it, times the logarithm of that share divided by
    the share of all texts: a word that is everywhere weighs nothing. With few texts that is not enough, so the first
    words of `vocabulary`, those of the language with the most frequent first, weigh less.
    """
    frequent = {_key(word): rank for rank, word in reversed(list(enumerate(vocabulary[:_FREQUENT], 1)))}
    words, phrases = TermCounts(clusters), TermCounts(clusters)
    for text, label in zip(texts, labels.tolist(), strict=True):
        words.add(label, {key: form for key, form, _ in _terms(text)})
    weights = [words.weights(cluster, frequent) for cluster in range(clusters)]
    parts = {word for own in weights for word in _by_weight(own)[:_CANDIDATES]}
    parts -= {word for word, rank in frequent.items() if rank <= _GRAMMAR}
    for text, label in zip(texts, labels.tolist(), strict=True):
        phrases.add(label, _phrases(text, parts))
    result = []
    for cluster, own in enumerate(weights):
        terms = _with_phrases(
            own, words.inside[cluster], phrases.inside[cluster], phrases.weights(cluster, {})
        )
        result.append(tuple((phrases if " " in term else words).form(term) for term in _different(terms)))
    return result


def frequent_words(tokenizer: TextTokenizer) -> list[str]:
    """The first whole words of a vocabulary: vocabularies are ordered by frequency in the texts they were made from."""
    if tokenizer.vocabulary < _VOCABULARY:  # of a toy: its few words are no sample of a language
        return []
    tokens = tokenizer.names(np.arange(_VOCABULARY, dtype=np.int32))
    marked = any(token.startswith(_WORD_STARTS) for token in tokens)
    words = [
        token[1:] if marked else token for token in tokens if token.startswith(_WORD_STARTS) or not marked
    ]
    return [word.casefold() for word in words if len(word) > 1 and word.isalpha()][:_FREQUENT]


class TermCounts:
    """In how many texts each term occurs: all of them, and those of each cluster."""

    def __init__(self, clusters: int) -> None:
        self.inside: list[Counter[str]] = [Counter() for _ in range(clusters)]
        self._everywhere: Counter[str] = Counter()
        self._forms: dict[str, Counter[str]] = {}
        self._sizes = [0] * clusters
        self._texts = 0

    def add(self, label: int, terms: Mapping[str, str]) -> None:
        """Count one text, whose `terms` are keys with the form in which they occur; `label` -1: in no cluster."""
        self._texts += 1
        self._everywhere.update(terms.keys())
        for key, form in terms.items():
            self._forms.setdefault(key, Counter())[form] += 1
        if label >= 0:
            self.inside[label].update(terms.keys())
            self._sizes[label] += 1

    def weights(self, cluster: int, frequent: Mapping[str, int]) -> dict[str, float]:
        """The terms that are more frequent in the cluster than in all texts, less for those in `frequent`, by rank."""
        size = self._sizes[cluster]
        least = 2 if size > 2 else 1  # a word of one text does not describe a larger cluster
        shares = {key: count / size for key, count in self.inside[cluster].items() if count >= least}
        weights = {
            key: share
            * math.log(share / (self._everywhere[key] / self._texts))
            * (math.log(frequent[key]) / math.log(_FREQUENT) if key in frequent else 1)
            for key, share in shares.items()
        }
        return {key: weight for key, weight in weights.items() if weight > 0}

    def form(self, key: str) -> str:
        """The most frequent form of a term."""
        return min(self._forms[key].items(), key=lambda each: (-each[1], each[0]))[0]


def _by_weight(weights: Mapping[str, float]) -> list[str]:
    return sorted(weights, key=lambda term: (-weights[term], term))


def _with_phrases(
    words: Mapping[str, float],
    texts_of_word: Counter[str],
    texts_of_phrase: Counter[str],
    phrases: Mapping[str, float],
) -> dict[str, float]:
    """The weights of words and phrases, without the words that mostly occur in one of the phrases."""
    terms = dict(words)
    for phrase, weight in phrases.items():
        count = texts_of_phrase[phrase]
        replaced = [word for word in phrase.split() if count >= _PHRASE * texts_of_word[word]]
        if count >= 2 and replaced:
            terms[phrase] = max(
                weight, *(words.get(word, 0.0) * count / texts_of_word[word] for word in replaced)
            )
            for word in replaced:
                terms.pop(word, None)
    return terms


def _different(weights: Mapping[str, float]) -> list[str]:
    """The best terms, none with a word of a better one; but a phrase replaces its word if it weighs half as much."""
    chosen: list[str] = []
    least = _WEAK * max(weights.values(), default=0)
    for term in _by_weight({term: weight for term, weight in weights.items() if weight >= least}):
        same = [i for i, other in enumerate(chosen) if _share_a_word(term, other)]
        if not same and len(chosen) < COUNT:
            chosen.append(term)
        elif (
            len(same) == 1
            and chosen[same[0]] in term.split()
            and 2 * weights[term] >= weights[chosen[same[0]]]
        ):
            chosen[same[0]] = term
    return chosen


def _share_a_word(one: str, other: str) -> bool:
    """Whether a word of one begins as a word of the other: print and printing."""
    pairs = ((a, b) for a in one.split() for b in other.split())
    return any(a == b or (min(len(a), len(b)) > 3 and (a.startswith(b) or b.startswith(a))) for a, b in pairs)


def _phrases(text: str, parts: Set[str]) -> dict[str, str]:
    """Two words of `parts` that stand side by side: the key and the form of each."""
    found = {}
    terms = list(_terms(text))
    for (one, one_form, _), (other, other_form, beside) in pairwise(terms):
        if beside and one != other and one in parts and other in parts:
            found[f"{one} {other}"] = f"{one_form} {other_form}"
    return found


def _terms(text: str) -> Iterator[tuple[str, str, bool]]:
    """The words that can name a topic: key, form, and whether the one before it stands beside it."""
    folded = text.casefold()
    end = -1  # of the word before
    for match in _WORD.finditer(folded):
        form = _without_apostrophe(match[0])
        if _UNSPACED.fullmatch(form):
            yield from ((form[i : i + 2], form[i : i + 2], False) for i in range(max(1, len(form) - 1)))
        elif _names_topic(form):
            beside = end >= 0 and folded[end : match.start()] in (" ", "-")
            end = match.end()
            particle = _PARTICLE.match(folded, end)
            yield _key(form), f"{form} {particle[1]}" if particle else form, beside


def _without_apostrophe(word: str) -> str:
    """cat's -> cat, l'école -> école, don't -> don, which is a stop word."""
    head, _, tail = word.replace("’", "'").partition("'")
    return tail if tail and len(head) == 1 else head


def _names_topic(word: str) -> bool:
    digits = sum(each.isdigit() for each in word)
    return len(word) > 1 and 2 * digits <= len(word) and word not in _NO_TOPIC


def _key(word: str) -> str:
    """The same for card and cards. English only: the forms of other languages are counted separately."""
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return f"{word[:-2]}y" if word.endswith("ie") else word


_SAMPLE = 64  # rows that are compared with all others to estimate the number of pairs

_IN_MEMORY = 64  # bytes of a pair while `similar_pairs` keeps, sorts and returns it

_AS_LISTS = 48  # bytes of a pair while the lists are made: two keys of 8 bytes, sorted, and two positions

_PART = 4_000_000  # pairs read at once from disk

_EXACT = 2.0**20  # scores become whole numbers of this part of 1, whose sums do not depend on their order


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Concatenated lists: the neighbors of row i are `index[start[i] : start[i + 1]]`, ascending."""

    start: NDArray[np.int64]
    index: NDArray[np.int32]
    nearness: NDArray[np.float64]
    """(n,) the sum of the scores of a row's neighbors, independent of their order."""

    def of(self, row: int) -> NDArray[np.int32]:
        return self.index[self.start[row] : self.start[row + 1]]


def neighbors_above(rows: Vectors, min_score: float, **work: Any) -> Neighbors:
    """The neighbors of every row by cosine, without the row itself. `work` is that of `pairs_above`."""
    with _pairs(rows, min_score, **work) as pairs:
        return neighbors_of(pairs, len(rows))


def pairs_above(rows: Vectors, min_score: float, **work: Any) -> Pairs:
    """All pairs, in any order. More pairs than fit into `memory` raise an InputError, in most cases before any work.

    `threads` and `progress` are those of `similar_pairs`.
    """
    with _pairs(rows, min_score, **work) as pairs:
        score, left, right = np.array(pairs.score), np.array(pairs.left), np.array(pairs.right)
        return replace(pairs, score=score, left=left, right=right)


@contextmanager
def _pairs(
    rows: Vectors,
    min_score: float,
    *,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
) -> Iterator[Pairs]:
    """In memory where they fit, else in a temporary folder."""
    size = parse_bytes(memory)
    expected = _expected_pairs(rows, min_score, size)
    if expected * _AS_LISTS > 2 * size:
        raise _too_many(f"about {expected:,.0f}", len(rows), min_score, size)
    with TemporaryDirectory(prefix="gemel-") as folder:
        scan = partial(
            similar_pairs, rows, min_score=min_score, memory=memory, threads=threads, progress=progress
        )
        pairs = None
        if expected * _IN_MEMORY < size:
            with suppress(InputError):  # the estimate was too low: the pairs do not fit after all
                pairs = scan()
        if pairs is None:
            pairs = scan(out=Path(folder) / "pairs")
        if len(pairs) * _AS_LISTS > size:
            raise _too_many(f"{len(pairs):,}", len(rows), min_score, size)
        yield pairs


def neighbors_of(pairs: Pairs, rows: int) -> Neighbors:
    """Pairs within one set of rows as lists of neighbors."""
    keys = np.empty(2 * len(pairs), dtype=np.int64)
    nearness = np.zeros(rows)
    for begin in range(0, len(pairs), _PART):
        part = slice(begin, min(begin + _PART, len(pairs)))
        left, right, score = pairs.left[part], pairs.right[part], pairs.score[part]
        keys[2 * part.start : 2 * part.start + len(left)] = (left << 32) | right
        keys[2 * part.start + len(left) : 2 * part.start + 2 * len(left)] = (right << 32) | left
        whole = np.rint(score.astype(np.float64) * _EXACT)
        nearness += np.bincount(left, whole, rows) + np.bincount(right, whole, rows)
    keys.sort()
    start = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) << 32)
    return Neighbors(start, (keys & 0xFFFFFFFF).astype(np.int32), nearness)


def _expected_pairs(rows: Vectors, min_score: float, size: int) -> float:
    """The number of pairs, estimated from a sample of unit rows; 0 where even all pairs would fit."""
    total = len(rows) * (len(rows) - 1) / 2
    if total * _IN_MEMORY * 2 < size:
        return 0.0
    sample = np.random.default_rng(0).permutation(len(rows))[:_SAMPLE]
    near = sum(
        int((rows[sample] @ rows[begin : begin + 16384].T >= min_score).sum())
        for begin in range(0, len(rows), 16384)
    )
    return max(0.0, (near - len(sample)) / (len(sample) * (len(rows) - 1))) * total


def _too_many(pairs: str, rows: int, min_score: float, size: int) -> InputError:
    return InputError(
        f"{pairs} pairs of {rows:,} texts are as similar as min_score={min_score:g}: too many for "
        f"memory={size:,} bytes. Raise min_score, or give more memory"
    )
