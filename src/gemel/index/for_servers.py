"""What a server asks of an index besides its interface: how a query is encoded for it, and some of its vectors."""

from __future__ import annotations

import numpy as np

from gemel.index.encoder import ModelIndexEncoder
from gemel.index.index import Index
from gemel.index.port import PassageRows, Table
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.types import Vectors

_PLACES = 8  # of the order of ids that a sample is taken from


def query_options(index: Index, model: Model) -> EncodeOptions | None:
    """The options under which `model` encodes a query for the index; None: the index encodes by other means."""
    coder = index._open().coder
    return coder.query_options if isinstance(coder, ModelIndexEncoder) and coder.model() is model else None


def sample_vectors(index: Index, most: int = 2000) -> Vectors:
    """(n, dim) of stored passages, all where they are few, else from several places of the order of ids."""
    table = index._open().table
    first = next(table.scan(block=most), None)
    if first is None or len(first) < most:
        return np.empty((0, table.header.dim), np.float32) if first is None else first.vector
    probes = np.random.default_rng(1729).normal(size=(_PLACES, table.header.dim)).astype(np.float32)
    found: dict[tuple[str, int], Vectors] = {}
    for passages in table.nearest(probes / np.linalg.norm(probes, axis=1, keepdims=True), 1):
        rows = _after(table, passages.id[0], most // _PLACES) if len(passages) else None
        if rows is not None:
            found |= {(rows.id[at], int(rows.part[at])): rows.vector[at] for at in range(len(rows))}
    return np.stack(list(found.values())) if len(found) > most // _PLACES else first.vector


def _after(table: Table, id_: str, most: int) -> PassageRows | None:
    return next(table.scan(after=id_, block=most), None)
