"""`open_index` opens or creates an index and checks its model, `attach_index` reads a foreign table.

`list_indexes` lists, `restore_index` copies, `drop_index` deletes and `repair_index` repairs indexes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gemel.errors import GemelError, InputError, ModelError
from gemel.index.backup import SnapshotResult, restore_to
from gemel.index.binding import (
    Binding,
    IndexEncoder,
    IndexState,
    LazyEncoder,
    bind,
    check_binding,
    load_for,
    made_by,
)
from gemel.index.fields import check_fields, unknown_field
from gemel.index.index import Index
from gemel.index.kinds import (
    KINDS,
    KindEncoder,
    KindModel,
    LateForm,
    Mode,
    check_mode,
    check_whole_passages,
    default_mode,
    encoder_for,
    is_recorded,
    new_kinds,
    recorded_mode,
)
from gemel.index.port import AlreadyThere, FieldType, Header, KindHeader, KindName, Store, Table
from gemel.model import Model, load
from gemel.options import EncodeOptions
from gemel.types import ShownResult
from gemel.vectors.bm25 import WordRules


@dataclass(frozen=True)
class _Requested:
    """The caller's arguments about the model and words."""

    model: Model | str | Path | None
    options: EncodeOptions | None
    dim: int | None
    passage_tokens: int | None
    stemming: str | None
    kinds: Mapping[KindName, KindModel | str | Path]
    """Models of further kinds of vectors."""
    late_form: str | None
    mode: str | None
    late_chunks: bool | None

    def settings(self, recorded: EncodeOptions) -> EncodeOptions:
        options = self.options or recorded
        return options if self.dim is None else replace(options, dim=self.dim)


def open_index(  # noqa: PLR0913 - how to open an index, and how to create one
    location: str | Path | Store,
    model: Model | str | Path | None = None,
    *,
    options: EncodeOptions | None = None,
    dim: int | None = None,
    fields: Mapping[str, FieldType] | None = None,
    create: bool | None = None,
    sparse: KindModel | str | Path | None = None,
    late: KindModel | str | Path | None = None,
    late_form: LateForm | None = None,
    mode: Mode | None = None,
    passage_tokens: int | None = None,
    late_chunks: bool | None = None,
    stemming: str | None = None,
    durable: bool = True,
    read_only: bool = False,
) -> Index:
    """Open or create the index in a folder, `s3://bucket/path`, `postgresql://user@host/db#name` or `:memory:`.

    `postgresql://user@host/db#table=items&vector=embedding` opens a table of another program: see `attach_index`.

    model: encodes the texts of a new index; that of an existing one must be the same. None: the model that the index
    names is loaded when a text is first encoded.
    dim: keep the first numbers of each vector; without a model, a new index of vectors only.
    fields: names and types of the columns for conditions: text, int, float, bool, date, datetime, or a list of one of
    these (texts, ints, ...). None: the first `add` decides.
    create: True: it must not exist; False: it must. None: opened, or created if a model or dim is given.
    sparse, late: a `SparseModel` and a `LateModel`, or their names, whose vectors are stored besides or instead of the
    dense ones. late_form: float16 (default) or int8; `Index.migrate` makes 2bit.
    mode: how a new index is searched unless a search says otherwise: dense, sparse, late, words, or hybrid, which is
    the default where there are several kinds of vectors.
    passage_tokens: longer documents are stored as passages of at most so many. None: as many as every model reads.
    late_chunks: the model reads a document as a whole, and the vectors of its passages (of 128 tokens, unless
    passage_tokens says otherwise) are taken from that; for models with mean pooling.
    stemming: a language ("english") whose endings are removed from words, for hybrid search in a new index; needs the
    extra `stemming`. `Index.rebuild_words` changes it.
    durable: a write returns when it is on disk.
    read_only: no document can be changed. The cache that speeds up search is still written where possible.
    """
    models: dict[KindName, KindModel | str | Path | None] = {"sparse": sparse, "late": late}
    kinds = {kind: given for kind, given in models.items() if given is not None}
    if is_attached(location):
        if kinds or late_form or mode or late_chunks:
            raise InputError(
                "an attached table has dense vectors only: open it without sparse, late, mode and late_chunks"
            )
        return _open_attached(str(location), model, options, create=create)
    requested = _Requested(model, options, dim, passage_tokens, stemming, kinds, late_form, mode, late_chunks)
    store = store_at(location, durable=durable, read_only=read_only)
    try:
        exists = store.exists()
        _check_create(store, create, exists, read_only=read_only)
        opened = _open if exists else partial(_create_or_open, create=create)
        return Index(store, opened(store, requested, fields), read_only=read_only)
    except BaseException:
        store.close()
        raise


