"""Hard negatives for pairs of a query and its positive: `mine_negatives`, from an exact search of a corpus.

A hard negative is near the query but does not answer it. The nearest texts often do answer it, although nobody said so
(false negatives), so rules drop candidates by rank, by score against the positive, and by a cross-encoder. Memory is
that of the corpus and its vectors: queries are encoded and searched in blocks, and each block keeps only its negatives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.cross_model import CrossModel
from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.files.records import Bad, Record, listed
from gemel.model import Model
from gemel.options import CrossOptions, EncodeKeywords, EncodeOptions, check_choice, check_count, parse_bytes
from gemel.terminal import counted
from gemel.training.data.columns import DataSource, choose_columns, is_several, labeled_pair, source_of
from gemel.training.data.read import open_all
from gemel.training.objectives.base import Needs
from gemel.types import AnyVectors, Encoder, ShownResult, Vectors
from gemel.vectors.search import Hits, rescore, search

Sampling = Literal["hardest", "random"]

TrainingFormat = Literal["triplets", "tuples", "pairs"]

_NEEDS = Needs(texts=("anchor", "positive"))


def mine_negatives(  # noqa: PLR0913 - one question, and how to answer it
    model: Encoder,
    pairs: object,
    corpus: Sequence[str],
    k: int = 5,
    *,
    vectors: ArrayLike | None = None,
    ids: Sequence[str] | None = None,
    positive_ids: bool = False,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    skip: int = 0,
    candidates: int = 100,
    margin: float | None = None,
    ratio: float | None = 0.95,
    max_score: float | None = None,
    rerank: CrossModel | None = None,
    rerank_margin: float = 0.0,
    sampling: Sampling = "hardest",
    seed: int = 0,
    search_memory: int | str = "1GB",
    options: EncodeOptions | None = None,
    **keywords: Unpack[EncodeKeywords],
) -> NegativesResult:
    """Up to `k` hard negatives from `corpus` for each pair of a query and its positive; every text is compared.

    A positive of the same query, a query that has it as its positive, and texts that equal one of these except for case
    and spaces are never negatives, nor are blank texts. Equal texts of the corpus count once. The result does not
    depend on `search_memory` or threads.

    pairs: a file, rows (query, positive), or whatever `gemel.train` reads for anchors and positives; labeled pairs too.
    vectors: of the corpus, if it is encoded already; the model then encodes only queries, and positives that are not in
    the corpus.
    ids: names of the corpus texts, for `positive_ids`; None: their positions.
    positive_ids: the positives are ids of corpus texts, not texts.
    columns: role (anchor, positive) to the name of its column, where it has an unusual one.
    skip_bad: leave out rows of `pairs` that cannot be used.
    skip: so many of the nearest texts are passed over, as the most likely false negatives.
    candidates: so many texts after those are considered.
    margin: a negative scores at most that of the positive minus this.
    ratio: a negative scores at most this share of the positive's score (TopK-PercPos of NV-Retriever, arXiv
    2407.15831). None: no such limit.
    max_score: a negative scores at most this.
    rerank: a cross-encoder; candidates that it scores above the positive minus `rerank_margin` are dropped.
    sampling: the hardest `k` of the candidates, or random ones.
    search_memory: for a block of queries and their hits, besides the corpus.
    Keywords are the fields of `EncodeOptions`, as for `encode`. The prompts of the checkpoint for queries and documents
    are used unless the options name one.
    """
    started = perf_counter()
    rules = _Rules(k, skip, candidates, margin, ratio, max_score, rerank_margin, sampling, seed)
    settings = EncodeOptions.of(options, keywords)
    if settings.output not in ("float32", "float16"):
        raise InputError(f"search scores float32 vectors; output {settings.output!r} is for storing")
    texts = check_texts(corpus, "corpus")
    if not texts:
        raise InputError("corpus is empty: there is nothing to search")
    read = _read_pairs(pairs, columns, skip_bad=skip_bad, positive_ids=positive_ids)
    if positive_ids:
        read = replace(read, positives=_texts_of_ids(read.positives, texts, ids))
    if (
        rerank is not None
    ):  # one without a score, such as an NLI model, is refused before the corpus is encoded
        rerank.scores(read.queries[:1], read.positives[:1], CrossOptions(on_long="truncate"))
    miner = _Miner(model, texts, vectors, settings, rules, rerank, parse_bytes(search_memory))
    return miner.mine(read, started)


@dataclass(frozen=True, eq=False)
class NegativesResult(ShownResult):
    """The hard negatives of each pair, hardest first, with what the rules did."""

    queries: list[str]
    positives: list[str]
    """One for each query: pairs, in the order given."""
    positive_score: Vectors
    """(pairs,) cosines of query and positive."""
    index: NDArray[np.int64]
    """(pairs, k) positions of the negatives in the corpus; -1 where there are fewer."""
    score: Vectors
    """(pairs, k) cosines of query and negative; NaN where there are fewer."""
    corpus: list[str]
    considered: int
    """Candidates of all pairs: texts in the window of ranks."""
    dropped: dict[str, int]
    """Candidates that each rule dropped, each counted for the first rule that did. `known`: positives and equal texts,
    which are no candidates, in or before the window. `rerank` counts only those that the cross-encoder had to score."""
    settings: dict[str, Any]
    skipped: int
    """Bad rows of the pairs that were left out."""
    seconds: float

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(pairs,) negatives of each pair."""
        return np.asarray((self.index >= 0).sum(axis=1), np.int64)

    def rows(self, format: TrainingFormat = "triplets", *, scores: bool = False) -> Iterator[dict[str, Any]]:
        """Rows that `gemel.train` reads; a pair without negatives gives none.

        format: triplets, one row per negative; tuples, one row per pair with columns negative_1, negative_2 and so on,
        only of pairs that have all `k`; pairs, with label 1 for the positive and 0 for each negative.
        scores: add columns with cosines.
        """
        check_choice("format", format, get_args(TrainingFormat))
        build = {"triplets": _triplets, "tuples": _tuple, "pairs": _labeled}[format]
        for pair in np.flatnonzero(self.counts).tolist():
            chosen = [
                (self.corpus[position], float(score))
                for position, score in zip(self.index[pair].tolist(), self.score[pair], strict=True)
                if position >= 0
            ]
            if format == "tuples" and len(chosen) < self.index.shape[1]:
                continue
            given = self.queries[pair], self.positives[pair], float(self.positive_score[pair])
            for row, cosines in build(*given, chosen):
                yield {**row, **cosines} if scores else row

    def deciles(self) -> dict[str, list[float]]:
        """The lowest score, nine deciles and the highest, of positives and of negatives; empty where there are none."""
        parts = {"positives": self.positive_score, "negatives": self.score[self.index >= 0]}
        at = np.linspace(0, 1, 11)
        return {
            name: [float(value) for value in np.quantile(scores, at)] if len(scores) else []
            for name, scores in parts.items()
        }

    def to_json(self) -> dict[str, Any]:
        """The numbers of `summary`, as JSON."""
        by_count = Counter(self.counts.tolist())
        return {
            "pairs": len(self),
            "negatives": int(self.counts.sum()),
            "pairs_by_negatives": {str(count): by_count[count] for count in sorted(by_count, reverse=True)},
            "candidates": self.considered,
            "dropped": dict(self.dropped),
            "deciles": {
                name: [round(value, 4) for value in values] for name, values in self.deciles().items()
            },
            "skipped": self.skipped,
            "settings": dict(self.settings),
        }

    def summary(self) -> str:
        """How many pairs have how many negatives, what the rules dropped, and the deciles of the scores."""
        counts, k = self.counts, self.index.shape[1]
        parts = [f"{int((counts == k).sum()):,} have all {k}"]
        fewer, none = int(((counts > 0) & (counts < k)).sum()), int((counts == 0).sum())
        parts += [f"{fewer:,} fewer"] if fewer else []
        parts += [f"{none:,} none"] if none else []
        lines = [
            f"{counted(len(self), 'pair')}, {counted(int(counts.sum()), 'negative')}: {', '.join(parts)}"
        ]
        rules = [f"{name} {count:,}" for name, count in self.dropped.items() if name != "known"]
        lines.append(
            f"{counted(self.considered, 'candidate')}; dropped: {', '.join(rules) if rules else 'none, no rule'}; "
            f"not candidates: {counted(self.dropped['known'], 'positive or equal text', 'positives and equal texts')}"
        )
        for name, values in self.deciles().items():
            if values:
                lines.append(f"deciles of {name}: {' '.join(f'{value:.3f}' for value in values)}")
        return "\n".join(lines)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return self.rows(scores=True)


