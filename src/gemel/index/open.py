"""`open_index` opens or creates an index and checks its model; `drop_index` deletes one, `repair_index` repairs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gemel.errors import InputError, ModelError
from gemel.index.binding import (
    Binding,
    IndexEncoder,
    IndexState,
    LazyIndexEncoder,
    bind,
    check_binding,
    load_for,
    made_by,
)
from gemel.index.fields import check_fields, unknown_field
from gemel.index.index import Index
from gemel.index.port import AlreadyThere, FieldType, Header, Store, Table
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
    passage_tokens: int | None = None,
    stemming: str | None = None,
    durable: bool = True,
    read_only: bool = False,
) -> Index:
    """Open or create the index in a folder, `s3://bucket/path`, `postgresql://user@host/db#name` or `:memory:`.

    model: encodes the texts of a new index; that of an existing one must be the same. None: the model that the index
    names is loaded when a text is first encoded.
    dim: keep the first numbers of each vector; without a model, a new index of vectors only.
    fields: names and types of the columns for conditions: text, int, float, bool, date, datetime, or a list of one of
    these (texts, ints, ...). None: the first `add` decides.
    create: True: it must not exist; False: it must. None: opened, or created if a model or dim is given.
    passage_tokens: longer documents are stored as passages of at most so many. None: as many as the model reads.
    stemming: a language ("english") whose endings are removed from words, for hybrid search in a new index; needs the
    extra `stemming`. `Index.rebuild_words` changes it.
    durable: a write returns when it is on disk.
    read_only: no document can be changed. The cache that speeds up search is still written where possible.
    """
    requested = _Requested(model, options, dim, passage_tokens, stemming)
    store = store_at(location, durable=durable, read_only=read_only)
    try:
        exists = store.exists()
        _check_create(store, create, exists, read_only=read_only)
        opened = _open if exists else partial(_create_or_open, create=create)
        return Index(store, opened(store, requested, fields), read_only=read_only)
    except BaseException:
        store.close()
        raise


def store_at(location: str | Path | Store, *, durable: bool = True, read_only: bool = False) -> Store:
    """The store for a location; a store is returned as it is."""
    if not isinstance(location, str | Path):
        return location
    given = str(location)
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
        raise InputError(f"no index at {store.name}. Create it with: gemel index create {store.name}")


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
    if requested.model is None:
        if requested.dim is None:
            raise InputError(f"no index at {store.name}. To make one, give a model, or dim for vectors only")
        EncodeOptions(dim=requested.dim)  # the same rule, in the same words
        header = Header(requested.dim, declared, {"model": None, "gemel": version("gemel")}, words=words)
        return IndexState(store.create(header), _no_encoder(store), None)
    model = requested.model if isinstance(requested.model, Model) else load(requested.model)
    encoder = IndexEncoder(model, requested.settings(EncodeOptions()), requested.passage_tokens)
    binding = bind(encoder)
    header = Header(encoder.dim, declared, binding.to_json(), words=words)
    return IndexState(store.create(header), LazyIndexEncoder.of(encoder), binding)


def _open(store: Store, requested: _Requested, fields: Mapping[str, FieldType] | None) -> IndexState:
    table = store.open()
    try:
        _check_same(store, table.header, check_fields(fields or {}), requested.stemming)
        binding = binding_of(table)
        if requested.model is None and requested.dim not in (None, table.header.dim):
            raise InputError(
                f"dim is {requested.dim}, but the index {store.name} has {table.header.dim} dimensions"
            )
        return IndexState(table, _encoder(store, binding, requested), binding)
    except BaseException:
        table.close()
        raise


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


def _encoder(store: Store, binding: Binding | None, requested: _Requested) -> LazyIndexEncoder:
    if binding is None:
        if requested.model is not None:
            raise ModelError(f"the index {store.name} has vectors only and no model. Open it without one")
        return _no_encoder(store)
    recorded = binding

    def fitting(model: Model) -> IndexEncoder:
        tokens = recorded.passage_tokens if requested.passage_tokens is None else requested.passage_tokens
        encoder = IndexEncoder(model, requested.settings(recorded.options), tokens)
        check_binding(recorded, encoder, store.name)
        return encoder

    given = requested.model
    if isinstance(given, Model):
        return LazyIndexEncoder.of(fitting(given))
    if given is None:
        return LazyIndexEncoder(lambda: fitting(recorded_model(recorded, store.name)))
    if made_by(recorded, given):
        return LazyIndexEncoder(lambda: fitting(load_for(recorded, given, pooling=True)))
    return LazyIndexEncoder.of(fitting(load_for(recorded, given, pooling=False)))


def _no_encoder(store: Store) -> LazyIndexEncoder:
    def load() -> IndexEncoder:
        raise InputError(
            f"the index {store.name} has no model, so it cannot encode a text: search by a vector, and add texts with "
            "their vectors"
        )

    return LazyIndexEncoder(load)


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