def attach_index(
    location: str,
    table: str,
    *,
    id: str = "id",
    vector: str | None = None,
    text: str | None = None,
    fields: Sequence[str] | None = None,
    model: Model | str | Path | None = None,
    options: EncodeOptions | None = None,
) -> Index:
    """Read a table with a pgvector column, made by another program, as an index. Nothing is written or created.

    location: the database, `postgresql://user@host/db`. table: its name, or schema.name; a view will do.
    id: a column of distinct texts, ints or uuids. vector: a column of type vector or halfvec, of any length; None: the
    only one. text: what hits show. fields: columns for conditions; None: all others of types that a field can have.
    model: encodes queries; it must be the one that made the vectors, which `Index.verify` checks if there is a text.
    None: search by vectors. A cosine index of the table is used if it has one; else every row is compared.
    """
    from gemel.index.postgres.attached import READ_ONLY, AttachedStore, AttachedTable, TableColumns

    attached = AttachedTable(
        location, TableColumns(table, id, vector, text, fields), digest_vectors=model is None or text is None
    )
    store = AttachedStore(attached)
    try:
        state = IndexState(attached, _no_encoder(store), None)
        if model is not None:
            loaded = model if isinstance(model, Model) else load(model)
            encoder = IndexEncoder(loaded, options or EncodeOptions(), None)
            if encoder.dim != attached.header.dim:
                raise ModelError(
                    f"{loaded.name!r} makes vectors of {encoder.dim} numbers, but those of {store.name} have "
                    f"{attached.header.dim}. Give the model that made them"
                )
            binding = bind(encoder)
            attached.header = replace(attached.header, bound=binding.to_json())
            state = IndexState(attached, LazyEncoder.of(encoder), binding)
        return Index(store, state, read_only=READ_ONLY)
    except BaseException:
        store.close()
        raise


def is_attached(location: str | Path | Store) -> bool:
    """Whether a location is a table to attach: postgresql://user@host/db#table=items&vector=embedding."""
    before, hash_, fragment = str(location).rpartition("#") if isinstance(location, str) else ("", "", "")
    return bool(hash_) and "=" in fragment and before.startswith(("postgresql://", "postgres://"))


def _open_attached(
    location: str, model: Model | str | Path | None, options: EncodeOptions | None, *, create: bool | None
) -> Index:
    from gemel.index.postgres.attached import parse_attached

    if create:
        raise InputError("an attached table is there already: open it without create")
    database, columns, named = parse_attached(location)
    settings = {name: getattr(columns, name) for name in ("id", "vector", "text", "fields")}
    return attach_index(
        database, columns.table, **settings, model=named if model is None else model, options=options
    )


def store_at(location: str | Path | Store, *, durable: bool = True, read_only: bool = False) -> Store:
    """The store for a location; a store is returned as it is."""
    if not isinstance(location, str | Path):
        return location
    given = str(location)
    if is_attached(given):
        raise InputError(
            "an attached table is only read: open_index opens it, and index.snapshot copies it to a folder"
        )
    if not given:
        raise InputError(
            "the location of an index is empty. Give a folder, an s3:// or postgresql:// address, or ':memory:'"
        )
    if given == ":memory:":
        from gemel.index.memory import MemoryStore

        return MemoryStore()
    if given.startswith(("postgresql://", "postgres://")):
        from gemel.index.postgres.store import PostgresStore

        return PostgresStore(given, durable=durable, read_only=read_only)
    from gemel.index.lance.store import LanceStore

    return LanceStore(given, durable=durable, read_only=read_only)


