"""The vectors that every system of pairs.py gets, made once and kept as npy files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from texts import distinct, read_tsv

DIM = 384
A_CLUSTER = 20  # rows of a cluster, on average
SPREAD = (
    0.8  # length of the noise around a center of length 1: rows of one cluster have a cosine of about 0.6
)
_BLOCK = 50_000


def clustered(count: int, folder: Path, *, seed: int = 0) -> Path:
    """Random unit vectors in clusters. The same centers for every seed, so that queries have near rows."""
    path = folder / f"clustered-{count}-{seed}.npy"
    if not path.exists():
        centers = _unit(np.random.default_rng(1).normal(size=(50_000, DIM)).astype(np.float32))
        centers = centers[: max(1, count // A_CLUSTER)]
        generator = np.random.default_rng((seed, count))
        out = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.float32, (count, DIM))
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            noise = generator.normal(size=(size, DIM)).astype(np.float32) * (SPREAD / DIM**0.5)
            out[start : start + size] = _unit(centers[generator.integers(0, len(centers), size)] + noise)
        out.flush()
        path.with_suffix(".part").rename(path)
    return path


def captions(count: int, folder: Path, data: Path, model: str) -> Path | None:
    """Image captions (Flickr) and STSb sentences, distinct, encoded by `model`; None without the data."""
    path = folder / f"captions-{count}-{model.replace('/', '-')}.npy"
    if path.exists():
        return path
    if not (data / "captions").is_dir():
        return None
    import gemel

    texts = list(islice(_sentences(data), 4 * count))
    chosen = distinct(texts)[:count]
    if len(chosen) < count:
        return None
    np.save(path, gemel.load(model).encode(chosen))
    return path


def _sentences(data: Path):  # noqa: ANN202 - an iterator of strings
    for part in ("test", "dev", "train"):
        for row in read_tsv(data / "sts" / f"stsb-{part}.tsv.gz"):
            yield from (row["sentence1"], row["sentence2"])
    for part in ("test", "dev", "train"):
        for row in read_tsv(data / "captions" / f"flickr30k-en-{part}.tsv.gz"):
            yield from (text for name, text in row.items() if name.startswith("caption"))


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
