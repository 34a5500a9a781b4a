"""What a task is: the table of tasks, their results, the systems they evaluate, and helpers that several tasks use.

A task is one file of `tasks/`: its `load`, registered in `TASKS`, reads data, and its `score` runs a system on them. A
number that cannot be computed (constant predictions, one row) is `None` with the reason, never NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import fingerprint
from gemel.evaluation.statistics import MeanSample, Sample, interval
from gemel.registry import Registry
from gemel.types import AnyVectors, Encoder, ShownResult, Vectors
from gemel.vectors.maxsim import MultiVectors, join_texts, maxsim
from gemel.vectors.search import Hits, search
from gemel.vectors.similarity import METRICS, row_scores
from gemel.vectors.sparse import SparseVectors


class Task(Protocol):
    """Data that was read and checked, ready for any system."""

    def score(self, encoder: Encoder) -> Scores:
        """The numbers of one encoder; the same encoder and data give the same numbers."""
        ...


LoadTask: TypeAlias = Callable[..., list[Task]]
"""`load(path, **settings) -> tasks`: one for each data set in a file or folder."""

TASKS: Registry[LoadTask] = Registry("task", package="gemel.evaluation.tasks")
"""Each module of the package decorates its `load` with `@TASKS.add("name")`."""


def load_task(name: str, data: str | Path, **settings: Any) -> list[Task]:
    """The tasks of this name in a file or folder of data. A setting that is None has the default of the task."""
    load, given = TASKS[name], {key: value for key, value in settings.items() if value is not None}
    allowed = [each.name for each in signature(load).parameters.values() if each.kind is each.KEYWORD_ONLY]
    for key in given:
        if key not in allowed:
            raise InputError(f"task {name!r} has no setting {key!r}. It has {', '.join(allowed) or 'none'}")
    return load(Path(data), **given)


POINTS = 100
"""Shares are reported as in the literature: a Spearman correlation of 0.8203 is 82.03."""


@dataclass(frozen=True)
class Score(ShownResult):
    """One number; a share is in points (82.03). `low` and `high` are the ends of its 95 % bootstrap interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Why the value is undefined, or a remark on it."""

    def to_json(self) -> dict[str, Any]:
        content = {"value": _round(self.value), "low": _round(self.low), "high": _round(self.high)}
        return {**content, "note": self.note} if self.note else content


@dataclass(frozen=True)
class Scores(ShownResult):
    """The result of one task on one data set by one model, or of a data set that consists of such parts."""

    task: str
    dataset: str
    main: str
    """The name in `values` of the number to compare models by."""
    values: Mapping[str, Score]
    items: int
    """Rows that were scored: pairs, queries, texts; `unit` says which."""
    unit: str
    model: str = ""
    parts: tuple[Scores, ...] = ()
    """Sub-sets, years, folds: each a result of its own."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Everything that is needed to reproduce the number: similarity, aggregation, folds, seeds."""
    sample: Sample | None = None
    """The items behind the main number, so that two models can be compared item by item."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """Of a search that was measured: ms_per_query, ms_per_document, bytes_per_document."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the main number and its interval at the top, then all values, parts and the protocol."""
        main = self.values[self.main]
        return {
            "model": self.model,
            "task": self.task,
            "dataset": self.dataset,
            "main": self.main,
            **{name: _round(score.value) for name, score in self.values.items()},
            "low": _round(main.low),
            "high": _round(main.high),
            self.unit: self.items,
            **({"costs": {name: _round(cost) for name, cost in self.costs.items()}} if self.costs else {}),
            "values": {name: score.to_json() for name, score in self.values.items()},
            "protocol": dict(self.protocol),
            "parts": [part.to_json() for part in self.parts],
        }

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for name, score in self.values.items():
            yield {
                "number": name,
                "value": score.value,
                "low": score.low,
                "high": score.high,
                "note": score.note,
            }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(frozen=True)
class Bootstrap:
    """How bootstrap intervals are drawn; without rounds there are none."""

    rounds: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or self.rounds < 0:
            raise InputError(f"rounds must be 0 (no intervals) or more, got {self.rounds!r}")

    @property
    def settings(self) -> dict[str, Any]:
        """The part of the protocol on intervals."""
        kind = "95 %, percentile bootstrap" if self.rounds else "none"
        return {"interval": kind, "rounds": self.rounds, "seed": self.seed}

    def protocol(self, unit: str, *data: Iterable[object]) -> dict[str, Any]:
        """`settings`, what was drawn, and a hash of the data: results with the same hash can be compared."""
        return {**self.settings, "drawn": unit, "data": fingerprint(*data)}

    def score(self, sample: Sample, *, undefined: str = "") -> Score:
        """A sample's number in points with its interval; `undefined` says why there may be none."""
        number = sample.number(np.arange(sample.items, dtype=np.int64))
        if number is None:
            return Score(None, note=undefined or "not defined for these items")
        ends = interval(sample, rounds=self.rounds, seed=self.seed)
        if ends is None:
            return Score(POINTS * number, note="too few items for an interval" if self.rounds else "")
        return Score(POINTS * number, POINTS * ends.low, POINTS * ends.high)


