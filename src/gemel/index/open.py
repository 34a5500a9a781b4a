"""`open_index`: finds the place, opens what is there or makes it, and sees that the model fits.

`repair_index`: an index that cannot be opened or written to, made usable again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gemel.errors import InputError, ModelError
from gemel.index.binding import Binding, IndexState, bind, check_binding, load_for, made_by
from gemel.index.encoder import IndexEncoder, LazyIndexEncoder, ModelIndexEncoder, NoIndexEncoder
from gemel.index.fields import check_fields, unknown_field
from gemel.index.index import Index
from gemel.index.port import AlreadyThere, FieldType, Header, Store, Table
from gemel.model import Model, load
from gemel.options import EncodeOptions
from gemel.vectors.bm25 import WordRules


@dataclass(frozen=True)
class _OpenArguments:
    """What the caller said of the model and of words."""

    model: Model | str | Path | None
    options: EncodeOptions | None
    dim: int | None
    passage_tokens: int | None
    stemming: str | None

    def settings(self, recorded: EncodeOptions) -> EncodeOptions:
        options = self.options or recorded
        return options if self.dim is None else replace(options, dim=self.dim)


def open_index(  # noqa: PLR0913 - what is there, and how to make what is not
    place: str | Path | Store,
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
    """The index at a place: a folder, `s3://bucket/path`, `postgresql://user@host/db#name` or `:memory:`.

    model: made for it if the index is new, compared with the one that made it otherwise. None: the one that the index
    names is loaded when a text has to be encoded.
    dim: the first numbers of each vector; without a model, a new index of vectors only.
    fields: names and types of the columns for conditions: text, int, float, bool, date, datetime, or a list of one of
    these (texts, ints, ...). None: the first `add` decides.
    create: True: it must not be there; False: it must be. None: opened, or made if a model or dim is given.
    passage_tokens: longer documents are stored as passages of at most so many. None: what the model reads.
    stemming: a language ("english") whose endings are removed from words, for hybrid search in a new index; needs the
    extra `stemming`. `Index.rebuild_words` changes it.
    durable: a write returns when it is on disk.
    read_only: no document changes. What speeds up search is kept in its cache where that can be written.
    """
    asked = _OpenArguments(model, options, dim, passage_tokens, stemming)
    home = place_of(place, durable=durable, read_only=read_only)
    try:
        there = home.exists()
        _check_create(home, create, there, read_only=read_only)
        state = _opened(home, asked, fields) if there else _made(home, asked, fields, create=create)
        return Index(home, state, read_only=read_only)
    except BaseException:
        home.close()
        raise


def place_of(place: str | Path | Store, *, durable: bool = True, read_only: bool = False) -> Store:
    """Where the index lives, by how the place is written; a place of one's own goes too."""
    if not isinstance(place, str | Path):
        return place
    said = str(place)
    if not said:
        raise InputError(
            "the place of an index is empty. Give a folder, an s3:// or postgresql:// address, or ':memory:'"
        )
    if said == ":memory:":
        from gemel.index.memory import MemoryStore

        return MemoryStore()
    if said.startswith(("postgresql://", "postgres://")):
        from gemel.index.postgres.store import PostgresStore

        return PostgresStore(said, durable=durable, read_only=read_only)
    from gemel.index.lance.store import LanceStore

    return LanceStore(said, durable=durable, read_only=read_only)


def _check_create(home: Store, create: bool | None, there: bool, *, read_only: bool) -> None:
    if create and there:
        raise InputError(
            f"there is an index at {home.name} already. Use it as it is, or choose another place"
        )
    if not there and (create is False or read_only):
        raise InputError(f"no index at {home.name}. Create it with: gemel index create {home.name}")


def _made(
    home: Store, asked: _OpenArguments, fields: Mapping[str, FieldType] | None, *, create: bool | None
) -> IndexState:
    """A new index; where another process has just made one, that one, if model and fields agree."""
    try:
        return _created(home, asked, fields)
    except AlreadyThere:
        if create:
            raise
        return _opened(home, asked, fields)


def _created(home: Store, asked: _OpenArguments, fields: Mapping[str, FieldType] | None) -> IndexState:
    declared, words = check_fields(fields or {}), WordRules(stemming=asked.stemming)
    if asked.model is None:
        if asked.dim is None:
            raise InputError(f"no index at {home.name}. To make one, give a model, or dim for vectors only")
        EncodeOptions(dim=asked.dim)  # the same rule, in the same words
        header = Header(asked.dim, declared, _bound_to_none(), words=words)
        return IndexState(home.create(header), NoIndexEncoder(home.name), None)
    model = asked.model if isinstance(asked.model, Model) else load(asked.model)
    coder = ModelIndexEncoder(model, asked.settings(EncodeOptions()), asked.passage_tokens)
    binding = bind(coder)
    header = Header(coder.dim, declared, binding.to_json(), words=words)
    return IndexState(home.create(header), coder, binding)


