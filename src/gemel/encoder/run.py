"""Token ids of many texts through an engine: batches of equal length, spread over the lanes, within the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from gemel.encoder.engines.port import Engine
from gemel.encoder.lanes import Lanes, usable_cores
from gemel.options import parse_bytes
from gemel.text.batches import Positions, same_length_batches
from gemel.text.tokenizer import TokenIds
from gemel.types import Vectors

Keep: TypeAlias = Callable[[Positions, Vectors], None]
"""Takes the hidden states (b, t, width) of the texts at these positions."""


def run(
    engine: Engine,
    pieces: Sequence[TokenIds],
    keep: Keep,
    *,
    lanes: Lanes,
    threads: int | None,
    memory: int | str,
) -> None:
    """Hidden states of all pieces, batch by batch, handed to `keep(positions, hidden)` from any lane.

    `threads` None: all usable cores. A piece without tokens is never handed over.
    """
    threads = threads or usable_cores()
    filled = [len(piece) for piece in pieces]
    share = -(-sum(filled) // threads)  # few texts: no lane should stand idle
    room = parse_bytes(memory) // threads

    def rows_for(length: int) -> int:
        tokens = min(engine.batch_tokens, share)
        return min(tokens // length, room // engine.bytes_per_text(length)) if length else 1

    batches = same_length_batches(filled, rows_for)
    spare = max(1, threads // max(1, len(batches)))  # a lone text gets all cores

    def work(positions: Positions) -> None:
        if filled[positions[0]]:
            keep(positions, engine.hidden(np.stack([pieces[position] for position in positions]), spare))

    lanes.run(work, batches, threads)