def mean_scores(
    task: str,
    dataset: str,
    values: Mapping[str, NDArray[np.float64]],
    protocol: Mapping[str, Any],
    bootstrap: Bootstrap,
    *,
    unit: str,
) -> Scores:
    """The result for named numbers that are means of one value per item; the first is the main one."""
    samples = {name: MeanSample(each) for name, each in values.items()}
    main = next(iter(samples))
    return Scores(
        task=task,
        dataset=dataset,
        main=main,
        values={name: bootstrap.score(sample) for name, sample in samples.items()},
        items=len(values[main]),
        unit=unit,
        protocol=protocol,
        sample=samples[main],
    )


# Systems: what can be evaluated. Only this section distinguishes their kinds.


@runtime_checkable
class Retriever(Protocol):
    """Ranks texts for queries without vectors, such as BM25."""

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` of the corpus, best first; a position of -1 means that nothing more was found."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """Scores two texts together, without vectors: a cross-encoder."""

    def scores(self, left: Sequence[str], right: Sequence[str]) -> AnyVectors:
        """(n,) higher for pairs that belong together."""
        ...


Encoded: TypeAlias = AnyVectors | SparseVectors | MultiVectors
"""Texts as an encoder gives them: one vector each, weights of words, or a vector of each token."""


@runtime_checkable
class PromptedEncoder(Protocol):
    """An encoder of queries and of documents, which may have different prompts. It may be sparse or late."""

    def encode_query(self, texts: Sequence[str]) -> Encoded: ...

    def encode_document(self, texts: Sequence[str]) -> Encoded: ...


@runtime_checkable
class SparseEncoder(PromptedEncoder, Protocol):
    """An encoder that gives weights of words, which are compared by their product."""

    @property
    def vocabulary(self) -> tuple[str, ...]: ...


@runtime_checkable
class Learner(Protocol):
    """Becomes an encoder when fitted on unlabeled texts, such as TF-IDF."""

    def fitted(self, texts: Sequence[str]) -> Encoder: ...


System: TypeAlias = Encoder | Retriever | PairScorer


def rank(system: System, queries: Sequence[str], corpus: Sequence[str], k: int, metric: str) -> Hits:
    """The best `k` of the corpus for each query, by exact search where the system has vectors or weights."""
    refuse_cross_encoder(system)
    if isinstance(system, Retriever) and not isinstance(system, PairScorer):
        return system.rank(queries, corpus, k)
    encoder = cast("Encoder", system.fitted(corpus) if isinstance(system, Learner) else system)
    return nearest(encode_queries(encoder, queries), encode_documents(encoder, corpus), k, metric)


def refuse_cross_encoder(system: System) -> None:
    """Raise if the system can rank a corpus only by scoring every pair; late interaction has vectors besides."""
    if isinstance(system, PairScorer) and not isinstance(system, PromptedEncoder):
        raise InputError(
            f"{system_name(system)} is a cross-encoder: to rank a corpus it would score every text with every query. "
            "Evaluate it with the task 'reranking', or let it rerank what others find: "
            "compare_retrieval(..., rerank=...)"
        )


def nearest(queries: Encoded, documents: Encoded, k: int, metric: str = "cosine") -> Hits:
    """The best `k` documents for each query, every one compared; of both the same kind.

    Vectors are compared by `metric`, weights of words by their product, where documents that share no word are not
    found, and vectors of tokens by MaxSim. Ties go to the earlier document.
    """
    if isinstance(queries, SparseVectors) and isinstance(documents, SparseVectors):
        some = (queries[start : start + _QUERIES] for start in range(0, len(queries), _QUERIES))
        return _best((each.similarity(documents) for each in some), k, 0.0)
    if isinstance(queries, MultiVectors) and isinstance(documents, MultiVectors):
        rows = [queries.of(row) for row in range(len(queries))]
        few = (
            join_texts(rows[start : start + _QUERIES], (), queries.dim)
            for start in range(0, len(rows), _QUERIES)
        )
        return _best((maxsim(each, documents) for each in few), k, -np.inf)
    return search(cast("AnyVectors", queries), cast("AnyVectors", documents), k, metric)


_QUERIES = 64  # whose scores with all documents are in memory at once


def _best(blocks: Iterable[Vectors], k: int, nothing: float) -> Hits:
    """The best `k` columns of each row, without those whose score is `nothing`."""
    index, score = [], []
    for scores in blocks:
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(scores, order, axis=1)
        index.append(np.where(best == nothing, -1, order))
        score.append(np.where(best == nothing, np.float32(0), best))
    if not index:
        return Hits(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
    return Hits(np.concatenate(index), np.concatenate(score))


def encode_queries(encoder: Encoder, texts: Sequence[str]) -> Encoded:
    """Vectors with the encoder's prompt for queries, where it has one."""
    return encoder.encode_query(texts) if isinstance(encoder, PromptedEncoder) else encoder.encode(texts)


def encode_documents(encoder: Encoder, texts: Sequence[str]) -> Encoded:
    """Vectors with the encoder's prompt for documents, where it has one."""
    return encoder.encode_document(texts) if isinstance(encoder, PromptedEncoder) else encoder.encode(texts)


def with_vectors(system: System, texts: Sequence[str], task: str) -> Encoder:
    """An encoder for a task that compares vectors: the system itself, or fitted on the `texts` of the task."""
    if isinstance(system, Learner):
        return system.fitted(texts)
    if isinstance(system, PairScorer):
        late = isinstance(system, PromptedEncoder)
        kind = "a model for late interaction (ColBERT)" if late else "a cross-encoder"
        raise InputError(
            f"task {task!r} compares vectors, but {system_name(system)} is {kind}. Give a sentence encoder"
        )
    if isinstance(system, SparseEncoder):
        raise InputError(
            f"task {task!r} compares dense vectors, but {system_name(system)} is a sparse encoder. Evaluate it with "
            "the tasks 'retrieval', 'reranking' or 'duplicates'"
        )
    if isinstance(system, Retriever):
        raise InputError(
            f"task {task!r} compares vectors, but {system_name(system)} only ranks. Give an encoder"
        )
    return system


def search_protocol(system: System, metric: str) -> dict[str, str]:
    """The part of the protocol on ranking: the similarity, and the prompts of queries and documents."""
    own = "the encoder's own for queries and documents"
    prompts = own if isinstance(system, PromptedEncoder) else "none"
    if isinstance(system, PairScorer) and isinstance(system, PromptedEncoder):
        return {"metric": "MaxSim of the vectors of tokens", "prompts": prompts}
    if isinstance(system, SparseEncoder):
        return {"metric": "dot product of the weights of words", "prompts": prompts}
    if isinstance(system, Retriever | PairScorer):
        return {"metric": f"{system_name(system)}'s own", "prompts": "none"}
    return {"metric": metric, "prompts": prompts}


def system_name(system: object) -> str:
    """The name of a system in results and errors: its `name`, else its class."""
    return str(getattr(system, "name", "") or type(system).__name__)


def chosen_metrics(metric: str) -> tuple[str, ...]:
    """The similarity of this name, or cosine and then the others for "all"."""
    if metric == "all":
        return ("cosine", *(name for name in METRICS if name != "cosine"))
    METRICS[metric]  # an unknown name raises before anything is encoded
    return (metric,)


def column_vectors(encoder: System, *columns: Sequence[str], task: str) -> list[AnyVectors]:
    """The vectors of each column, encoded in one call."""
    texts = [text for column in columns for text in column]
    vectors = np.asarray(with_vectors(encoder, texts, task).encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise InputError(
            f"an encoder must return one row per text, but for {len(texts)} texts it returned the shape {vectors.shape}"
        )
    return np.split(vectors, np.cumsum([len(column) for column in columns])[:-1])


def pair_scores(
    system: System, left: Sequence[str], right: Sequence[str], metrics: Sequence[str], task: str
) -> dict[str, NDArray[np.float64]]:
    """The score of each pair by each similarity, or by the cross-encoder."""
    if isinstance(system, PairScorer):
        if len(metrics) > 1:
            raise InputError(
                "a cross-encoder has one score of its own, not several similarities. Leave metric out"
            )
        return {metrics[0]: np.asarray(system.scores(left, right), np.float64)}
    first, second = column_vectors(system, left, right, task=task)
    return {metric: np.asarray(row_scores(first, second, metric), np.float64) for metric in metrics}


def side_by_side(
    metrics: Sequence[str], values_for: Callable[[str], Mapping[str, Score]]
) -> dict[str, Score]:
    """The values of one similarity; of several, those of the first, then all again as `NAME-METRIC`."""
    every = {metric: values_for(metric) for metric in metrics}
    values = dict(every[metrics[0]])
    if len(metrics) > 1:
        for name in list(values):
            values |= {f"{name}-{metric}": every[metric][name] for metric in metrics}
    return values
