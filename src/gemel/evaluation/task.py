"""The shape of every task: `load` reads data, `score` runs an encoder on it.

A task is defined in one file, registered where it is defined, and found by the name that users type. `TASK_FILES` names
the file of each task, so that only the one that is asked for is imported.

What an evaluation gives: named numbers with their intervals, the parts they were made of, and nothing hidden.

A number that cannot be computed (constant predictions, one row) is `None` with the reason, never NaN.

What can be evaluated, and the only place that looks which kind it is.

An encoder ranks through exact search. It may know queries from documents (`PromptedEncoder`) or need texts to learn
from first (`Learner`, such as TF-IDF). A `Retriever`, such as BM25, ranks without vectors. A `PairScorer`, a
cross-encoder, scores two texts together.

What tasks over rows of texts share: the columns' vectors, and the similarities that were asked for.

From one value a query to `Scores`: means in points with their bootstrap intervals, the main one with its sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import fingerprint
from gemel.evaluation.statistics import MeanSample, Sample, interval
from gemel.registry import Registry
from gemel.types import AnyVectors, Encoder
from gemel.vectors.search import Hits, search
from gemel.vectors.similarity import METRICS, row_scores


class Task(Protocol):
    """Data that was read and checked, ready for any encoder."""

    def score(self, encoder: Encoder) -> Scores:
        """The numbers of one encoder; the same encoder and data give the same numbers."""
        ...


LoadTask: TypeAlias = Callable[..., list[Task]]
"""`load(path, **settings) -> tasks`: one for each data set found in a file or folder."""

TASKS: Registry[LoadTask] = Registry("task")
"""Filled by the decorator `@TASKS.add("name")` on each task's `load`."""

TASK_FILES = {
    "arguments": "arguments",
    "binary-pairs": "binary_pairs",
    "clustering": "clustering",
    "duplicates": "duplicates",
    "mining": "mining",
    "nli": "nli",
    "reranking": "reranking",
    "retrieval": "retrieval",
    "sts": "sts",
    "transfer": "transfer",
    "translation": "translation",
    "triplets": "triplets",
}
"""Task to the module of this package that defines it."""


def load_task(name: str, data: str | Path, **settings: Any) -> list[Task]:
    """The tasks of this name in a file or folder of data. A setting that is None is left at the task's default."""
    if name in TASK_FILES:
        import_module(f"gemel.evaluation.tasks.{TASK_FILES[name]}")
    elif name not in TASKS:
        close = get_close_matches(name, TASK_FILES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"unknown task {name!r}.{hint} Known: {', '.join(sorted({*TASK_FILES, *TASKS}))}")
    load, given = TASKS[name], {key: value for key, value in settings.items() if value is not None}
    known = [each.name for each in signature(load).parameters.values() if each.kind is each.KEYWORD_ONLY]
    for key in given:
        if key not in known:
            raise InputError(f"task {name!r} has no setting {key!r}. It has {', '.join(known) or 'none'}")
    return load(Path(data), **given)


POINTS = 100
"""Shares are shown as the field shows them: a Spearman correlation of 0.8203 is 82.03."""


@dataclass(frozen=True)
class Score:
    """One number; a share is in points (82.03). `low` and `high` are the ends of its 95 % bootstrap interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Why the value is undefined, or what to know about it."""

    def to_json(self) -> dict[str, Any]:
        content = {"value": _short(self.value), "low": _short(self.low), "high": _short(self.high)}
        return {**content, "note": self.note} if self.note else content


@dataclass(frozen=True)
class Scores:
    """The result of one task on one data set by one model, or of a whole made of such parts."""

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
    """Everything that another person needs to get the same number: similarity, aggregation, folds, seeds."""
    sample: Sample | None = None
    """The items behind the main number, so that two models can be compared item by item."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the main number and its interval at the top, then all values, parts and the protocol."""
        main = self.values[self.main]
        return {
            "model": self.model,
            "task": self.task,
            "dataset": self.dataset,
            "main": self.main,
            **{name: _short(score.value) for name, score in self.values.items()},
            "low": _short(main.low),
            "high": _short(main.high),
            self.unit: self.items,
            "values": {name: score.to_json() for name, score in self.values.items()},
            "protocol": dict(self.protocol),
            "parts": [part.to_json() for part in self.parts],
        }


