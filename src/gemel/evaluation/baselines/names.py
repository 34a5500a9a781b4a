"""Baselines by the names that users type: `bm25`, `glove:vectors.txt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gemel.errors import InputError
from gemel.evaluation.baselines.average_words import AverageWords
from gemel.evaluation.baselines.bm25 import BM25
from gemel.evaluation.baselines.tfidf import TfIdf
from gemel.evaluation.baselines.word_vectors import read_word_vectors
from gemel.model import load
from gemel.registry import Table
from gemel.text.read import read_rows
from gemel.types import Encoder

Open: TypeAlias = Callable[[str], Encoder]
"""What follows the colon, empty if nothing does, to a baseline."""

BASELINES: Table[Open] = Table("baseline")


def is_baseline(name: str) -> bool:
    """True where `open_baseline` is meant: a known name, alone or before a colon."""
    return name.partition(":")[0] in BASELINES


def open_baseline(name: str) -> Encoder:
    """`glove:PATH`, `glove-content:PATH`, `tfidf`, `tfidf:TEXTS`, `bm25`, `average-bert:MODEL` or `cls-bert:MODEL`.

    All but BM25 give vectors; it has `rank` instead, and refuses to encode. `tfidf` without a file of texts learns from
    the corpus of the task, where the task has one.
    """
    kind, _, where = name.partition(":")
    return BASELINES[kind](where)


@BASELINES.add("glove")
def _glove(where: str) -> Encoder:
    return AverageWords(read_word_vectors(_needed("glove", where, "a file or folder of word vectors")))


@BASELINES.add("glove-content")
def _glove_content(where: str) -> Encoder:
    path = _needed("glove-content", where, "a file or folder of word vectors")
    return AverageWords(read_word_vectors(path), stop_words=False)


@BASELINES.add("tfidf")
def _tfidf(where: str) -> Encoder:
    return TfIdf().fitted([row.text for row in read_rows(where)]) if where else TfIdf()


@BASELINES.add("bm25")
def _bm25(where: str) -> Encoder:
    if where:
        raise InputError(f"bm25 takes no path, got {where!r}: it counts the words of the corpus it ranks")
    return BM25()


@BASELINES.add("average-bert")
def _average_bert(where: str) -> Encoder:
    return load(_needed("average-bert", where, "a model"), pooling="mean")


@BASELINES.add("cls-bert")
def _cls_bert(where: str) -> Encoder:
    return load(_needed("cls-bert", where, "a model"), pooling="cls")


def _needed(kind: str, where: str, what: str) -> str:
    if not where:
        raise InputError(f"the baseline {kind!r} needs {what}. Write {kind}:PATH")
    return where