_Built = Iterator[tuple[dict[str, Any], dict[str, float]]]

_Chosen = list[tuple[str, float]]


def _triplets(query: str, positive: str, cosine: float, chosen: _Chosen) -> _Built:
    for text, score in chosen:
        row = {"anchor": query, "positive": positive, "negative": text}
        yield row, {"positive_cosine": cosine, "negative_cosine": score}


def _tuple(query: str, positive: str, cosine: float, chosen: _Chosen) -> _Built:
    texts = {f"negative_{number}": text for number, (text, _) in enumerate(chosen, 1)}
    cosines = {f"negative_cosine_{number}": score for number, (_, score) in enumerate(chosen, 1)}
    yield {"anchor": query, "positive": positive, **texts}, {"positive_cosine": cosine, **cosines}


def _labeled(query: str, positive: str, cosine: float, chosen: _Chosen) -> _Built:
    for label, (text, score) in [(1, (positive, cosine)), *((0, each) for each in chosen)]:
        yield {"sentence1": query, "sentence2": text, "label": label}, {"cosine": score}


@dataclass(frozen=True)
class _Rules:
    """Which candidates become negatives."""

    k: int
    skip: int
    candidates: int
    margin: float | None
    ratio: float | None
    max_score: float | None
    rerank_margin: float
    sampling: Sampling
    seed: int

    def __post_init__(self) -> None:
        check_count("k", self.k)
        check_count("skip", self.skip, 0)
        check_count("candidates", self.candidates)
        check_count("seed", self.seed, 0)
        check_choice("sampling", self.sampling, get_args(Sampling))
        if self.candidates < self.k:
            raise InputError(f"candidates must be at least k={self.k}, got {self.candidates}")
        for name in ("margin", "ratio", "max_score", "rerank_margin"):
            value = getattr(self, name)
            if value is not None and not np.isfinite(value):
                raise InputError(f"{name} must be a finite number, got {value!r}")
        if self.ratio is not None and self.ratio < 0:
            raise InputError(f"ratio must be a share of the positive's score, at least 0, got {self.ratio!r}")

    def limits(self, positive: float) -> dict[str, float]:
        """The highest score that each rule allows for a negative beside this score of the positive."""
        limits = {}
        if self.margin is not None:
            limits["margin"] = positive - self.margin
        if (
            self.ratio is not None
        ):  # below the positive for every ratio below 1, also where its score is negative
            limits["ratio"] = positive - (1 - self.ratio) * abs(positive)
        if self.max_score is not None:
            limits["max_score"] = self.max_score
        return limits

    def order(self, count: int, pair: int) -> NDArray[np.int64]:
        """The order in which candidates are tried; random orders depend on the seed and the pair's position only."""
        if self.sampling == "hardest":
            return np.arange(count)
        return np.random.default_rng([self.seed, pair]).permutation(count)