def _check_create(store: Store, create: bool | None, exists: bool, *, read_only: bool) -> None:
    if create and exists:
        raise InputError(
            f"there is an index at {store.name} already. Use it as it is, or choose another location"
        )
    if not exists and (create is False or read_only):
        raise InputError(
            f"no index at {store.name}. Create it with: gemel index create {store.name}", code="GEM-402"
        )


def _create_or_open(
    store: Store, requested: _Requested, fields: Mapping[str, FieldType] | None, *, create: bool | None
) -> IndexState:
    """A new index; if another process has just created one, that one, if model and fields agree."""
    try:
        return _create(store, requested, fields)
    except AlreadyThere:
        if create:
            raise
        return _open(store, requested, fields)


def _create(store: Store, requested: _Requested, fields: Mapping[str, FieldType] | None) -> IndexState:
    from importlib.metadata import version

    declared, words = check_fields(fields or {}), WordRules(stemming=requested.stemming)
    kinds = new_kinds(requested.kinds, requested.late_form)
    encoder, binding = _no_encoder(store), None
    if requested.model is not None:
        model = requested.model if isinstance(requested.model, Model) else load(requested.model)
        made = IndexEncoder(
            model,
            requested.settings(EncodeOptions()),
            requested.passage_tokens,
            bool(requested.late_chunks),
        )
        check_whole_passages(made.options, kinds)
        encoder, binding = LazyEncoder.of(made), bind(made)
        header = Header(made.dim, declared, binding.to_json(), words=words)
    else:
        if requested.late_chunks:
            raise InputError("late chunks are passages of dense vectors: give a model")
        if requested.dim is None and not kinds:
            raise InputError(
                f"no index at {store.name}. To make one, give a model, or dim for vectors only",
                code="GEM-402",
            )
        if requested.dim is not None:
            EncodeOptions(dim=requested.dim)  # the same rule, in the same words
        bound: dict[str, Any] = {"model": None, "gemel": version("gemel")}
        if requested.passage_tokens is not None and kinds:
            bound["passage_tokens"] = requested.passage_tokens
        header = Header(requested.dim or 0, declared, bound, words=words)
    recorded: dict[str, KindHeader] = {kind: each.header() for kind, each in kinds.items()}
    header = replace(header, format=0, kinds=recorded)
    if requested.mode is not None:
        mode = check_mode(requested.mode, header)
        header = replace(header, format=0, mode=None if mode == default_mode(header) else mode)
    lazies: dict[str, LazyEncoder[KindEncoder]] = {kind: LazyEncoder.of(each) for kind, each in kinds.items()}
    return IndexState(store.create(header), encoder, binding, lazies)


def _open(store: Store, requested: _Requested, fields: Mapping[str, FieldType] | None) -> IndexState:
    table = store.open()
    try:
        header = table.header
        _check_same(store, header, check_fields(fields or {}), requested.stemming)
        binding = binding_of(table)
        if requested.model is None and requested.dim not in (None, header.dim):
            raise InputError(
                f"dim is {requested.dim}, but the index {store.name} has {header.dim} dimensions"
            )
        kinds = _kinds(store, header, requested)
        return IndexState(table, _encoder(store, binding, requested, header.dim), binding, kinds)
    except BaseException:
        table.close()
        raise