def score_of(sample: Sample, *, rounds: int = 1000, seed: int = 0, undefined: str = "") -> Score:
    """A sample's number in points with its bootstrap interval; `undefined` says why there may be none."""
    number = sample.number(np.arange(sample.items, dtype=np.int64))
    if number is None:
        return Score(None, note=undefined or "not defined for these items")
    ends = interval(sample, rounds=rounds, seed=seed)
    if ends is None:
        return Score(POINTS * number, note="too few items for an interval" if rounds else "")
    return Score(POINTS * number, POINTS * ends.low, POINTS * ends.high)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@runtime_checkable
class Retriever(Protocol):
    """Ranks texts for queries in a way of its own."""

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` of the corpus, best first; a position of -1 is an empty place: nothing more was found."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """Gives a number to each pair of texts, and no text a vector."""

    def scores(self, left: Sequence[str], right: Sequence[str]) -> AnyVectors:
        """(n,) higher for pairs that belong together."""
        ...


@runtime_checkable
class PromptedEncoder(Protocol):
    """An encoder that treats the two sides of a search differently."""

    def encode_query(self, texts: Sequence[str]) -> AnyVectors: ...

    def encode_document(self, texts: Sequence[str]) -> AnyVectors: ...


@runtime_checkable
class Learner(Protocol):
    """Becomes an encoder once it has seen unlabelled texts."""

    def fitted(self, texts: Sequence[str]) -> Encoder: ...


System: TypeAlias = Encoder | Retriever | PairScorer


def rank(system: System, queries: Sequence[str], corpus: Sequence[str], k: int, metric: str) -> Hits:
    """The best `k` of the corpus for each query, by whatever the system is."""
    if isinstance(system, PairScorer):
        raise InputError(
            f"{_name(system)} is a cross-encoder: to rank a corpus it would read every text with every query. "
            "Evaluate it with the task 'reranking'"
        )
    if isinstance(system, Retriever):
        return system.rank(queries, corpus, k)
    encoder = system.fitted(corpus) if isinstance(system, Learner) else system
    return search(encode_queries(encoder, queries), encode_documents(encoder, corpus), k, metric)


def encode_queries(encoder: Encoder, texts: Sequence[str]) -> AnyVectors:
    """With the encoder's way for queries, where it has one."""
    return encoder.encode_query(texts) if isinstance(encoder, PromptedEncoder) else encoder.encode(texts)


def encode_documents(encoder: Encoder, texts: Sequence[str]) -> AnyVectors:
    """With the encoder's way for documents, where it has one."""
    return encoder.encode_document(texts) if isinstance(encoder, PromptedEncoder) else encoder.encode(texts)


def with_vectors(system: System, texts: Sequence[str], task: str) -> Encoder:
    """An encoder for a task that compares vectors: the system itself, or what it learns from the task's `texts`."""
    if isinstance(system, Learner):
        return system.fitted(texts)
    if isinstance(system, PairScorer):
        raise InputError(
            f"task {task!r} compares vectors, but {_name(system)} is a cross-encoder. Give a sentence encoder"
        )
    if isinstance(system, Retriever):
        raise InputError(f"task {task!r} compares vectors, but {_name(system)} only ranks. Give an encoder")
    return system


def search_protocol(system: System, metric: str) -> dict[str, str]:
    """How the system ranks: by which similarity, and with which prompts for the two sides."""
    if isinstance(system, Retriever | PairScorer):
        return {"metric": f"{_name(system)}'s own", "prompts": "none"}
    own = "the encoder's own for queries and documents"
    return {"metric": metric, "prompts": own if isinstance(system, PromptedEncoder) else "none"}


def _name(system: object) -> str:
    return str(getattr(system, "name", type(system).__name__))


LEFT = ("sentence1", "left", "question1", "text1")

RIGHT = ("sentence2", "right", "question2", "text2")
"""Names that a column of the first and the second text of a pair may have."""


def chosen_metrics(metric: str) -> tuple[str, ...]:
    """The similarity of this name, or cosine and then the others for "all"."""
    if metric == "all":
        return ("cosine", *(name for name in METRICS if name != "cosine"))
    METRICS[metric]  # an unknown name is refused before anything is encoded
    return (metric,)


def column_vectors(encoder: System, *columns: Sequence[str], task: str) -> list[AnyVectors]:
    """The vectors of each column. One call for all, so that equal texts and lengths meet."""
    texts = [text for column in columns for text in column]
    vectors = np.asarray(with_vectors(encoder, texts, task).encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise InputError(
            f"an encoder gives a row for each text, but for {len(texts)} texts it gave the shape {vectors.shape}"
        )
    return np.split(vectors, np.cumsum([len(column) for column in columns])[:-1])


def pair_scores(
    system: System, left: Sequence[str], right: Sequence[str], metrics: Sequence[str], task: str
) -> dict[str, NDArray[np.float64]]:
    """The score of each pair by each similarity; a cross-encoder has its own in their place."""
    if isinstance(system, PairScorer):
        if len(metrics) > 1:
            raise InputError(
                "a cross-encoder has one score of its own, not several similarities. Leave metric out"
            )
        return {metrics[0]: np.asarray(system.scores(left, right), np.float64)}
    one, other = column_vectors(system, left, right, task=task)
    return {metric: np.asarray(row_scores(one, other, metric), np.float64) for metric in metrics}


def side_by_side(
    metrics: Sequence[str], values_for: Callable[[str], Mapping[str, Score]]
) -> dict[str, Score]:
    """The values of one similarity; of several, the first one's under their plain names, then each by its name."""
    every = {metric: values_for(metric) for metric in metrics}
    values = dict(every[metrics[0]])
    if len(metrics) > 1:
        for name in list(values):
            values |= {f"{name}-{metric}": every[metric][name] for metric in metrics}
    return values


def run_settings(rounds: int, seed: int) -> dict[str, object]:
    """How intervals were made, for the protocol; refuses what cannot be drawn."""
    if isinstance(rounds, bool) or rounds < 0:
        raise InputError(f"rounds must be 0 (no intervals) or more, got {rounds!r}")
    return {"interval": "95 %, percentile bootstrap" if rounds else "none", "rounds": rounds, "seed": seed}


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn. No rounds: no intervals."""

    rounds: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        run_settings(self.rounds, self.seed)

    def protocol(self, unit: str, *data: Iterable[object]) -> dict[str, Any]:
        """What was drawn, and a hash of the data it was drawn from: results with the same hash can be compared."""
        return {**run_settings(self.rounds, self.seed), "drawn": unit, "data": fingerprint(*data)}


def mean_score(values: NDArray[np.float64], bootstrap: Bootstrap) -> Score:
    """The mean of shares, in points, and where 95 % of the bootstrap means fall."""
    return score_of(MeanSample(values), rounds=bootstrap.rounds, seed=bootstrap.seed)


def mean_scores(
    task: str,
    dataset: str,
    values: Mapping[str, NDArray[np.float64]],
    *,
    unit: str,
    protocol: Mapping[str, Any],
    bootstrap: Bootstrap,
) -> Scores:
    """Named values, one a query; the first name is the number to compare models by."""
    main = next(iter(values))
    return Scores(
        task=task,
        dataset=dataset,
        main=main,
        values={name: mean_score(each, bootstrap) for name, each in values.items()},
        items=len(values[main]),
        unit=unit,
        protocol=protocol,
        sample=MeanSample(values[main]),
    )
