"""Searches side by side: dense, sparse, late, words, hybrids of them, and each reranked; how good, and what they cost.

`compare_retrieval` runs every system once on a collection. Hybrids fuse the rankings that were found (reciprocal rank
fusion), and rerankers sort them, so nothing is encoded or scored twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias, cast, get_args

import numpy as np

from gemel.cross_model import CrossModel
from gemel.errors import InputError
from gemel.evaluation.baselines import BM25
from gemel.evaluation.evaluate import average, compare_with, description_of, name_of, open_encoder
from gemel.evaluation.report.write import write_report
from gemel.evaluation.statistics import NamedComparison
from gemel.evaluation.task import (
    Encoded,
    Learner,
    PairScorer,
    Retriever,
    Scores,
    System,
    encode_documents,
    encode_queries,
    load_task,
    nearest,
    refuse_cross_encoder,
    search_protocol,
    system_name,
)
from gemel.evaluation.tasks.retrieval import RetrievalTask
from gemel.options import CrossOptions, check_choice, check_count
from gemel.texts.late_model import LateModel, load_reranker
from gemel.types import Encoder, ShownResult
from gemel.vectors.bm25 import RRF_K, BM25Index, fuse
from gemel.vectors.maxsim import LateOutput, MultiVectors
from gemel.vectors.search import Hits

Searcher: TypeAlias = System | str | Path
"""A model or an encoder of any kind, the name or folder of one, or a baseline such as "bm25"."""

Reranker: TypeAlias = CrossModel | LateModel

_CANDIDATES = 100  # documents per query that a reranker sorts


@dataclass(frozen=True)
class RetrievalComparison(ShownResult):
    """Several searches on the same queries and documents."""

    results: tuple[Scores, ...]
    """One per system and data set, then the average of each system where there are several sets. `costs` has what the
    search took."""
    comparisons: tuple[NamedComparison, ...]
    """Each system with the first one, on the same data set: a paired bootstrap over the queries."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per system and data set: the numbers, the difference to the first system, the costs."""
        compared = {(each.second, each.dataset): each.comparison for each in self.comparisons}
        for result in self.results:
            row: dict[str, Any] = {"dataset": result.dataset, "system": result.model}
            for name, score in result.values.items():
                row[name] = score.value
                if score.low is not None:
                    row |= {f"{name}-low": score.low, f"{name}-high": score.high}
            other = compared.get((result.model, result.dataset))
            if other is not None:
                row |= {"difference": other.difference, "difference-low": other.low}
                row |= {"difference-high": other.high, "sure": other.sure}
            yield {**row, **result.costs}

    def to_json(self) -> dict[str, Any]:
        return {
            "results": [result.to_json() for result in self.results],
            "comparisons": [each.to_json() for each in self.comparisons],
        }

    def write_report(self, folder: str | Path) -> list[Path]:
        """Write results.json, results.md and report.html into `folder`; returns their paths."""
        return write_report(self.results, self.comparisons, folder)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return self.rows()


def compare_retrieval(
    systems: Sequence[Searcher] | Mapping[str, Searcher],
    data: str | Path,
    *,
    hybrid: bool | Sequence[Mapping[str, float]] = False,
    rerank: Reranker | str | Path | None = None,
    candidates: int = _CANDIDATES,
    late_form: LateOutput = "float32",
    **settings: Any,
) -> RetrievalComparison:
    """Search the collections at `data` with each system, and compare the results and the costs.

    systems: models of any kind (dense, sparse, late), their names or folders, "bm25" and other baselines; a mapping
    gives them the names that results have. The others are compared with the first one.
    hybrid: True adds the fusion of all systems by rank; or, for each fusion, the names of systems with their weights.
    rerank: a cross-encoder or a model for late interaction that sorts the best `candidates` of every search.
    late_form: how token vectors are stored while they are compared: float32, float16 or int8.
    settings: of the task "retrieval": metric, k, split, gain, skip_same_id, strict, rounds, seed.
    """
    check_count("candidates", candidates)
    tasks = load_task("retrieval", data, **settings)
    named = named_systems(systems)
    fusions = _fusions(hybrid, tuple(named))
    reranker = load_reranker(rerank) if isinstance(rerank, str | Path) else rerank
    plan = SearchPlan(named, fusions, reranker, candidates, late_form)
    results, comparisons = [], []
    for result, compared in compared_searches(cast("list[RetrievalTask]", tasks), plan):
        results.append(result)
        comparisons += compared
    return RetrievalComparison(tuple(results), tuple(comparisons))


