"""Task "reranking": rank the right answers first among the few candidates of each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import DataTable, tables_with, with_columns
from gemel.evaluation.metrics import average_precision, precision, ranked, reciprocal_rank
from gemel.evaluation.task import (
    TASKS,
    Bootstrap,
    Learner,
    PairScorer,
    Retriever,
    Scores,
    System,
    Task,
    encode_documents,
    encode_queries,
    mean_scores,
    rank,
    search_protocol,
)
from gemel.vectors.similarity import METRICS, row_scores
from gemel.vectors.sparse import SparseVectors

_QUESTIONS = ("question", "query")

_CANDIDATES = ("answer_sentence", "candidate", "answer", "document", "text")


@dataclass(frozen=True)
class RerankingQuery:
    """A question and its candidates, by position in the task's texts; `labels` says which are right."""

    text: int
    candidates: tuple[int, ...]
    labels: tuple[bool, ...]


@dataclass(frozen=True)
class RerankingTask:
    """Questions with candidates, ready for any encoder or retriever."""

    dataset: str
    questions: tuple[RerankingQuery, ...]
    question_texts: tuple[str, ...]
    candidate_texts: tuple[str, ...]
    left_out: int
    metric: str
    bootstrap: Bootstrap
    files: Mapping[str, Any] = field(default_factory=dict)
    """The part of the protocol on the choice of files."""

    def score(self, encoder: System) -> Scores:
        """MAP, the reciprocal rank of the first right answer, and precision at 1."""
        scores = self._scores(encoder)
        orders = np.full(
            (len(self.questions), max(len(q.candidates) for q in self.questions)), -1, dtype=np.int64
        )
        start = 0
        for row, question in enumerate(self.questions):
            size = len(question.candidates)
            orders[row, :size] = np.argsort(-scores[start : start + size], kind="stable")
            start += size
        gains = [{i: 1.0 for i, label in enumerate(q.labels) if label} for q in self.questions]
        lists = ranked(orders, gains)
        values = {
            "map": average_precision(lists),
            "mrr": reciprocal_rank(lists),
            "precision@1": precision(lists, 1),
        }
        return mean_scores(
            "reranking", self.dataset, values, self._protocol(encoder), self.bootstrap, unit="questions"
        )

    def _scores(self, encoder: System) -> NDArray[np.float32]:
        """(rows,) the score of each question with each of its candidates, one question after the other."""
        left = np.repeat([q.text for q in self.questions], [len(q.candidates) for q in self.questions])
        right = np.concatenate([q.candidates for q in self.questions])
        if isinstance(encoder, PairScorer):
            questions = [self.question_texts[i] for i in left]
            candidates = [self.candidate_texts[i] for i in right]
            return np.asarray(encoder.scores(questions, candidates), np.float32)
        if isinstance(encoder, Retriever):
            every = _retriever_scores(encoder, self.question_texts, self.candidate_texts)
            return np.asarray(every[left, right])
        ready = encoder.fitted(self.candidate_texts) if isinstance(encoder, Learner) else encoder
        queries: Any = encode_queries(ready, self.question_texts)
        documents: Any = encode_documents(ready, self.candidate_texts)
        if isinstance(queries, SparseVectors) and isinstance(documents, SparseVectors):
            return np.asarray(queries.similarity(documents)[left, right])
        return row_scores(queries[left], documents[right], self.metric)

    def _protocol(self, encoder: System) -> dict[str, Any]:
        return {
            **search_protocol(encoder, self.metric),
            "candidates": sum(len(question.candidates) for question in self.questions),
            "ties": "to the candidate that comes first in the file",
            "questions_without_right_answer_left_out": self.left_out,
            **self.files,
            **self.bootstrap.protocol("questions", self.questions, self.question_texts, self.candidate_texts),
        }


@TASKS.add("reranking")
def load(path: Path, *, metric: str = "cosine", rounds: int = 1000, seed: int = 0) -> list[Task]:
    """Tables of question, candidate and label (1: right); rows of a question share its text, or its `question_id`."""
    METRICS[metric]
    tables = tables_with(path, with_columns(_QUESTIONS, _CANDIDATES, ("label",)))
    return [_read(table, metric, Bootstrap(rounds, seed)) for table in tables]


def _read(table: DataTable, metric: str, bootstrap: Bootstrap) -> RerankingTask:
    questions, candidates = table.texts(*_QUESTIONS), table.texts(*_CANDIDATES)
    labels = table.numbers("label") > 0
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(table.texts("question_id", "query_id", *_QUESTIONS)):
        group = groups.setdefault(name, [])
        if group and questions[group[0]] != questions[row]:
            raise InputError(
                f"{table.location(row)}: question {name!r} has another text at {table.location(group[0])}"
            )
        group.append(row)
    kept = [group for group in groups.values() if labels[group].any()]
    if not kept:
        raise InputError(f"{table.path} has no question with a right answer (label above 0)")
    question_index: dict[str, int] = {}
    candidate_index: dict[str, int] = {}
    queries = tuple(
        RerankingQuery(
            text=question_index.setdefault(questions[group[0]], len(question_index)),
            candidates=tuple(
                candidate_index.setdefault(candidates[row], len(candidate_index)) for row in group
            ),
            labels=tuple(bool(labels[row]) for row in group),
        )
        for group in kept
    )
    return RerankingTask(
        dataset=table.name,
        questions=queries,
        question_texts=tuple(question_index),
        candidate_texts=tuple(candidate_index),
        left_out=len(groups) - len(kept),
        metric=metric,
        bootstrap=bootstrap,
        files=table.protocol,
    )


def _retriever_scores(
    retriever: Retriever, questions: Sequence[str], candidates: Sequence[str]
) -> NDArray[np.float32]:
    """(questions, candidates): scores from a full ranking of all candidates; -inf for those that were not found."""
    hits = rank(retriever, questions, candidates, len(candidates), "cosine")
    scores = np.full((len(questions), len(candidates)), -np.inf, dtype=np.float32)
    rows, ranks = np.nonzero(hits.index >= 0)
    scores[rows, hits.index[rows, ranks]] = hits.score[rows, ranks]
    return scores
