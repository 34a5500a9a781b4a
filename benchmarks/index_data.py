"""The rows and queries of index.py: real sentences and their vectors, made once and kept.

Captions (Flickr30k), inference pairs (SNLI, MultiNLI), news and question pairs, distinct, shuffled. The queries are
other sentences of the same kinds, none of them in the corpus.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pair_data
from texts import distinct, read_tsv

QUERIES = 1000
_SOURCES = (
    ("captions/flickr30k-en-train.tsv.gz", ("caption1", "caption2", "caption3", "caption4", "caption5")),
    ("nli/snli-train-subset.tsv.gz", ("premise", "hypothesis")),
    ("clustering/agnews8000.tsv.gz", ("text",)),
    ("clustering/20newsgroups.tsv.gz", ("subject",)),
    ("clustering/searchsnippets.tsv.gz", ("text",)),
    ("nli/mnli-train-subset.tsv.gz", ("premise", "hypothesis")),
    ("paraphrase/qqp-train-subset.tsv.gz", ("question1", "question2")),
)


@dataclass(frozen=True)
class Data:
    """Files, so that each system reads its own copy."""

    title: str
    corpus: Path
    queries: Path
    texts: Path
    """One per line: `count` of the corpus, then those of the queries."""
    count: int


def sentences(count: int, folder: Path, data: Path, model: str) -> Data | None:
    """`count` sentences and the queries, encoded by `model`; None without the data."""
    texts, vectors = folder / f"sentences-{count}.txt", folder / f"sentences-{count}-{model}.npy"
    query_file = folder / f"sentences-{count}-{model}-queries.npy"
    if not all(file.exists() for file in (texts, vectors, query_file)):
        if not (data / _SOURCES[0][0]).exists():
            return None
        chosen = _chosen(count + QUERIES, data)
        if chosen is None:
            return None
        import gemel

        result = gemel.load(model).encode(chosen, on_long="truncate", progress=True)
        texts.write_text("\n".join(chosen) + "\n", encoding="utf-8")
        np.save(vectors, result[:count])
        np.save(query_file, result[count:])
    return Data(f"{count:,} real sentences ({model})", vectors, query_file, texts, count)


def synthetic(count: int, folder: Path) -> Data:
    """Random unit vectors in clusters, with short made-up texts."""
    texts = folder / f"synthetic-{count}.txt"
    if not texts.exists():
        words = [
            "river",
            "stone",
            "window",
            "garden",
            "engine",
            "letter",
            "market",
            "winter",
            "signal",
            "forest",
        ]
        lines = (
            f"{words[i % 10]} {words[i // 10 % 10]} {words[i // 100 % 10]} {i}"
            for i in range(count + QUERIES)
        )
        texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = pair_data.clustered(count, folder)
    queries = folder / f"synthetic-{count}-queries.npy"
    if not queries.exists():
        # Noise around rows of the corpus: new vectors with near neighbors.
        generator, rows = np.random.default_rng(2), np.load(corpus, mmap_mode="r")
        near = rows[np.sort(generator.choice(count, QUERIES, replace=False))].astype(np.float32)
        noise = generator.normal(size=near.shape).astype(np.float32) * (0.7 / near.shape[1] ** 0.5)
        np.save(queries, (near + noise) / np.linalg.norm(near + noise, axis=1, keepdims=True))
    return Data(f"{count:,} random vectors in clusters", corpus, queries, texts, count)


def truth(data: Data, folder: Path, k: int = 10) -> Path:
    """(queries, k) exact neighbors: of all rows, of the rows with tag 0 (1 %) and of even rows (50 %)."""
    path = folder / f"{data.corpus.stem}-truth.npz"
    if not path.exists():
        import gemel

        corpus, queries = np.load(data.corpus), np.load(data.queries)
        rows = np.arange(len(corpus))
        result = {
            "all": gemel.search(queries, corpus, k),
            "one_percent": gemel.search(queries, corpus, k, where=rows % 100 == 0),
            "half": gemel.search(queries, corpus, k, where=rows % 2 == 0),
        }
        np.savez(path, **{name: hits.index for name, hits in result.items()})
    return path


def _chosen(count: int, data: Path) -> list[str] | None:
    texts = [
        " ".join(row[name].split())
        for file, names in _SOURCES
        for row in read_tsv(data / file)
        for name in names
    ]
    kept = [text for text in distinct(texts) if text]
    random.Random(0).shuffle(kept)
    return kept[:count] if len(kept) >= count else None
