"""The texts that every system encodes, in a fixed order."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count, islice
from pathlib import Path

SEED = 20
SHORT, MANY, LONG = "stsb-test", "stsb-10000", "long"
SETS = (SHORT, MANY, LONG)
TITLES = {
    SHORT: "STSb test, 2,758 sentences",
    MANY: "STSb, 10,000 distinct sentences",
    LONG: "20 newsgroups, 256 tokens",
}


@dataclass(frozen=True)
class Texts:
    sets: dict[str, list[str]]
    """The three sets by name, `query` (short ones, for the latency), `calibration` (for static int8)."""
    gold: list[float]
    """Scores of the pairs (i, i + n) of the 2 n texts of `stsb-test`; empty without the data."""
    source: str
    """One line for the report: where the texts are from."""


def read_tsv(file: Path) -> list[dict[str, str]]:
    """Rows of a gzipped table. There is no quoting: a quotation mark is a character like any other."""
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        names = next(lines).rstrip("\n").split("\t")
        return [dict(zip(names, line.rstrip("\n").split("\t"), strict=True)) for line in lines]


def distinct(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def read_texts(
    data: Path, tokens: Callable[[list[str]], list[int]], max_length: int, documents: int
) -> Texts:
    """All sets from the data folder, or, where it is absent, made from the sample that the package ships."""
    if not (data / "sts" / "stsb-test.tsv.gz").exists():
        return _sample_texts(tokens, max_length, documents)
    rows = {part: read_tsv(data / "sts" / f"stsb-{part}.tsv.gz") for part in ("train", "dev", "test")}
    test = [row["sentence1"] for row in rows["test"]] + [row["sentence2"] for row in rows["test"]]
    every = [row[side] for part in rows.values() for row in part for side in ("sentence1", "sentence2")]
    shuffled = distinct(every)
    random.Random(SEED).shuffle(shuffled)
    bodies = distinct([row["text"] for row in read_tsv(data / "clustering" / "20newsgroups.tsv.gz")])
    random.Random(SEED).shuffle(bodies)
    sets = {SHORT: test, MANY: shuffled[:10_000], LONG: _long(iter(bodies), tokens, max_length, documents)}
    return Texts(_with_queries(sets), [float(row["score"]) for row in rows["test"]], "STSb and 20 newsgroups")


def _long(
    bodies: Iterator[str], tokens: Callable[[list[str]], list[int]], max_length: int, documents: int
) -> list[str]:
    """The first `documents` bodies that fill the length; a few at a time, as few are needed."""
    result: list[str] = []
    while len(result) < documents and (block := list(islice(bodies, 500))):
        result += [text for text, n in zip(block, tokens(block), strict=True) if n >= max_length]
    return result[:documents]


def _with_queries(sets: dict[str, list[str]]) -> dict[str, list[str]]:
    short = [text for text in sets[MANY] if 4 <= len(text.split()) <= 12]
    return sets | {"query": short[:200], "calibration": sets[MANY][-300:]}


def _sample_texts(tokens: Callable[[list[str]], list[int]], max_length: int, documents: int) -> Texts:
    sample = _shipped()
    # A number in front makes a new text of nearly the same length.
    varied = (f"{n} {text}" if n else text for n in count() for text in sample)
    many = list(islice(varied, 10_000))
    endless = (" ".join(many[i % 9_000 : i % 9_000 + 60]) for i in count(0, 7))
    sets = {SHORT: many[:2_758], MANY: many, LONG: _long(endless, tokens, max_length, documents)}
    return Texts(_with_queries(sets), [], "the shipped sample with variations (no data folder)")


def _shipped() -> list[str]:
    folder = resources.files("gemel.texts")
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".txt"):
            return distinct([line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()])
    raise FileNotFoundError("no data folder was found, and the package ships no sample: pass --data FOLDER")
