"""Task "duplicates": for each reported duplicate, find the others of its group among all reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemel.errors import InputError
from gemel.evaluation.data import PAIRS, DataTable, connected, read_pairs, tables_with, with_columns
from gemel.evaluation.metrics import average_precision, hit_rate, ranked, recall, reciprocal_rank
from gemel.evaluation.task import TASKS, Bootstrap, Scores, System, Task, mean_scores, rank, search_protocol
from gemel.evaluation.tasks.retrieval import without
from gemel.vectors.similarity import METRICS

DEPTH = 100

_BUGS = ("bug_id", "title", "description", "dup_of_id", "dup_title", "dup_description")


@dataclass(frozen=True)
class Reports:
    """Distinct reports, groups of duplicates among them, and which of them are queries."""

    texts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    queries: tuple[int, ...]


@dataclass(frozen=True)
class DuplicatesTask:
    """One set of reports, ready for any encoder or retriever."""

    dataset: str
    reports: Reports
    metric: str
    bootstrap: Bootstrap
    files: Mapping[str, Any] = field(default_factory=dict)
    """The part of the protocol on the choice of files."""

    def score(self, encoder: System) -> Scores:
        """MAP@100, MRR@100, and recall and the share of queries with a hit at 1, 10 and 20."""
        data, queries = self.reports, np.array(self.reports.queries, dtype=np.int64)
        hits = rank(encoder, [data.texts[i] for i in queries], data.texts, DEPTH + 1, self.metric)
        group_of = {i: group for group in data.groups for i in group}
        gains = [{other: 1.0 for other in group_of[i] if other != i} for i in data.queries]
        lists = ranked(without(hits.index, queries)[:, :DEPTH], gains)
        values = {f"map@{DEPTH}": average_precision(lists), f"mrr@{DEPTH}": reciprocal_rank(lists)}
        values |= {f"recall@{k}": recall(lists, k) for k in (1, 10, 20)}
        values |= {f"hit@{k}": hit_rate(lists, k) for k in (1, 10, 20)}
        return mean_scores(
            "duplicates", self.dataset, values, self._protocol(encoder), self.bootstrap, unit="queries"
        )

    def _protocol(self, encoder: System) -> dict[str, Any]:
        return {
            **search_protocol(encoder, self.metric),
            "search": "all other reports; ties to the earlier one",
            "reports": len(self.reports.texts),
            "relevant": "all others of the group; duplicates of duplicates belong to it",
            **self.files,
            **self.bootstrap.protocol(
                "queries", self.reports.texts, self.reports.groups, self.reports.queries
            ),
        }


@TASKS.add("duplicates")
def load(path: Path, *, metric: str = "cosine", rounds: int = 1000, seed: int = 0) -> list[Task]:
    """Tables of bugs with the bug that each duplicates, or of labeled pairs of texts (label 1: the same question).

    Of bugs, the duplicates are the queries; of pairs, every text of a pair with label 1.
    """
    METRICS[metric]
    bootstrap, tasks = Bootstrap(rounds, seed), list[Task]()
    for table in tables_with(path, with_columns(("dup_of_id",)), PAIRS):
        reports = _bugs(table) if table.has("dup_of_id") else _questions(table)
        tasks.append(DuplicatesTask(table.name, reports, metric, bootstrap, table.protocol))
    return tasks


def _bugs(table: DataTable) -> Reports:
    index: dict[str, int] = {}
    texts: list[str] = []
    pairs: list[tuple[int, int]] = []
    for row, (bug, title, text, master, its_title, its_text) in enumerate(
        zip(*(table.texts(name) for name in _BUGS), strict=True)
    ):
        pair = []
        for name, full in ((bug, f"{title} {text}"), (master, f"{its_title} {its_text}")):
            i = index.setdefault(name, len(index))
            if i == len(texts):
                texts.append(full.strip())
            elif texts[i] != full.strip():
                raise InputError(f"{table.location(row)}: bug {name!r} has another text in an earlier row")
            pair.append(i)
        if pair[0] == pair[1]:
            raise InputError(f"{table.location(row)}: bug {bug!r} is marked as a duplicate of itself")
        pairs.append((pair[0], pair[1]))
    queries = dict.fromkeys(left for left, _ in pairs)
    return Reports(tuple(texts), _groups(len(texts), pairs), tuple(queries))


def _questions(table: DataTable) -> Reports:
    pairs = read_pairs(table)
    groups = _groups(len(pairs.texts), pairs.same)
    return Reports(pairs.texts, groups, tuple(sorted(i for group in groups for i in group)))


def _groups(size: int, pairs: Collection[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(group) for group in connected(size, pairs) if len(group) > 1)