def _kinds(store: Store, header: Header, requested: _Requested) -> dict[str, LazyEncoder[KindEncoder]]:
    """Encoders of the recorded models; one that is given is checked now, unless it is the recorded name."""
    for kind in requested.kinds:
        if kind not in header.kinds:
            raise ModelError(
                f"the index {store.name} has no {kind} vectors. Open it without {kind}=, or add them with "
                f"index.migrate({kind}=...)"
            )
    form = header.kinds["late"].form if "late" in header.kinds else None
    if requested.late_form not in (None, form):
        raise InputError(
            f"late_form is {requested.late_form!r}, but the index {store.name} has {form or 'none'}"
        )
    recorded = recorded_mode(header)
    if requested.mode is not None and check_mode(requested.mode, header) != recorded:
        raise InputError(
            f"mode is {requested.mode!r}, but the index {store.name} is searched by {recorded!r}. Open it without "
            "mode, and give one to search"
        )
    out: dict[str, LazyEncoder[KindEncoder]] = {}
    for kind in KINDS:
        if kind in header.kinds:
            given, about = requested.kinds.get(kind), header.kinds[kind]
            lazy = LazyEncoder(partial(encoder_for, kind, about, given, store.name))
            if not is_recorded(about, given):
                lazy.get()
            out[kind] = lazy
    return out


def _check_same(store: Store, header: Header, fields: Mapping[str, FieldType], stemming: str | None) -> None:
    """InputError if fields or stemming of the index are not as the caller declares them."""
    for name, kind in fields.items():
        if name not in header.fields:
            raise unknown_field(name, header.fields)
        if header.fields[name] != kind:
            raise InputError(f"field {name!r} is {header.fields[name]} in the index {store.name}, not {kind}")
    stored = header.words.stemming
    if stemming not in (None, stored):
        raise InputError(
            f"the index {store.name} was made {f'with stemming {stored!r}' if stored else 'without stemming'}, not "
            f"with {stemming!r}. Open it without stemming, or change it: index.rebuild_words(stemming={stemming!r})"
        )


def binding_of(table: Table) -> Binding | None:
    """The binding that the header records; None: vectors only."""
    bound = table.header.bound
    return None if bound.get("model", "") is None else Binding.from_json(bound)


def _encoder(
    store: Store, binding: Binding | None, requested: _Requested, dim: int
) -> LazyEncoder[IndexEncoder]:
    if binding is None:
        if requested.model is not None:
            what = "vectors only and no model" if dim else "no dense vectors"
            raise ModelError(f"the index {store.name} has {what}. Open it without one")
        return _no_encoder(store)
    recorded = binding

    def fitting(model: Model) -> IndexEncoder:
        tokens = recorded.passage_tokens if requested.passage_tokens is None else requested.passage_tokens
        late = recorded.late_chunks if requested.late_chunks is None else requested.late_chunks
        encoder = IndexEncoder(model, requested.settings(recorded.options), tokens, late)
        check_binding(recorded, encoder, store.name)
        return encoder

    given = requested.model
    if isinstance(given, Model):
        return LazyEncoder.of(fitting(given))
    if given is None:
        return LazyEncoder(lambda: fitting(recorded_model(recorded, store.name)))
    if made_by(recorded, given):
        return LazyEncoder(lambda: fitting(load_for(recorded, given, pooling=True)))
    return LazyEncoder.of(fitting(load_for(recorded, given, pooling=False)))


def _no_encoder(store: Store) -> LazyEncoder[IndexEncoder]:
    def load() -> IndexEncoder:
        raise InputError(
            f"the index {store.name} has no model, so it cannot encode a text: search by a vector, and add texts with "
            "their vectors"
        )

    return LazyEncoder(load)


def recorded_model(binding: Binding, location: str) -> Model:
    """The model that the index names, from its folder if that is here, else by name."""
    source = binding.folder if Path(binding.folder).is_dir() else binding.model
    try:
        return load_for(binding, source, pooling=True)
    except (ModelError, InputError) as error:
        raise ModelError(
            f"the index {location} was made by {binding.model!r}, which cannot be loaded here: {error} "
            f"Give the model: open_index({location!r}, model=...)"
        ) from error


