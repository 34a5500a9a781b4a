"""Streams pairs to a folder in small blocks and kills itself at a given point: see test_pairs_folder.py."""

import os
import signal
import sys

import numpy as np

from gemel.vectors import pair_scan as walk
from gemel.vectors import pairs as exact
from gemel.vectors import pairs as folder
from gemel.vectors.pairs import similar_pairs


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(owner, name: str, call: int, *, before: bool) -> None:
    """The process dies at the `call`-th call of a function."""
    real, calls = getattr(owner, name), [0]

    def instead(*args, **kwargs):
        calls[0] += 1
        if before and calls[0] == call:
            die()
        result = real(*args, **kwargs)
        if calls[0] == call:
            die()
        return result

    setattr(owner, name, instead)


def main(out: str, mode: str, moment: str, call: int) -> None:
    walk._LEAST = 16
    exact._SAVE_EVERY = 0.0
    if moment == "after-append":  # the files are longer than the journal says
        die_at(folder.PairFolder, "_record", call, before=True)
    elif moment == "half-written":
        real = folder.sync_open

        def torn(file) -> None:
            if file.name.endswith("left.npy") and call <= file.tell() // 1000:
                file.write(b"torn")
                file.flush()
                die()
            real(file)

        folder.sync_open = torn
    else:
        die_at(folder.PairFolder, "_write", call, before=False)
    rows = np.load(f"{out}.rows.npy")
    limit = {"k": 500} if mode == "best" else {"min_score": 0.2}
    similar_pairs(rows, out=out, memory=40_000, **limit)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
