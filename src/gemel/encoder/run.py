"""Token ids of many texts through an engine: groups of equal length, in batches, spread over the lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from gemel.encoder.engines.port import Engine, MixingEngine
from gemel.encoder.lanes import Lanes, usable_cores
from gemel.options import parse_bytes
from gemel.text.batches import Positions, joined_batches, same_length_batches
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
    tokens = min(engine.batch_tokens, share)

    def rows_for(length: int) -> int:
        return min(tokens // length, room // engine.bytes_per_text(length)) if length else 1

    groups = [group for group in same_length_batches(filled, rows_for) if filled[group[0]]]
    mixing = engine if isinstance(engine, MixingEngine) else None
    batches = [[group] for group in groups]
    if mixing is not None and len(groups) > 1:
        sizes = [(len(group), filled[group[0]]) for group in groups]
        # More bytes than a joined batch takes: as if every text were alone.
        costs = [(count * length, count * mixing.bytes_per_text(length)) for count, length in sizes]
        batches = joined_batches(groups, costs, (tokens, room))
    spare = max(1, threads // max(1, len(batches)))  # a lone text gets all cores

    def work(batch: list[Positions]) -> None:
        ids = [np.stack([pieces[position] for position in group]) for group in batch]
        states = mixing.hidden_many(ids, spare) if mixing else [engine.hidden(each, spare) for each in ids]
        for group, hidden in zip(batch, states, strict=True):
            keep(group, hidden)

    lanes.run(work, batches, threads)