def _bound_to_none() -> dict[str, str | None]:
    from importlib.metadata import version

    return {"model": None, "gemel": version("gemel")}


def _opened(home: Store, asked: _OpenArguments, fields: Mapping[str, FieldType] | None) -> IndexState:
    table = home.open()
    try:
        _check_declared(home, table.header.fields, check_fields(fields or {}))
        _check_stemming(home, table.header.words.stemming, asked.stemming)
        binding = binding_of(table)
        if asked.model is None and asked.dim not in (None, table.header.dim):
            raise InputError(
                f"dim is {asked.dim}, but the index {home.name} has {table.header.dim} dimensions"
            )
        return IndexState(table, _coder(home, binding, asked), binding)
    except BaseException:
        table.close()
        raise


def _check_declared(home: Store, there: Mapping[str, FieldType], declared: Mapping[str, FieldType]) -> None:
    for name, kind in declared.items():
        if name not in there:
            raise unknown_field(name, there)
        if there[name] != kind:
            raise InputError(f"field {name!r} is {there[name]} in the index {home.name}, not {kind}")


def _check_stemming(home: Store, there: str | None, asked: str | None) -> None:
    if asked is not None and asked != there:
        raise InputError(
            f"the index {home.name} was made {f'with stemming {there!r}' if there else 'without stemming'}, not with "
            f"{asked!r}. Open it without stemming, or change it: index.rebuild_words(stemming={asked!r})"
        )


def binding_of(table: Table) -> Binding | None:
    """What the header says of the model; None: vectors only."""
    bound = table.header.bound
    return None if bound.get("model", "") is None else Binding.from_json(bound)


def _coder(home: Store, binding: Binding | None, asked: _OpenArguments) -> IndexEncoder:
    if binding is None:
        if asked.model is not None:
            raise ModelError(
                f"the index {home.name} holds vectors only and is bound to no model. Open it without one"
            )
        return NoIndexEncoder(home.name)
    recorded = binding

    def fitting(model: Model) -> ModelIndexEncoder:
        tokens = recorded.passage_tokens if asked.passage_tokens is None else asked.passage_tokens
        coder = ModelIndexEncoder(model, asked.settings(recorded.options), tokens)
        check_binding(recorded, coder, home.name)
        return coder

    given = asked.model
    if isinstance(given, Model):
        return fitting(given)
    if given is None:
        return LazyIndexEncoder(lambda: fitting(recorded_model(recorded, home.name)))
    if made_by(recorded, given):
        return LazyIndexEncoder(lambda: fitting(load_for(recorded, given, pooling=True)))
    return fitting(load_for(recorded, given, pooling=False))


def recorded_model(binding: Binding, place: str) -> Model:
    """The model that the index names, from its folder if that is here, else by name."""
    source = binding.folder if Path(binding.folder).is_dir() else binding.model
    try:
        return load_for(binding, source, pooling=True)
    except (ModelError, InputError) as error:
        raise ModelError(
            f"the index {place} was made by {binding.model!r}, which cannot be loaded here: {error} "
            f"Give the model: open_index({place!r}, model=...)"
        ) from error


@dataclass(frozen=True)
class RepairResult:
    """What `repair_index` did."""

    place: str
    actions: tuple[str, ...]
    """One line each; none: nothing was damaged."""

    def lines(self) -> list[str]:
        """For a person."""
        return list(self.actions) or ["nothing is damaged, nothing was done"]


def repair_index(
    place: str | Path | Store, *, model: Model | str | Path | None = None, table: str | None = None
) -> RepairResult:
    """Rebuild a lost index.json, give up rows that cannot be read, build word index and cache again where damaged.

    What can be read is kept, and tables that are not chosen are moved aside, not deleted. Copy the folder first if
    what cannot be read is worth an expert's time. Close other handles to the index before.

    model: the one that made the index, for a table that has lost what it says of itself.
    table: the one to keep (`rows-2.lance`), where index.json is lost and there are several.
    """
    home = place_of(place)
    try:
        return RepairResult(home.name, tuple(home.repair(table, None if model is None else _header(model))))
    finally:
        home.close()


def _header(model: Model | str | Path) -> Header:
    coder = ModelIndexEncoder(model if isinstance(model, Model) else load(model), EncodeOptions(), None)
    return Header(coder.dim, {}, bind(coder).to_json())
