"""Every token of a vocabulary through its model, alone between the marks: what a static student starts from."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.tokenizer_file import load_tokenizer
from gemel.encoder.head import finish
from gemel.encoder.lanes import Lanes
from gemel.encoder.pooling import pool
from gemel.encoder.run import run
from gemel.errors import InputError
from gemel.model import Model
from gemel.progress import Progress
from gemel.text.batches import Positions
from gemel.text.tokenizer import TextTokenizer
from gemel.types import Vectors

_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|\|\|\|.*\|\|\|")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that can stand in a text, and what the model makes of each."""

    size: int
    """Rows of a table for all token ids, marks and unused ones included."""
    ids: NDArray[np.int64]
    """(v,) of the tokens below, in the order of the vocabulary."""
    vectors: Vectors
    """(v, dim) as `encode` gives them before length 1."""


def read_vocabulary(model: Model, *, threads: int | None = None, progress: bool = False) -> Vocabulary:
    """The vectors of all tokens of `model`; its marks and placeholders are left out."""
    checkpoint = model.checkpoint
    if checkpoint.kind == "static":
        raise InputError(
            f"{model.name} is a static model already. Give the model that it should be made from"
        )
    tokenizer = load_tokenizer(checkpoint)
    marks = TextTokenizer(tokenizer).marks
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    known = tokenizer.get_vocab()
    rows = checkpoint.config.get("vocab_size")
    limit = rows if isinstance(rows, int) else max(known.values(), default=-1) + 1
    ids = sorted(
        number
        for token, number in known.items()
        if number not in special and number < limit and not _UNUSED.fullmatch(token)
    )
    vectors = np.zeros((len(ids), model.width * len(checkpoint.pooling.modes)), dtype=np.float32)
    line = Progress(len(ids), "tokens", shown=progress)

    def keep(positions: Positions, hidden: Vectors) -> None:
        vectors[positions] = pool(hidden, checkpoint.pooling.modes)
        line.add(len(positions))

    pieces = [marks.around(np.array([number], dtype=np.int32)) for number in ids]
    run(model.engine, pieces, keep, lanes=Lanes(), threads=threads, memory="256MB")
    line.close()
    finished = finish(vectors, checkpoint.dense, unit=False, dim=None)
    return Vocabulary(max(known.values(), default=-1) + 1, np.array(ids, dtype=np.int64), finished)
