"""One block of documents into the table: what is there already stays, what is new is encoded, all in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.errors import InputError
from gemel.index.digest import digest_of
from gemel.index.incoming import Batch
from gemel.index.port import Rows
from gemel.index.state import State
from gemel.index.stored import stored_documents
from gemel.index.types import Existing, Written
from gemel.types import Vectors

_TRIES = 3  # another writer may add an id between the question and the write


@dataclass(frozen=True, eq=False)
class Prepared:
    """Rows ready to be written."""

    rows: Rows
    encoded: int
    truncated: int


def write_batch(state: State, batch: Batch, existing: Existing) -> Written:
    """The documents as `existing` says, in one commit; nothing is written if nothing changes."""
    digests = _digests(state, batch)
    for left in reversed(range(_TRIES)):
        known = state.table.known(batch.ids)
        if known and existing == "error":
            raise there_already(next(id_ for id_ in batch.ids if id_ in known))
        fresh = [
            place
            for place, id_ in enumerate(batch.ids)
            if id_ not in known or (existing == "replace" and known[id_] != digests[place])
        ]
        changed = sum(batch.ids[place] in known for place in fresh)
        if not fresh:
            return Written(0, 0, len(batch), 0)
        stored = [batch.ids[place] for place in fresh if batch.ids[place] in known]
        ready = prepare(
            state, pick(batch, fresh), [digests[place] for place in fresh], _reusable(state, stored)
        )
        try:
            state.table.write(ready.rows, replace=existing == "replace")
        except InputError:
            if existing == "skip" and left and state.table.known([batch.ids[place] for place in fresh]):
                continue
            raise
        return Written(
            added=len(fresh) - changed,
            replaced=changed,
            unchanged=len(batch) - len(fresh),
            encoded=ready.encoded,
            truncated=ready.truncated,
        )
    raise AssertionError("the last try returns or raises")


def there_already(id_: str) -> InputError:
    """The error of `add` for an id that the index has."""
    return InputError(
        f"the id {id_!r} is in the index already. Use existing='replace' (or upsert) to change it, 'skip' to keep it"
    )


def prepare(
    state: State, batch: Batch, digests: Sequence[str], reusable: dict[str, Vectors] | None = None
) -> Prepared:
    """The rows of the documents; passages in `reusable` are not encoded again."""
    if batch.vectors is not None:
        passages = [[text] for text in batch.texts]
        vectors, encoded, truncated = batch.vectors, 0, 0
    else:
        known = dict(reusable or {})
        passages = state.coder.split(batch.texts)
        every = [passage for parts in passages for passage in parts]
        missing = [passage for passage in dict.fromkeys(every) if passage not in known]
        made = state.coder.documents(missing) if missing else None
        if made is not None:
            known.update(zip(missing, made.vectors, strict=True))
        vectors = np.stack([known[passage] for passage in every])
        encoded, truncated = len(missing), made.truncated if made else 0
    owners = [place for place, parts in enumerate(passages) for _ in parts]
    rows = Rows(
        id=[batch.ids[place] for place in owners],
        part=np.array([part for parts in passages for part in range(len(parts))], dtype=np.int32),
        text=[passage for parts in passages for passage in parts],
        digest=[digests[place] for place in owners],
        vector=vectors,
        fields={
            name: [batch.fields[place].get(name) for place in owners] for name in state.table.header.fields
        },
    )
    return Prepared(rows, encoded, truncated)


def pick(batch: Batch, places: Sequence[int]) -> Batch:
    """The documents at these places."""
    return Batch(
        ids=[batch.ids[place] for place in places],
        texts=[batch.texts[place] for place in places],
        vectors=None if batch.vectors is None else batch.vectors[list(places)],
        fields=[batch.fields[place] for place in places],
    )


def _digests(state: State, batch: Batch) -> list[str]:
    vectors = [None] * len(batch) if batch.vectors is None else list(batch.vectors)
    return [
        digest_of(text, fields, state.passage_tokens, vector)
        for text, fields, vector in zip(batch.texts, batch.fields, vectors, strict=True)
    ]


def _reusable(state: State, ids: Sequence[str]) -> dict[str, Vectors]:
    """Passages of the stored versions with the vectors that the model made of them."""
    if not ids:
        return {}
    found: dict[str, Vectors] = {}
    for document in stored_documents(state.table.get(ids)):
        if document.made_by_model(state.passage_tokens):
            found.update(zip(document.passages, document.vectors, strict=True))
    return found
