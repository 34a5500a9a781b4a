"""How well documents answer a query: by the cross-encoder where one is loaded, else by the cosine of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemel.cross_model import CrossModel
from gemel.cross_options import CrossOptions
from gemel.serve.port import Ask, Services
from gemel.serve.routes.texts import check_tokens, embed_sides, unit
from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Scored:
    """One query against documents, in the order of the documents."""

    raw: Vectors
    """(n,) the cross-encoder's number before the sigmoid, or the cosine."""
    between: Vectors
    """(n,) the same as a number from 0 to 1: the sigmoid, or (1 + cosine) / 2."""
    by: Literal["cross", "cosine"]

    def best(self, k: int | None = None) -> NDArray[np.int64]:
        """Positions, best first; ties go to the earlier one."""
        return np.argsort(-self.raw, kind="stable")[:k]


def ranker(services: Services) -> CrossModel | None:
    """The cross-encoder, if it gives one score; one that tells classes apart cannot rank."""
    cross = services.cross
    return cross if cross is not None and len(cross.labels) == 1 else None


async def score(services: Services, query: str, documents: Sequence[str], ask: Ask) -> Scored:
    """`ask.cut` False refuses texts that are longer than the model reads."""
    cross = ranker(services)
    if cross is not None:
        raw = await services.work(lambda: _logits(services, cross, query, documents, ask))
        return Scored(raw, np.asarray(1 / (1 + np.exp(-raw.clip(-80, 80))), dtype=np.float32), "cross")
    length = Ask(client=ask.client, cut=ask.cut, seconds=ask.seconds, normalize=unit(services.model))
    asked, known = await embed_sides(services, query, documents, length)
    raw = np.clip(known.vectors @ asked.vectors[0], -1, 1)
    return Scored(raw, (1 + raw) / 2, "cosine")


def _logits(services: Services, cross: CrossModel, query: str, documents: Sequence[str], ask: Ask) -> Vectors:
    """(n,) Runs on a worker thread."""
    check_tokens(services, [query, *documents])
    options = CrossOptions(on_long="truncate" if ask.cut else "error")
    return cross.logits([query] * len(documents), documents, options)[:, 0]