@dataclass(frozen=True)
class IndexSummary(ShownResult):
    """One index of `list_indexes`."""

    location: str
    """As `open_index` takes it, but without a password."""
    model: str | None
    """None: vectors only, or it cannot be read."""
    dim: int | None = None
    documents: int | None = None
    passages: int | None = None
    bytes: int | None = None
    modified: str | None = None
    """Time of the last commit, ISO 8601 in UTC; None: the store does not say (a bucket, PostgreSQL)."""
    problem: str | None = None
    """Why it cannot be read; None: it can."""


def list_indexes(location: str | Path = ".") -> list[IndexSummary]:
    """The indexes in a folder and in all folders below it, below `s3://bucket/path`, or in a PostgreSQL database.

    A database is given as `postgresql://user@host/db`. An index that cannot be read is listed with its `problem`.
    """
    return [_summary(each) for each in _locations(str(location))]


def _locations(location: str) -> list[str]:
    if location == ":memory:":
        raise InputError("an index in memory belongs to the process that made it, so none can be listed")
    if location.startswith(("postgresql://", "postgres://")):
        from gemel.index.postgres.store import locations_at

        return locations_at(location)
    from gemel.index.lance.location import Bucket, folders_below

    return list(Bucket(location).below() if "://" in location else folders_below(location))


def _summary(location: str) -> IndexSummary:
    shown = location
    try:
        store = store_at(location, read_only=True)
        shown = store.name
        store.close()
        with open_index(location, create=False, read_only=True) as index:
            stats = index.stats()
    except GemelError as error:
        return IndexSummary(shown, None, problem=str(error))
    return IndexSummary(
        shown, stats.model, stats.dim, stats.documents, stats.passages, stats.bytes, stats.modified
    )


def restore_index(snapshot: str | Path | Store, location: str | Path | Store) -> SnapshotResult:
    """Copy a snapshot, or any other index, to a location where there is none: documents, vectors and model record.

    Nothing is encoded. A folder is complete or absent. Elsewhere the index is empty until everything is copied; if it
    is stopped before, run it again.
    """
    source = store_at(snapshot, read_only=True)
    try:
        if not source.exists():
            raise InputError(f"there is no index at {source.name}, so nothing can be restored from it")
        target = store_at(location)
        try:
            with closing(source.open()) as table:
                return restore_to(table, target)
        finally:
            target.close()
    finally:
        source.close()


def drop_index(location: str | Path | Store) -> None:
    """Delete the index at a location with all of its documents. It cannot be undone.

    A folder is emptied of what gemel wrote, except for a lock file; other files in it stay. Close handles to the
    index before: while one is open, an index in a folder is not deleted.
    """
    store = store_at(location)
    try:
        store.drop()
    finally:
        store.close()


@dataclass(frozen=True)
class RepairResult(ShownResult):
    """What `repair_index` did."""

    location: str
    actions: tuple[str, ...]
    """One line each; none: nothing was damaged."""

    def lines(self) -> list[str]:
        """One line per action, for a person."""
        return list(self.actions) or ["nothing is damaged, nothing was done"]


def repair_index(
    location: str | Path | Store, *, model: Model | str | Path | None = None, table: str | None = None
) -> RepairResult:
    """Rebuild a lost index.json, drop rows that cannot be read, build a damaged word index and cache again.

    What can be read is kept, and tables that are not chosen are moved aside, not deleted. Copy the folder first if
    the unreadable rows matter. Close other handles to the index before.

    model: the one that made the index, for a table that has lost its header.
    table: the one to keep (`rows-2.lance`), if index.json is lost and there are several.
    """
    store = store_at(location)
    try:
        return RepairResult(store.name, tuple(store.repair(table, None if model is None else _header(model))))
    finally:
        store.close()


def _header(model: Model | str | Path) -> Header:
    encoder = IndexEncoder(model if isinstance(model, Model) else load(model), EncodeOptions(), None)
    return Header(encoder.dim, {}, bind(encoder).to_json())