def named_systems(systems: Sequence[Searcher] | Mapping[str, Searcher], **options: Any) -> dict[str, System]:
    """The systems, opened with these `options` of `open_encoder`, by the names that results have."""
    if isinstance(systems, str | Path):
        raise InputError(f"systems must be a list of models or a mapping of names to them, got {systems!r}")
    if isinstance(systems, Mapping):
        return {name: open_encoder(cast("Encoder", system), **options) for name, system in systems.items()}
    named: dict[str, System] = {}
    for system in systems:
        opened = open_encoder(cast("Encoder", system), **options)
        name = name_of(cast("Encoder", system), opened)
        if name in named:  # two folders may end in the same name
            name = str(system) if isinstance(system, str | Path) else f"{name} ({len(named) + 1})"
        named[name] = opened
    return named


def _fusions(
    hybrid: bool | Sequence[Mapping[str, float]], names: tuple[str, ...]
) -> tuple[Mapping[str, float], ...]:
    if hybrid is True:
        return (dict.fromkeys(names, 1.0),)
    fusions = tuple(hybrid or ())
    for fusion in fusions:
        unknown = [name for name in fusion if name not in names]
        if unknown:
            raise InputError(f"hybrid names {unknown[0]!r}, which is no system. There are {', '.join(names)}")
    return fusions


@dataclass(frozen=True)
class SearchPlan:
    """What is compared."""

    systems: Mapping[str, System]
    fusions: tuple[Mapping[str, float], ...] = ()
    """The weight of each system in a hybrid."""
    reranker: Reranker | None = None
    candidates: int = _CANDIDATES
    late_form: LateOutput = "float32"
    reranked: tuple[str, ...] | None = None
    """Names of the searches that are reranked; None: all."""

    def __post_init__(self) -> None:
        if not self.systems:
            raise InputError("there is no system to compare: give a model, or 'bm25'")
        check_choice("late_form", self.late_form, get_args(LateOutput))
        for system in self.systems.values():
            refuse_cross_encoder(system)
        for fusion in self.fusions:
            if len(fusion) < 2:
                raise InputError(
                    f"a hybrid fuses at least two systems, got {', '.join(fusion) or 'none'}. Give another one, such "
                    "as 'bm25'"
                )


@dataclass(frozen=True)
class _SearchRun:
    """What one system found, how, and what it took."""

    name: str
    hits: Hits
    protocol: Mapping[str, Any]
    query_seconds: float
    """Of all queries."""
    document_seconds: float | None
    """Of all documents; None: not known, because the system does both at once."""
    document_bytes: int | None


def compared_searches(
    tasks: Sequence[RetrievalTask], plan: SearchPlan
) -> Iterator[tuple[Scores, list[NamedComparison]]]:
    """Each result with its comparison to the first system: by data set, then the averages."""
    of_systems: dict[str, list[Scores]] = {}
    for task in tasks:
        results = [_scored(task, search) for search in _searches(task, plan)]
        for result in results:
            of_systems.setdefault(result.model, []).append(result)
        yield from _with_comparisons(results, task)
    if len(tasks) > 1:
        yield from _with_comparisons([average(each) for each in of_systems.values()], tasks[0])


def _with_comparisons(
    results: Sequence[Scores], task: RetrievalTask
) -> Iterator[tuple[Scores, list[NamedComparison]]]:
    draws = {"rounds": task.bootstrap.rounds} if task.bootstrap.rounds else {}
    yield results[0], []
    for result in islice(results, 1, None):
        yield result, compare_with(results[:1], result, seed=task.bootstrap.seed, **draws)


def _scored(task: RetrievalTask, search: _SearchRun) -> Scores:
    queries, documents = len(task.collection.queries), len(task.collection.corpus)
    costs = {"ms_per_query": 1000 * search.query_seconds / queries}
    if search.document_seconds is not None:
        costs["ms_per_document"] = 1000 * search.document_seconds / documents
    if search.document_bytes is not None:
        costs["bytes_per_document"] = search.document_bytes / documents
    scores = task.score_hits(search.hits, search.protocol)
    return replace(scores, model=search.name, costs=costs)


def _searches(task: RetrievalTask, plan: SearchPlan) -> Iterator[_SearchRun]:
    """The systems, their fusions, and all of these reranked."""
    first = [_searched(name, system, task, plan.late_form) for name, system in plan.systems.items()]
    by_name = {search.name: search for search in first}
    first += [_fused(fusion, by_name, task.depth) for fusion in plan.fusions]
    yield from first
    if plan.reranker is not None:
        chosen = [search for search in first if plan.reranked is None or search.name in plan.reranked]
        yield from _reranked(chosen, plan.reranker, task, plan.candidates)