@dataclass(frozen=True)
class _PairList:
    queries: list[str]
    positives: list[str]
    skipped: int


def _read_pairs(
    data: object, columns: Mapping[str, str] | None, *, skip_bad: bool, positive_ids: bool
) -> _PairList:
    sources = [source_of(part, _NEEDS) for part in (data if is_several(data) else [data])]
    if positive_ids:
        sources = [replace(source, records=partial(_as_strings, source)) for source in sources]
    queries: list[str] = []
    positives: list[str] = []
    skipped = 0
    for source in sources:
        missing = choose_columns(source.columns, _NEEDS, columns).missing
        if missing and labeled_pair(source.columns, _NEEDS, columns) is None:
            raise InputError(
                f"{source.where}: no column for {' and '.join(missing)}. Columns: {listed(source.columns)}. Each row "
                "needs a query (anchor) and its positive: name their columns with columns (--column anchor=NAME)"
            )
        datasets = open_all([source], _NEEDS, columns=columns, skip_bad=skip_bad)
        skipped += datasets[0].skipped
        for examples in datasets:
            for batch in examples.batches_in_order():
                queries += batch.columns[0]
                positives += batch.columns[1]
    return _PairList(queries, positives, skipped)


def _as_strings(source: DataSource, names: Sequence[str]) -> Iterator[Record | Bad]:
    """Whole numbers of JSON and parquet, which may be ids, as strings."""

    def text(value: object) -> object:
        if isinstance(value, list | tuple):
            return [text(each) for each in value]
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    for record in source.records(names):
        if isinstance(record, Bad):
            yield record
        else:
            yield Record(record.line, tuple(text(value) for value in record.values))


