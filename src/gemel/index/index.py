"""`Index`: documents that are encoded, stored and found by meaning, words and fields.

A call works on one `IndexState` (table, encoder, binding) from start to end; `Index` replaces it after a migration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from gemel.errors import InputError, WorkError
from gemel.files.rows import check_output
from gemel.index.binding import IndexState, unit
from gemel.index.documents import (
    BLOCK,
    FieldChanges,
    IndexDocument,
    VectorChoice,
    check_limit,
    sample_vectors,
    scan_documents,
    stored_documents,
    update_fields,
    without_field,
    write_documents,
)
from gemel.index.fields import check_fields, check_name, single_field, unknown_field
from gemel.index.ingest import (
    DocumentLike,
    Existing,
    FieldsGiven,
    Incoming,
    WriteResult,
    add_documents,
    checked_id,
    checked_ids,
    one_query,
    query_texts,
)
from gemel.index.kinds import IndexExplanation, KindModel, LateForm, Mode, kinds_in, recorded_mode
from gemel.index.port import Count, FieldType, FieldValue, KindName, Store
from gemel.index.query import Answer, Hit, Reranker, SearchExamples, SearchQuery, hybrid_mode
from gemel.index.search import answer, explained, query_vector
from gemel.index.where import Condition
from gemel.index.where_parse import parse_where
from gemel.model import Model
from gemel.options import EncodeOptions, Precision
from gemel.terminal import Progress
from gemel.types import Vectors
from gemel.vectors.bm25 import WordRules

if TYPE_CHECKING:
    from gemel.index.backup import SnapshotResult
    from gemel.index.migrate import MigrateResult, Migration
    from gemel.index.verify import IndexStats, VerifyResult

Where: TypeAlias = str | Mapping[str, Any] | Condition | None

Value = TypeVar("Value")

_SAME_MODEL = 0.999  # cosine; int8 and other processors stay above, another model stays far below


class Index:
    """Documents under ids, found by meaning, words and fields. `open_index` makes one. Safe with several threads.

    Every write is one atomic commit (`add`: one per block).
    """

    def __init__(self, store: Store, state: IndexState, *, read_only: bool | str = False) -> None:
        """`read_only`: no document can be changed; a string says why."""
        self._store, self._state = store, state
        self._read_only = read_only
        self._closed = False
        self._retired: list[IndexState] = []  # replaced by a migration; other threads may still read them
        self._migrating = threading.Lock()

    @property
    def location(self) -> str:
        """Where it is, without secrets."""
        return self._store.name

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
        """The model that makes its dense vectors, loaded on first use; None: there is none."""
        state = self._open()
        return None if state.binding is None else state.encoder.model

    @property
    def encode_options(self) -> EncodeOptions | None:
        """The options that its texts are encoded with; None: the index has no model for dense vectors."""
        binding = self._open().binding
        return None if binding is None else binding.options

    @property
    def mode(self) -> Mode:
        """How it is searched unless a search says otherwise."""
        return recorded_mode(self._open().header)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of vectors that it has, of dense, sparse and late."""
        return kinds_in(self._open().header)

    def shared_words(self, query: str, text: str) -> dict[str, list[tuple[int, int]]]:
        """Each word of a query, by the rules of the index, and where a text has it: start and stop in characters."""
        return self._open().header.words.shared_words(query, text)

    def kind_model(self, kind: KindName) -> Any | None:  # noqa: ANN401 - SparseModel or LateModel, of a higher layer
        """The `SparseModel` or `LateModel` of the index, loaded on first use; None: it has no such vectors."""
        lazy = self._open().kinds.get(kind)
        return None if lazy is None else lazy.get().model

    def __len__(self) -> int:
        return self._open().table.count().documents

    def __repr__(self) -> str:
        made = f"made by {self._state.models!r}" if self._state.models else "vectors only"
        return f"Index({self.location!r}, {made}, dim={self._state.table.header.dim})"

    # Writing.

    def add(
        self,
        texts: Iterable[str] | Iterable[DocumentLike] | None = None,
        *,
        ids: Iterable[str | int] | None = None,
        vectors: ArrayLike | Iterable[ArrayLike] | None = None,
        fields: FieldsGiven | None = None,
        existing: Existing = "error",
        block: int = 2048,
        progress: bool = False,
    ) -> WriteResult:
        """Store documents. Those stored already with the same text and fields are neither encoded nor written again.

        texts: or documents with an id, a text and fields, as `read_documents` gives them.
        ids: None: made from the texts. vectors: (n, dim) of the index's model; texts may then be left out.
        fields: columns {"year": [...]}, or one mapping per document. existing: what to do with an id that is stored.
        block: documents per commit. Lists are checked as a whole before anything is written; streams block by block.
        """
        self._writable()
        incoming = Incoming(texts, ids, vectors, fields)
        line = Progress(incoming.total, "documents", shown=progress)
        return add_documents(self._run, incoming, existing, block, line)

    def upsert(
        self, texts: Iterable[str] | Iterable[DocumentLike] | None = None, **given: Any
    ) -> WriteResult:
        """`add` with existing="replace": new documents are added, changed ones replaced, others left alone."""
        return self.add(texts, **{"existing": "replace", **given})

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        """Add columns; null in every stored document."""
        self._writable()
        wanted = check_fields(fields)
        for name in wanted:
            check_name(name, self.fields)
        self._run(lambda state: state.table.add_fields(wanted))

    def remove_field(self, field: str) -> int:
        """Remove a field with its values from every document, in one commit; how many had a value.

        It cannot be undone. Texts and vectors stay. Adding a document again without the field changes nothing then.
        """
        self._writable()
        return self._run(
            lambda state: state.table.remove_field(
                field, partial(without_field, field=field, splitting=state.splitting)
            )
        )

    def update(
        self,
        ids: Iterable[str | int] | None = None,
        *,
        where: Where = None,
        fields: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        block: int = 2048,
    ) -> WriteResult:
        """Change fields of stored documents; texts, vectors and other fields stay. Nothing is encoded.

        ids: which documents; one that is not stored is an error, and nothing is changed. where: those that meet a
        condition. fields: {"year": 2024} for all of them, or a list of one mapping per id; None removes a value.
        block: documents per commit.
        """
        self._writable()
        condition = self._condition(where)
        changes = FieldChanges.checked(
            None if ids is None else checked_ids(ids), condition, fields, self.fields
        )
        if isinstance(block, bool) or block < 1:
            raise InputError(f"block must be at least 1, got {block}")
        return update_fields(self._run, changes, block)

    def delete(self, ids: Iterable[str | int] | None = None, *, where: Where = None) -> int:
        """Delete documents by id or by a condition, in one commit; how many there were."""
        self._writable()
        condition = self._condition(where)
        if (ids is None) == (condition is None):
            raise InputError("delete takes ids or where, one of the two")
        if condition is not None:
            return self._run(lambda state: state.table.delete_where(condition))
        named = checked_ids(ids or ())
        return self._run(lambda state: state.table.delete(named))

    # Reading.

    def search(  # noqa: PLR0913 - one argument per option
        self,
        query: str | ArrayLike,
        k: int = 10,
        *,
        where: Where = None,
        offset: int = 0,
        mode: Mode | None = None,
        weights: Mapping[str, float] | None = None,
        hybrid: bool = False,
        rerank: Reranker | None = None,
        candidates: int | None = None,
        exact: bool = False,
        recall: float | None = None,
        min_score: float | None = None,
        diversity: float | None = None,
        group_by: str | None = None,
        per_group: int = 1,
    ) -> Answer:
        """The best `k` documents for a text or a vector, after the first `offset`; each with its best passage.

        where: a condition on fields: "lang = 'en' and year >= 2020", or {"lang": "en", "year": {">=": 2020}}.
        mode: by which vectors, or words: dense, sparse, late, words, or hybrid, which fuses the rankings of all; None:
        that of the index. weights: of the rankings in hybrid search, {"dense": 1, "words": 0.5}; 0 leaves one out.
        hybrid: short for mode="hybrid". rerank: a cross-encoder or a model for late interaction that reorders the
        candidates.
        candidates: documents for fusion and reranking; None: 50, or k + offset if that is more.
        exact: every passage is compared. recall: the part of the right documents to find at least, like 0.99, by a
        wider search, or an exact one where none is wide enough. None: about 0.985.
        min_score: hits of lower scores (`Answer.scored_by`) are left out. diversity: 0 to 1, to avoid hits that are
        like better ones (maximal marginal relevance among the candidates); 0 and None: the plain ranking.
        group_by: a field, of each value of which at most `per_group` documents are found; the search is widened until
        there are k. Documents without a value are not limited.
        """
        return self.search_many(
            one_query(query),
            k,
            where=where,
            offset=offset,
            mode=mode,
            weights=weights,
            hybrid=hybrid,
            rerank=rerank,
            candidates=candidates,
            exact=exact,
            recall=recall,
            min_score=min_score,
            diversity=diversity,
            group_by=group_by,
            per_group=per_group,
        )[0]

    def more_like(  # noqa: PLR0913 - one argument per option
        self,
        ids: Iterable[str | int] = (),
        k: int = 10,
        *,
        texts: Sequence[str] = (),
        unlike: Iterable[str | int] = (),
        unlike_texts: Sequence[str] = (),
        where: Where = None,
        offset: int = 0,
        candidates: int | None = None,
        exact: bool = False,
        recall: float | None = None,
        min_score: float | None = None,
        diversity: float | None = None,
        group_by: str | None = None,
        per_group: int = 1,
    ) -> Answer:
        """The best `k` documents that are like stored documents and texts, and unlike others; without those given.

        ids, texts: examples. unlike, unlike_texts: counterexamples. The query is the mean of the vectors of the
        examples minus the mean of those of the counterexamples; a document's vector is the mean of its passages'.
        A text is encoded as a query. The other options are those of `search`.
        """
        examples = SearchExamples(
            ids=checked_ids(ids),
            texts=query_texts(texts) or (),
            unlike=checked_ids(unlike),
            unlike_texts=query_texts(unlike_texts) or (),
        )
        question = SearchQuery(
            k=k,
            where=self._condition(where),
            offset=offset,
            candidates=candidates,
            exact=exact,
            recall=recall,
            min_score=min_score,
            diversity=diversity,
            mode="dense",
            group_by=single_field(group_by, self.fields),
            per_group=per_group,
            excluded=examples.documents,
        )
        return self._run(lambda state: answer(state, None, query_vector(state, examples), question))[0]

    def search_many(  # noqa: PLR0913 - one argument per option
        self,
        queries: Sequence[str] | ArrayLike,
        k: int = 10,
        *,
        where: Where = None,
        offset: int = 0,
        mode: Mode | None = None,
        weights: Mapping[str, float] | None = None,
        hybrid: bool = False,
        rerank: Reranker | None = None,
        candidates: int | None = None,
        exact: bool = False,
        recall: float | None = None,
        min_score: float | None = None,
        diversity: float | None = None,
        group_by: str | None = None,
        per_group: int = 1,
    ) -> list[Answer]:
        """`search` for several texts, or for vectors (q, dim); texts are encoded together."""
        question = SearchQuery(
            k=k,
            where=self._condition(where),
            offset=offset,
            mode=hybrid_mode(mode, hybrid=hybrid),
            weights=weights,
            rerank=rerank,
            candidates=candidates,
            exact=exact,
            recall=recall,
            min_score=min_score,
            diversity=diversity,
            group_by=single_field(group_by, self.fields),
            per_group=per_group,
        )
        texts = query_texts(queries)
        vectors = queries if texts is None else None
        return [] if texts == [] else self._run(lambda state: answer(state, texts, vectors, question))

    def explain(self, query: str, id: str | int, *, mode: Mode | None = None) -> IndexExplanation:
        """Why a document is found for a query: shared words, alike tokens and the cosine of its best passage.

        mode: by which the best passage is chosen, as for `search`.
        """
        named = checked_id(id, "id")
        return self._run(lambda state: explained(state, query, named, mode))

    def get(
        self, ids: Iterable[str | int] | None = None, *, where: Where = None, vectors: VectorChoice = False
    ) -> list[IndexDocument]:
        """The documents of these ids, in their order, or those that meet a condition, by ascending id.

        Ids that are not stored are left out. vectors: with the stored vectors of all kinds (True), or of some:
        "dense", ["sparse", "late"]. `documents` needs less memory.
        """
        if (ids is None) == (where is None):
            raise InputError("get takes ids or where, one of the two. For all documents: index.documents()")
        if ids is None:
            return list(self.documents(where, vectors=vectors))
        named = checked_ids(ids)
        return self._run(lambda state: stored_documents(state, named, vectors))

    def documents(
        self,
        where: Where = None,
        *,
        after: str | int | None = None,
        limit: int | None = None,
        vectors: VectorChoice = False,
    ) -> Iterator[IndexDocument]:
        """The documents by ascending id (code points, not numbers), read block by block.

        where: those that meet the condition. after: those of greater ids; the last id of a page is the cursor of the
        next. limit: so many at most. vectors: with the stored vectors, as for `get`.
        """
        condition = self._condition(where)
        start = None if after is None else checked_id(after, "after")
        check_limit(limit)
        block = BLOCK if limit is None else min(BLOCK, limit + 1)
        stored = self._run(lambda state: scan_documents(state, start, block, condition, vectors))
        return stored if limit is None else islice(stored, limit)

    def export(self, path: Path | str, *, where: Where = None, vectors: VectorChoice = False) -> int:
        """Write the documents to .jsonl, .csv, .tsv (each also .gz) or .parquet; how many there were.

        The file is complete or absent. Columns: id, text, every field, and as `vectors` says: vectors, a list of one
        vector per passage; sparse_vectors, one {"indices": [...], "values": [...]} per passage; late_vectors, a list of
        one vector per token for each passage. `gemel index build` reads a file without vectors.
        """
        target = Path(path)
        check_output(target)
        return write_documents(target, self.documents(where, vectors=vectors))

    def count(self, where: Where = None) -> Count:
        """Documents and passages, of those that meet the condition."""
        condition = self._condition(where)
        return self._run(lambda state: state.table.count(condition))

    def facets(self, field: str, *, where: Where = None, limit: int | None = None) -> dict[FieldValue, int]:
        """The values of a field and how many documents have each, most frequent first; None: documents without one.

        where: of those that meet the condition. Of a list field, each value in a list counts once for its document.
        limit: so many values at most.
        """
        known = self.fields
        if field not in known:
            raise unknown_field(field, known)
        check_limit(limit)
        condition = self._condition(where)
        counts = self._run(lambda state: state.table.values(field, condition))
        order = sorted(counts.items(), key=lambda each: (-each[1], each[0] is None, each[0]))
        return dict(order[:limit])

    def stats(self) -> IndexStats:
        """Size, layout, measured recall and model."""
        from gemel.index.verify import stats

        return self._run(lambda state: stats(state, self.location))

    # Vectors, for servers and frameworks.

    def query_options_for(self, model: Model) -> EncodeOptions | None:
        """The options under which this model object encodes a query for the index; None: it is not the index's."""
        encoder = self._open().lazy_encoder.loaded
        return encoder.query_options if encoder is not None and encoder.model is model else None

    def passage_vectors(self, hits: Sequence[Hit]) -> list[Vectors | None]:
        """(dim,) of the passage of each hit; None where it was deleted since."""
        rows = self._run(lambda state: state.table.get([hit.id for hit in hits]))
        stored = {(rows.id[n], int(rows.part[n])): rows.vector[n] for n in range(len(rows))}
        return [stored.get((hit.id, hit.part)) for hit in hits]

    def sample_vectors(self, count: int = 2000) -> Vectors:
        """(n, dim) of stored passages: all if they are few, else about `count` from several ranges of ids."""
        return self._run(lambda state: sample_vectors(state, count))

    def made_by_model(self, text: str, vector: ArrayLike) -> bool:
        """Whether the vector is the one that the index's model makes of the text; True if the index has no model."""
        if self._open().binding is None:
            return True
        given = unit(np.asarray(vector, dtype=np.float32)[None])[0]
        made = self._run(lambda state: state.encoder.encode_whole([text]))[0]
        return given.shape == made.shape and (not made.any() or float(given @ made) > _SAME_MODEL)

    # Maintenance.

    def compact(self, *, now: bool = False) -> None:
        """Merge small fragments, drop what was deleted, build what speeds up search. May be killed at any moment.

        The space of old versions is freed at once if no other handle is open to the index, else after an hour;
        `now`: it is an error if they cannot be freed at once.
        """
        self._writable()
        self._run(lambda state: state.table.compact(now=now))

    def verify(self, sample: int = 100) -> VerifyResult:
        """Read every row, encode the canaries and `sample` documents again, and compare."""
        from gemel.index.verify import verify

        if isinstance(sample, bool) or sample < 1:
            raise InputError(f"sample must be at least 1, got {sample!r}")
        return self._run(lambda state: verify(state, sample))

    def migrate(  # noqa: PLR0913 - one argument per setting
        self,
        to: Model | str | Path | None = None,
        *,
        sparse: KindModel | str | Path | Literal[False] | None = None,
        late: KindModel | str | Path | Literal[False] | None = None,
        late_form: LateForm | None = None,
        options: EncodeOptions | None = None,
        dim: int | None = None,
        precision: Precision | None = None,
        passage_tokens: int | None = None,
        late_chunks: bool | None = None,
        progress: bool = False,
    ) -> MigrateResult:
        """Encode every document again with other models, then switch to them in one step.

        to: the model of the dense vectors. sparse, late: the models of these kinds of vectors; False removes them.
        Settings and models that are None stay as they are, and what they made is copied. Until the switch the index is
        searched and written as before. If it is killed, run it again: it resumes. Other handles to the index must be
        opened again afterwards.
        """
        from gemel.index.migrate import Migration, Target

        self._writable()
        given: dict[KindName, Any] = {"sparse": sparse, "late": late}
        kinds = {kind: model for kind, model in given.items() if model is not None}
        settings = (options, dim, precision, passage_tokens)
        if to is None and (settings != (None,) * 4 or late_chunks is not None or not (kinds or late_form)):
            raise InputError(
                "migrate needs a model: that of the dense vectors, or sparse=, late= or late_form="
            )
        target = Target(to, *settings, kinds, late_form, late_chunks)
        with self._migrating:
            migration = Migration.to_models(self._store, self._open(), target, progress=progress)
            self._finish(migration)
            return migration.result()

    def rebuild_words(self, *, stemming: str | None = None, progress: bool = False) -> int:
        """Divide the texts into words again, by the newest rules; how many documents were written.

        stemming: a language whose endings are removed ("english"); None: no stemming. Vectors stay as they are. The
        index is searched and written as before until the switch at the end; other handles must be opened again then.
        """
        from gemel.index.migrate import Migration

        self._writable()
        rules = WordRules(stemming=stemming)
        with self._migrating:
            migration = Migration.to_words(self._store, self._open(), rules, progress=progress)
            self._finish(migration)
            return migration.written

    def snapshot(self, folder: str | Path) -> SnapshotResult:
        """Write a copy of the index as it is now to a new folder, while it is searched and written to.

        The copy is an index and can be opened; `restore_index` copies it to another location. The folder is complete
        or absent, and nothing is overwritten.
        """
        from gemel.index.backup import write_snapshot

        return self._run(lambda state: write_snapshot(state.table, folder))

    def close(self) -> None:
        """Release files and connections. Nothing is lost without it: every write is on disk when it returns."""
        if self._closed:
            return
        self._closed = True
        for state in (*self._retired, self._state):
            state.table.close()
        self._store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> IndexState:
        if self._closed:
            raise InputError(f"the index {self.location} is closed. Open it again with open_index")
        return self._state

    def _writable(self) -> None:
        self._open()
        if self._read_only:
            why = self._read_only if isinstance(self._read_only, str) else "was opened to read only"
            raise InputError(f"the index {self.location} {why}")

    def _finish(self, migration: Migration) -> None:
        """Copy most documents, then the last ones and the switch while writers wait."""
        if not migration.needed:
            return
        migration.copy()
        with self._store.writing():
            old, self._state = self._state, migration.switch()
            self._retired.append(old)

    def _run(self, work: Callable[[IndexState], Value]) -> Value:
        """The result of `work`; run again on the new table if a migration of this handle replaced the old one."""
        state = self._open()
        try:
            return work(state)
        except WorkError:
            if self._state is state and self._migrating.locked():
                with self._store.writing():  # waits for the end of a switch
                    pass
            if self._open() is state:
                raise
            return work(self._open())

    def _condition(self, where: Where) -> Condition | None:
        return None if where is None else parse_where(where, self.fields)