def _searched(name: str, system: System, task: RetrievalTask, late_form: LateOutput) -> _SearchRun:
    queries, corpus, depth = task.collection.queries, task.collection.corpus, task.depth
    protocol = {**search_protocol(system, task.metric), **description_of(system)}
    if isinstance(system, BM25):
        started = perf_counter()
        index = BM25Index(corpus)
        built = perf_counter()
        hits = index.rank(queries, depth)
        return _SearchRun(
            name, hits, protocol, perf_counter() - built, built - started, stored_bytes(index.__dict__)
        )
    if isinstance(system, Retriever) and not isinstance(system, PairScorer):
        started = perf_counter()
        hits = system.rank(queries, corpus, depth)
        return _SearchRun(name, hits, protocol, perf_counter() - started, None, None)
    encoder = cast("Encoder", system.fitted(corpus) if isinstance(system, Learner) else system)
    # The first texts also start threads and read weights.
    nearest(encode_queries(encoder, queries[:1]), encode_documents(encoder, corpus[:1]), 1, task.metric)
    started = perf_counter()
    documents = encode_documents(encoder, corpus)
    if isinstance(documents, MultiVectors):
        documents = documents.as_form(late_form)
        protocol |= {"stored": late_form}
    encoded = perf_counter()
    hits = nearest(encode_queries(encoder, queries), documents, depth, task.metric)
    ended = perf_counter()
    return _SearchRun(name, hits, protocol, ended - encoded, encoded - started, stored_bytes(documents))


def stored_bytes(documents: Encoded | Mapping[str, object]) -> int:
    """Bytes of the numbers of encoded documents: of an array, or of all arrays that a result or a mapping holds."""
    if isinstance(documents, np.ndarray):
        return documents.nbytes
    parts = documents if isinstance(documents, Mapping) else vars(documents)
    arrays = (part for part in parts.values() if isinstance(part, np.ndarray) or is_dataclass(part))
    return sum(stored_bytes(cast("Encoded", part)) for part in arrays)


def _fused(fusion: Mapping[str, float], searches: Mapping[str, _SearchRun], depth: int) -> _SearchRun:
    parts = [searches[name] for name in fusion]
    started = perf_counter()
    hits = fuse([part.hits for part in parts], depth, weights=list(fusion.values()))
    seconds = perf_counter() - started + sum(part.query_seconds for part in parts)
    document_seconds = [part.document_seconds for part in parts]
    document_bytes = [part.document_bytes for part in parts]
    return _SearchRun(
        name=fusion_name(fusion),
        hits=hits,
        protocol={
            "metric": f"reciprocal rank fusion with {RRF_K}",
            "prompts": "those of the fused systems",
            "weights": dict(fusion),
        },
        query_seconds=seconds,
        document_seconds=None if None in document_seconds else sum(filter(None, document_seconds)),
        document_bytes=None if None in document_bytes else sum(filter(None, document_bytes)),
    )


def fusion_name(fusion: Mapping[str, float]) -> str:
    """`a + b`, with the weights where they differ: `a + 2 × b`."""
    equal = len(set(fusion.values())) == 1
    return " + ".join(
        name if equal or weight == 1 else f"{weight:g} × {name}" for name, weight in fusion.items()
    )


def _reranked(
    searches: Sequence[_SearchRun], reranker: Reranker, task: RetrievalTask, candidates: int
) -> Iterator[_SearchRun]:
    """Every search with its best candidates sorted by the reranker; the documents after them stay behind them.

    A pair of query and document is scored once for all searches. Each is charged for the pairs of its own.
    """
    corpus, queries = task.collection.corpus, task.collection.queries
    tops = [search.hits.index[:, :candidates] for search in searches]
    shape = (len(queries), len(corpus))
    needed = np.unique(
        np.concatenate([row * shape[1] + top[row][top[row] >= 0] for top in tops for row in range(len(top))])
    )
    rows, columns = np.divmod(needed, shape[1])
    started = perf_counter()
    pairs = [queries[row] for row in rows], [corpus[column] for column in columns]
    scores = reranker.scores(*pairs, CrossOptions(on_long="truncate"))
    seconds = (perf_counter() - started) / max(1, len(needed))
    for search, top in zip(searches, tops, strict=True):
        index, score = search.hits.index.copy(), search.hits.score.copy()
        own = np.full(top.shape, -np.inf, dtype=np.float32)
        at = np.nonzero(top >= 0)
        own[at] = scores[np.searchsorted(needed, at[0] * shape[1] + top[at])]
        order = np.argsort(-own, axis=1, kind="stable")
        width = top.shape[1]
        index[:, :width] = np.take_along_axis(top, order, axis=1)
        score[:, :width] = np.take_along_axis(own, order, axis=1)
        yield replace(
            search,
            name=f"reranked {search.name}",
            hits=Hits(index, score),
            protocol={**search.protocol, "reranked_by": system_name(reranker), "candidates": candidates},
            query_seconds=search.query_seconds + seconds * len(at[0]),
        )