def _texts_of_ids(given: Sequence[str], corpus: Sequence[str], ids: Sequence[str] | None) -> list[str]:
    if ids is not None and len(ids) != len(corpus):
        raise InputError(f"there are {len(corpus)} texts but {len(ids)} ids")
    names = map(str, range(len(corpus))) if ids is None else map(str, ids)
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, position)
    missing = [name for name in given if name not in positions]
    if missing:
        what = "ids of its column" if ids is not None else "positions, as it has no ids"
        raise InputError(
            f"{counted(len(missing), 'positive')} not in the corpus, the first: {missing[0][:80]!r}. With positive_ids "
            f"(--positive-ids), positives name texts of the corpus by their {what}"
        )
    return [corpus[positions[name]] for name in given]


def _key(text: str) -> str:
    """Equal for texts that differ in case and spaces only."""
    return " ".join(text.split()).casefold()


@dataclass
class _Pending:
    """A pair whose negatives are being chosen."""

    pair: int
    query: int
    """Its position in the block."""
    candidates: NDArray[np.int64]
    """Corpus positions that the rules allow, nearest first."""
    scores: Vectors
    order: NDArray[np.int64]
    """In which they are tried."""
    tried: int = 0
    taken: list[int] = field(default_factory=list)

    def next(self, count: int) -> NDArray[np.int64]:
        return self.order[self.tried : self.tried + count]


