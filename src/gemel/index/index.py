"""`Index`: documents that are encoded, stored, found, and bound to the model that made their vectors.

What an index says of itself: sizes, layout, recall, and whose vectors they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from numpy.typing import ArrayLike

from gemel.errors import InputError, WorkError
from gemel.index.binding import IndexState
from gemel.index.fields import check_fields, check_name
from gemel.index.ingest import FieldsGiven, Incoming, add_all
from gemel.index.port import Count, FieldType, Store, TableStats
from gemel.index.query import SearchQuery, answer, checked_ids, one_query, query_texts, query_vectors
from gemel.index.results import Answer, Existing, IndexStats, StoredDocument, WriteResult, stored_documents
from gemel.index.where import Condition
from gemel.index.where_parse import parse_where
from gemel.model import Model
from gemel.options import EncodeOptions, Precision
from gemel.vectors.bm25 import WordRules

if TYPE_CHECKING:
    from gemel.cross_model import CrossModel
    from gemel.index.migrate import MigrateResult
    from gemel.index.verify import VerifyResult

Where: TypeAlias = str | Mapping[str, Any] | Condition | None

Done = TypeVar("Done")


class Index:
    """Documents under ids, found by meaning, words and fields. `open_index` makes one. Safe with several threads.

    Every call that writes is one commit (`add`: one a block): after a crash all of it is there or nothing.
    """

    def __init__(self, place: Store, state: IndexState, *, read_only: bool = False) -> None:
        self._place, self._state = place, state
        self._read_only = read_only
        self._closed = False
        self._retired: list[
            IndexState
        ] = []  # tables that a migration replaced; others may still be reading them
        self._migrating = threading.Lock()

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        return self._place.name

    @property
    def dim(self) -> int:
        """Numbers in a stored vector."""
        return self._open().table.header.dim

    @property
    def fields(self) -> dict[str, FieldType]:
        """Names and types of the columns for conditions."""
        return dict(self._open().table.header.fields)

    @property
    def model(self) -> Model | None:
        """The model that encodes for it, loaded if it is not yet; None: the index holds vectors only."""
        return self._open().coder.model()

    def __len__(self) -> int:
        return self._open().table.count().documents

    def __repr__(self) -> str:
        binding = self._state.binding
        made = "vectors only" if binding is None else f"made by {binding.model!r}"
        return f"Index({self.place!r}, {made}, dim={self._state.table.header.dim})"

    # Writing.

    def add(
        self,
        texts: Iterable[str] | None = None,
        *,
        ids: Iterable[str | int] | None = None,
        vectors: ArrayLike | Iterable[ArrayLike] | None = None,
        fields: FieldsGiven | None = None,
        existing: Existing = "error",
        block: int = 2048,
        progress: bool = False,
    ) -> WriteResult:
        """Store documents. Those that are there with the same text and fields are neither encoded nor written again.

        ids: None: made of the texts. vectors: (n, dim) of the index's model; texts may then be left out.
        fields: columns {"year": [...]}, or one mapping a document. existing: what to do with an id that is there.
        block: documents a commit. Lists are checked whole before anything is written; streams block by block.
        """
        self._writable()
        incoming = Incoming(texts, ids, vectors, fields)
        return add_all(self._run, incoming, existing, block, progress=progress)

    def upsert(self, texts: Iterable[str] | None = None, **given: Any) -> WriteResult:
        """`add` with existing="replace": new documents are added, changed ones replaced, others left alone."""
        return self.add(texts, **{"existing": "replace", **given})

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        """New columns; null in every document that is there."""
        self._writable()
        wanted = check_fields(fields)
        for name in wanted:
            check_name(name, self.fields)
        self._run(lambda state: state.table.add_fields(wanted))

    def delete(self, ids: Iterable[str | int] | None = None, *, where: Where = None) -> int:
        """Delete documents by id or by a condition, in one commit; how many were there."""
        self._writable()
        condition = self._condition(where)
        if (ids is None) == (condition is None):
            raise InputError("delete takes ids or where, one of the two")
        if condition is not None:
            return self._run(lambda state: state.table.delete_where(condition))
        named = checked_ids(ids or ())
        return self._run(lambda state: state.table.delete(named))

    # Reading.

    def search(
        self,
        query: str | ArrayLike,
        k: int = 10,
        *,
        where: Where = None,
        offset: int = 0,
        hybrid: bool = False,
        rerank: CrossModel | None = None,
        candidates: int | None = None,
        exact: bool = False,
        recall: float | None = None,
    ) -> Answer:
        """The best `k` documents for a text or a vector, after the first `offset`; each with its best passage.

        where: a condition on fields: "lang = 'en' and year >= 2020", or {"lang": "en", "year": {">=": 2020}}.
        hybrid: the ranking by vectors fused with one by words. rerank: a cross-encoder that orders the candidates anew.
        candidates: documents that fusion and reranking look at; None: 50, or k + offset if that is more.
        exact: every passage is compared. recall: the part of the right documents to find at least, like 0.99; a wider
        search, or an exact one where none is wide enough. None: about 0.985.
        """
        return self.search_many(
            one_query(query),
            k,
            where=where,
            offset=offset,
            hybrid=hybrid,
            rerank=rerank,
            candidates=candidates,
            exact=exact,
            recall=recall,
        )[0]

    def search_many(
        self,
        queries: Sequence[str] | ArrayLike,
        k: int = 10,
        *,
        where: Where = None,
        offset: int = 0,
        hybrid: bool = False,
        rerank: CrossModel | None = None,
        candidates: int | None = None,
        exact: bool = False,
        recall: float | None = None,
    ) -> list[Answer]:
        """`search` for several texts, or for vectors (q, dim); texts are encoded in one go."""
        question = SearchQuery(
            k=k,
            where=self._condition(where),
            offset=offset,
            hybrid=hybrid,
            rerank=rerank,
            candidates=candidates,
            exact=exact,
            recall=recall,
        )
        texts = query_texts(queries)
        if texts is None:
            return self._run(lambda state: answer(state, None, query_vectors(state, queries), question))
        return self._run(lambda state: answer(state, texts, None, question)) if texts else []

    def get(self, ids: Iterable[str | int]) -> list[StoredDocument]:
        """The documents of these ids, in the order asked; ids that are not there are left out."""
        named = checked_ids(ids)
        rows = self._run(lambda state: state.table.get(named))
        return [
            StoredDocument(each.id, each.text, each.fields, len(each.passages))
            for each in stored_documents(rows)
        ]

    def count(self, where: Where = None) -> Count:
        """Documents and passages, of those that meet the condition."""
        condition = self._condition(where)
        return self._run(lambda state: state.table.count(condition))

    def stats(self) -> IndexStats:
        """Sizes, layout, measured recall, and whose vectors they are."""
        return self._run(lambda state: stats_of(state, self.place))

    # Care.

    def compact(self, *, now: bool = False) -> None:
        """Merge small pieces, drop what was deleted, build what speeds up search. May be killed at any moment.

        The room of old versions is freed at once when no other handle is open to the index, else after an hour;
        `now`: that they cannot be freed at once is an error.
        """
        self._writable()
        self._run(lambda state: state.table.compact(now=now))

    def verify(self, sample: int = 100) -> VerifyResult:
        """Read every row, encode the canaries and `sample` documents again, and compare."""
        from gemel.index.verify import verify

        if isinstance(sample, bool) or sample < 1:
            raise InputError(f"sample must be at least 1, got {sample!r}")
        return self._run(lambda state: verify(state, sample))

    def migrate(
        self,
        to: Model | str | Path,
        *,
        options: EncodeOptions | None = None,
        dim: int | None = None,
        precision: Precision | None = None,
        passage_tokens: int | None = None,
        progress: bool = False,
    ) -> MigrateResult:
        """Encode every document anew with another model, then switch to it in one step.

        Settings that are None stay as the index has them. Until the switch the old vectors answer, and writes are
        taken. Killed in the middle, run it again: what is done is kept. Other handles that are open to the index have
        to be opened again afterwards.
        """
        from gemel.index.migrate import Target, migrate

        self._writable()
        target = Target(to, options, dim, precision, passage_tokens)
        with self._migrating:
            return migrate(self._place, self._open(), target, self._adopt, progress=progress)

    def rebuild_words(self, *, stemming: str | None = None, progress: bool = False) -> int:
        """Cut the texts into words again, by the newest rules; how many documents were written.

        stemming: a language whose endings are removed ("english"); None: no stemming. Vectors stay as they are. Reads
        and writes go on until the switch at the end; other handles that are open have to be opened again afterwards.
        """
        from gemel.index.migrate import rebuild_words

        self._writable()
        rules = WordRules(stemming=stemming)
        with self._migrating:
            return rebuild_words(self._place, self._open(), rules, self._adopt, progress=progress)

    def close(self) -> None:
        """Give back what is held. Nothing is lost without it: every write is on disk when it returns."""
        if self._closed:
            return
        self._closed = True
        for state in (*self._retired, self._state):
            state.table.close()
        self._place.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> IndexState:
        if self._closed:
            raise InputError(f"the index {self.place} is closed. Open it again with open_index")
        return self._state

    def _writable(self) -> None:
        self._open()
        if self._read_only:
            raise InputError(f"the index {self.place} was opened to read only")

    def _adopt(self, state: IndexState) -> None:
        self._retired.append(self._state)
        self._state = state

    def _run(self, work: Callable[[IndexState], Done]) -> Done:
        """The work; again on the new table, if a migration of this handle replaced the table meanwhile."""
        state = self._open()
        try:
            return work(state)
        except WorkError:
            if self._state is state and self._migrating.locked():
                with self._place.writing():  # a switch that is going on ends before this begins
                    pass
            if self._open() is state:
                raise
            return work(self._open())

    def _condition(self, where: Where) -> Condition | None:
        return None if where is None else parse_where(where, self.fields)


def stats_of(state: IndexState, place: str) -> IndexStats:
    """The table's facts and those of its header."""
    found, header, binding = state.table.stats(), state.table.header, state.binding
    return IndexStats(
        **{each.name: getattr(found, each.name) for each in fields(TableStats)},
        place=place,
        model=None if binding is None else binding.model,
        fingerprint=None if binding is None else binding.fingerprint.digest,
        dim=header.dim,
        fields=dict(header.fields),
        passage_tokens=state.passage_tokens,
        words=_words(header.words),
        format=header.format,
        made_by=f"gemel {header.bound.get('gemel', '')}".strip(),
    )


def _words(rules: WordRules) -> str:
    if rules.version == 1:
        return (
            "version 1: Chinese, Japanese and Thai are not cut into words. To rebuild them: gemel index words, "
            "or index.rebuild_words()"
        )
    return f"version {rules.version}, " + (f"stemming {rules.stemming}" if rules.stemming else "no stemming")
