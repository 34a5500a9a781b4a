"""What an integration asks of an index besides its interface: its options, and vectors of passages that were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gemel.index.encoder import unit
from gemel.index.index import Index
from gemel.index.results import Hit
from gemel.options import EncodeOptions
from gemel.types import Vectors

_SAME = 0.999  # cosine; int8 and other processors stay above, another model stays far below


def recorded_options(index: Index) -> dict[str, Any] | None:
    """The options of encoding that the index was made with, where they are not the default; None: vectors only."""
    binding = index._open().binding
    if binding is None:
        return None
    usual = asdict(EncodeOptions())
    return {name: value for name, value in asdict(binding.options).items() if value != usual[name]}


def passage_vectors(index: Index, hits: Sequence[Hit]) -> list[Vectors | None]:
    """(dim,) of the passage of each hit; None where it was deleted meanwhile."""
    rows = index._run(lambda state: state.table.get([hit.id for hit in hits]))
    found = {(rows.id[at], int(rows.part[at])): rows.vector[at] for at in range(len(rows))}
    return [found.get((hit.id, hit.part)) for hit in hits]


def is_of_its_model(index: Index, text: str, vector: ArrayLike) -> bool:
    """The vector is the one that the index's own model makes of the text; one of vectors only takes any."""
    if index._open().binding is None:
        return True
    given = unit(np.asarray(vector, dtype=np.float32)[None])[0]
    made = index._run(lambda state: state.coder.documents([text])).vectors[0]
    return given.shape == made.shape and (not made.any() or float(given @ made) > _SAME)