class _Miner:
    def __init__(
        self,
        model: Encoder,
        corpus: list[str],
        vectors: ArrayLike | None,
        options: EncodeOptions,
        rules: _Rules,
        rerank: CrossModel | None,
        memory: int,
    ) -> None:
        self._corpus, self._options, self._rules = corpus, options, rules
        self._rerank, self._memory = rerank, memory
        self._query_model = _side(model, "query", options)
        self._document_model = _side(model, "document", options)
        self._first: dict[str, int] = {}
        """Position of the first text with each key: texts that are searched."""
        for position, text in enumerate(corpus):
            if key := _key(text):
                self._first.setdefault(key, position)
        self._distinct = np.fromiter(self._first.values(), np.int64, len(self._first))
        self._vectors = _checked_vectors(vectors, len(corpus)) if vectors is not None else self._encoded()

    def _encoded(self) -> AnyVectors:
        return np.asarray(self._document_model.encode(self._corpus), np.float32)

    def mine(self, read: _PairList, started: float) -> NegativesResult:
        rules, count = self._rules, len(read.queries)
        of_query: dict[str, list[int]] = {}
        for pair, query in enumerate(read.queries):
            of_query.setdefault(query, []).append(pair)
        self._positives = read.positives
        self._linked: defaultdict[str, set[str]] = defaultdict(set)  # both ways: a pair belongs together
        for query, positive in zip(map(_key, read.queries), map(_key, read.positives), strict=True):
            self._linked[query].add(positive)
            self._linked[positive].add(query)
        self._positive_score = np.zeros(count, np.float32)
        self._index = np.full((count, rules.k), -1, np.int64)
        self._score = np.full((count, rules.k), -np.inf, np.float32)
        self._considered = 0
        self._dropped: Counter[str] = Counter()
        queries = list(of_query)
        per_query = 8 * self._vectors.shape[1] + 64 * (rules.skip + rules.candidates)
        block = max(1, self._memory // per_query)
        for start in range(0, len(queries), block):
            part = queries[start : start + block]
            self._mine_block(part, [of_query[query] for query in part])
        self._score[self._index < 0] = np.nan
        names = ["known", *rules.limits(0.0), *(["rerank"] if self._rerank is not None else [])]
        return NegativesResult(
            queries=read.queries,
            positives=read.positives,
            positive_score=self._positive_score,
            index=self._index,
            score=self._score,
            corpus=self._corpus,
            considered=self._considered,
            dropped={name: self._dropped[name] for name in names},
            settings=asdict(rules),
            skipped=read.skipped,
            seconds=perf_counter() - started,
        )

    def _mine_block(self, queries: list[str], pairs: list[list[int]]) -> None:
        """`pairs`: those of each query."""
        known = [{key, *self._linked[key]} for key in map(_key, queries)]
        vectors = np.asarray(self._query_model.encode(queries), np.float32)
        width = self._rules.skip + self._rules.candidates + max(map(len, known))
        hits = search(
            vectors,
            self._vectors,
            width,
            where=self._distinct if len(self._distinct) < len(self._corpus) else None,
            memory=self._memory,
            threads=self._options.threads,
            progress=self._options.progress,
        )
        self._score_positives(vectors, pairs)
        pending = [
            each for row in range(len(queries)) for each in self._allowed(hits, row, known[row], pairs)
        ]
        if self._rerank is None:
            for each in pending:
                each.taken = each.next(self._rules.k).tolist()
        else:
            self._rerank_pending(self._rerank, queries, pending)
        for each in pending:
            taken = sorted(each.taken)
            self._index[each.pair, : len(taken)] = each.candidates[taken]
            self._score[each.pair, : len(taken)] = each.scores[taken]

    def _score_positives(self, queries: Vectors, pairs: list[list[int]]) -> None:
        rows = np.array([row for row, own in enumerate(pairs) for _ in own], np.int64)
        flat = [pair for own in pairs for pair in own]
        texts = [self._positives[pair] for pair in flat]
        found = np.array([self._position(text) for text in texts], np.int64)
        vectors = np.empty((len(flat), queries.shape[1]), np.float32)
        vectors[found >= 0] = self._vectors[found[found >= 0]]
        missing = np.flatnonzero(found < 0)
        if len(missing):
            encoded = self._document_model.encode([texts[each] for each in missing.tolist()])
            vectors[missing] = np.asarray(encoded, np.float32)
        self._positive_score[flat] = rescore(queries[rows], vectors, np.arange(len(flat))[:, None])[:, 0]

    def _position(self, text: str) -> int:
        """Where the corpus has exactly this text and its vector; -1: nowhere."""
        position = self._first.get(_key(text), -1)
        return position if position >= 0 and self._corpus[position] == text else -1

    def _allowed(self, hits: Hits, row: int, known: set[str], pairs: list[list[int]]) -> Iterator[_Pending]:
        """The candidates of each pair of a query that its rules allow."""
        rules = self._rules
        index, score = hits.index[row], hits.score[row]
        excluded = np.isin(index, [self._first.get(key, -1) for key in known])
        before = np.cumsum(~excluded)  # candidates up to each rank
        end = rules.skip + rules.candidates
        window = ~excluded & (before > rules.skip) & (before <= end)
        index, score = index[window], score[window]
        found = int((excluded & (before < end)).sum())
        for pair in pairs[row]:
            self._dropped["known"] += found
            self._considered += len(index)
            left = np.ones(len(index), bool)
            for name, limit in rules.limits(float(self._positive_score[pair])).items():
                wrong = left & (score > limit)
                self._dropped[name] += int(wrong.sum())
                left &= ~wrong
            yield _Pending(pair, row, index[left], score[left], rules.order(int(left.sum()), pair))

    def _rerank_pending(self, cross: CrossModel, queries: list[str], pending: list[_Pending]) -> None:
        """Score no more candidates than needed: as many as a pair lacks, until it has enough or no more are left."""
        options = CrossOptions(
            on_long="truncate", threads=self._options.threads, progress=self._options.progress
        )
        positives = [self._positives[each.pair] for each in pending]
        limit = cross.scores([queries[each.query] for each in pending], positives, options).astype(np.float64)
        limit -= self._rules.rerank_margin
        known: dict[tuple[int, int], float] = {}
        while True:
            wanted = {
                (each.query, position): None
                for each in pending
                for position in each.candidates[each.next(self._rules.k - len(each.taken))].tolist()
            }
            if not wanted:
                return
            new = [pair for pair in wanted if pair not in known]
            if new:
                texts = [queries[query] for query, _ in new], [self._corpus[position] for _, position in new]
                known |= dict(zip(new, cross.scores(*texts, options).tolist(), strict=True))
            for number, each in enumerate(pending):
                for offset in (tried := each.next(self._rules.k - len(each.taken)).tolist()):
                    if known[each.query, int(each.candidates[offset])] > limit[number]:
                        self._dropped["rerank"] += 1
                    else:
                        each.taken.append(offset)
                each.tried += len(tried)


def _side(model: Encoder, side: Literal["query", "document"], options: EncodeOptions) -> Encoder:
    """The model as it encodes queries or documents."""
    if isinstance(model, Model):
        return model.with_options(model.options_for(side, options))
    if isinstance(model, str) or not hasattr(model, "encode"):
        raise InputError(
            f"model must have an encode(texts), got {type(model).__name__}. Use gemel.load(name)"
        )
    return model


def _checked_vectors(vectors: ArrayLike, count: int) -> AnyVectors:
    given: AnyVectors = np.asarray(vectors)
    if given.ndim != 2 or len(given) != count:
        raise InputError(
            f"vectors must be one row for each of the {count} texts, got the shape {given.shape}"
        )
    if given.dtype == np.uint8:
        raise InputError("vectors are binary (uint8), which has no cosines. Encode the corpus as float32")
    return given
