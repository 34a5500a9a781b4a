"""How well documents answer a query: by the cross-encoder where one is loaded, else by the cosine of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemel.cross_model import CrossModel
from gemel.cross_options import CrossOptions
from gemel.serve.port import Ask, Services
from gemel.serve.routes.texts import check_tokens, embed_sides, is_long, unit
from gemel.types import Vectors

PIECE = 64  # pairs that a cross-encoder reads before other work has its turn


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
        raw = (await logits_of(services, cross, [query] * len(documents), documents, ask, once=[query]))[:, 0]
        return Scored(raw, np.asarray(1 / (1 + np.exp(-raw.clip(-80, 80))), dtype=np.float32), "cross")
    length = Ask(client=ask.client, cut=ask.cut, seconds=ask.seconds, normalize=unit(services.model))
    asked, known = await embed_sides(services, query, documents, length)
    raw = np.clip(known.vectors @ asked.vectors[0], -1, 1)
    return Scored(raw, (1 + raw) / 2, "cosine")


async def logits_of(
    services: Services,
    cross: CrossModel,
    left: Sequence[str],
    right: Sequence[str],
    ask: Ask,
    *,
    once: Sequence[str] | None = None,
) -> Vectors:
    """(n, labels) of pairs, in pieces that take turns with the work of other clients and end with the request.

    `once`: what is counted of `left`, where it is one text again and again.
    """
    options = CrossOptions(on_long="truncate" if ask.cut else "error")
    counted = [*(left if once is None else once), *right]

    def piece(start: int) -> Vectors:
        return cross.logits(left[start : start + PIECE], right[start : start + PIECE], options)

    long = len(right) > PIECE or is_long(counted)
    with services.reserve(ask.client) if long else nullcontext():
        await services.work(lambda: check_tokens(services, counted), client=ask.client, long=long)
        parts = [
            await services.work(partial(piece, start), client=ask.client, long=long)
            for start in range(0, len(right), PIECE)
        ]
    return np.concatenate(parts)
