"""What is opened by a name with a colon: baselines that a model should beat (averages of word vectors, TF-IDF, BM25,
plain BERT), and a model of another kind than its folder says.

Word vectors are read from the text format of GloVe and word2vec (`word v1 v2 ...` in each line, with or without a first
line `words dim`, plain, .gz or in a .zip), or from a table NAME.npy with a list of words next to it: .txt with one word
per line, or .parquet.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError  # of a header in an npy file, which numpy parses as Python
from typing import IO, Any, TypeAlias, cast

import numpy as np

from gemel.encoder.tokenizer import check_texts
from gemel.errors import GemelError, InputError, MissingExtra
from gemel.files.records import RecordFile
from gemel.files.rows import read_texts
from gemel.model import load
from gemel.registry import Registry
from gemel.texts.late_model import load_late
from gemel.texts.sparse_model import load_sparse
from gemel.types import Encoder, Vectors
from gemel.vectors.bm25 import BM25Index, words_of
from gemel.vectors.search import Hits
from gemel.vectors.similarity import checked

_TEXTS = (".txt", ".vec", ".txt.gz", ".vec.gz")

_WORD_LISTS = (".txt", ".vocab", ".parquet")

# What damaged text, zip, gzip and npy files raise; a zip also RuntimeError, if encrypted or of an unknown compression.
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    TokenError,
    SyntaxError,
)

_FLOAT32 = float(np.finfo(np.float32).max)

Open: TypeAlias = Callable[[str], Encoder]
"""From the text after the colon, which may be empty, to a baseline."""

BASELINES: Registry[Open] = Registry("baseline")


def is_baseline(name: str) -> bool:
    """True for a name that `open_baseline` takes: that of a baseline, alone or before a colon."""
    kind, colon, _ = name.partition(":")
    return kind in BASELINES and (bool(colon) or kind not in _KINDS)


def open_baseline(name: str) -> Encoder:
    """`glove:PATH`, `glove-content:PATH`, `tfidf`, `tfidf:TEXTS`, `bm25`, `average-bert:MODEL` or `cls-bert:MODEL`.

    `sparse:MODEL` and `late:MODEL` are the weights of words and the vectors of tokens of a model that has several
    outputs, such as BGE-M3. All but BM25 have vectors; it has `rank` instead, and its `encode` raises an InputError.
    `tfidf` without a file of texts is fitted on the corpus of the task, where the task has one.
    """
    kind, _, path = name.partition(":")
    return BASELINES[kind](path)


@BASELINES.add("glove")
def _glove(path: str) -> Encoder:
    return AverageWords(read_word_vectors(_needed("glove", path, "a file or folder of word vectors")))


@BASELINES.add("glove-content")
def _glove_content(path: str) -> Encoder:
    path = _needed("glove-content", path, "a file or folder of word vectors")
    return AverageWords(read_word_vectors(path), stop_words=False)


@BASELINES.add("tfidf")
def _tfidf(path: str) -> Encoder:
    return TfIdf().fitted([row.text for row in read_texts(path)]) if path else TfIdf()


@BASELINES.add("bm25")
def _bm25(path: str) -> Encoder:
    if path:
        raise InputError(f"bm25 takes no path, got {path!r}: it counts the words of the corpus that it ranks")
    return BM25()


@BASELINES.add("average-bert")
def _average_bert(path: str) -> Encoder:
    return load(_needed("average-bert", path, "a model"), pooling="mean")


@BASELINES.add("cls-bert")
def _cls_bert(path: str) -> Encoder:
    return load(_needed("cls-bert", path, "a model"), pooling="cls")


_KINDS = ("sparse", "late")  # a folder may be called so: these need a colon


@BASELINES.add("sparse")
def _sparse(path: str) -> Encoder:
    return cast("Encoder", load_sparse(_needed("sparse", path, "a model")))


@BASELINES.add("late")
def _late(path: str) -> Encoder:
    return cast("Encoder", load_late(_needed("late", path, "a model")))


def _needed(kind: str, path: str, what: str) -> str:
    if not path:
        raise InputError(f"the baseline {kind!r} needs {what}. Write {kind}:PATH")
    return path


class WithoutVectors:
    """Opened like an encoder, but its vectors are not available; `problem` says why."""

    name: str
    problem: str

    @property
    def dim(self) -> int:
        raise InputError(self.problem)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Raises an InputError."""
        raise InputError(self.problem)


class BM25(WithoutVectors):
    """A retriever without vectors, with the default parameters of `gemel.vectors.bm25`."""

    name = "bm25"
    problem = "bm25 ranks texts and has no vectors. Use it for retrieval, reranking or duplicates"

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` documents; those that share no word with the query are not found."""
        return BM25Index(corpus).rank(queries, k)


_WORDS = 20_000  # the most frequent words, which TF-IDF uses, so that dense vectors are not too large


class TfIdf(WithoutVectors):
    """Becomes an encoder with `fitted`, which counts the words of texts. `rank` is fitted on its corpus."""

    name = "tfidf"
    problem = (
        "tfidf must be fitted on texts before it can encode. Open it as tfidf:TEXTS with a file of texts, "
        "or call fitted(texts)"
    )

    def fitted(self, texts: Sequence[str]) -> FittedTfIdf:
        """An encoder whose dimensions are the words of `texts`."""
        return FittedTfIdf(self._fit(texts))

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` of the corpus by cosine of sparse vectors, fitted on this corpus."""
        vectorizer = self._fit(corpus)
        return rank_rows(vectorizer.transform(list(queries)), vectorizer.transform(list(corpus)), k)

    def _fit(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 - scikit-learn has no stubs
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError as error:
            raise MissingExtra("TF-IDF", "scikit-learn", "evaluate") from error
        try:
            return TfidfVectorizer(max_features=_WORDS).fit(list(texts))
        except ValueError as error:  # "empty vocabulary"
            raise InputError(f"tf-idf found no words in {len(texts)} texts") from error


@dataclass(frozen=True, eq=False)
class FittedTfIdf:
    """A fitted encoder; other words are ignored. Vectors have length 1, or 0 without any of the words."""

    vectorizer: Any  # a fitted TfidfVectorizer of scikit-learn, which has no stubs
    name: str = "tfidf"

    @property
    def dim(self) -> int:
        return len(self.vectorizer.vocabulary_)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, words) dense float32."""
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        return np.asarray(self.vectorizer.transform(list(texts)).toarray(), dtype=np.float32)


_QUERIES = 256  # rows of queries per product


def rank_rows(queries: Any, corpus: Any, k: int) -> Hits:  # noqa: ANN401 - scipy's csr arrays; scipy has no stubs
    """The best `k` rows of `corpus` (n, words) for each row of `queries` (q, words), -1 where there are fewer.

    Only documents that share a word with the query are found. Ties go to the earlier document, as in exact search.
    """
    columns = min(k, corpus.shape[0])
    index = np.full((queries.shape[0], columns), -1, dtype=np.int64)
    score = np.zeros(index.shape, dtype=np.float32)
    transposed = corpus.T.tocsr()
    for start in range(0, queries.shape[0], _QUERIES):
        block = (queries[start : start + _QUERIES] @ transposed).tocsr()
        for row in range(block.shape[0]):
            inside = slice(block.indptr[row], block.indptr[row + 1])
            documents, values = block.indices[inside], block.data[inside]
            best = np.lexsort((documents, -values))[:columns]
            index[start + row, : len(best)] = documents[best]
            score[start + row, : len(best)] = values[best]
    return Hits(index, score)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A table of vectors and the row of each word."""

    name: str
    index: Mapping[str, int]
    table: Vectors
    """(words, dim)"""


def read_word_vectors(path: str | Path) -> WordVectors:
    """The vectors of a file, a folder with one set, or a member of an archive: `glove.6B.zip/glove.6B.50d.txt`."""
    path = Path(path)
    try:
        return _read(path)
    except GemelError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"cannot read {path} as word vectors: {error or type(error).__name__}") from error


def _read(path: Path) -> WordVectors:
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        if path.suffix == ".npy":
            return _read_table(path, _word_list(path))
        if zipfile.is_zipfile(path):
            return _read_zip(path, None)
        with _opened(path) as stream:
            return _parse(stream, path, path.name)
    for parent in path.parents:
        if parent.is_file() and zipfile.is_zipfile(parent):
            return _read_zip(parent, path.relative_to(parent).as_posix())
    raise InputError(
        f"no word vectors at {path}: give a text file, a .npy table, a .zip or a folder with one"
    )


def _read_folder(folder: Path) -> WordVectors:
    tables = sorted(folder.glob("*.npy"))
    texts = [file for file in sorted(folder.iterdir()) if file.name.endswith(_TEXTS) and _looks_right(file)]
    files = tables or texts
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise InputError(
            f"{folder} should hold one set of word vectors, found: {names}. Name the file itself"
        )
    return _read(files[0])


def _looks_right(file: Path) -> bool:
    """True for lines of a word and numbers; False for a list of words, which some folders have too."""
    with _opened(file) as stream:
        fields = [line.rstrip().split(" ") for line in (stream.readline(), stream.readline())]
    try:
        return len(fields[-1]) > 2 and all(np.isfinite(float(field)) for field in fields[-1][-2:])
    except ValueError:
        return False


def _opened(file: Path) -> IO[str]:
    # newline="\n": some words contain other line separators.
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", newline="\n", errors="replace")
    return file.open(encoding="utf-8", newline="\n", errors="replace")


def _read_zip(archive: Path, member: str | None) -> WordVectors:
    with zipfile.ZipFile(archive) as packed:
        texts = [name for name in packed.namelist() if name.endswith((".txt", ".vec"))]
        if member is None and len(texts) == 1:
            member = texts[0]
        if member not in packed.namelist():
            problem = f"no {member!r} in {archive}" if member else f"{archive} has several files"
            raise InputError(
                f"{problem}. Write one of them after the archive: {archive}/{' or '.join(texts)}"
            )
        with packed.open(member) as raw:
            stream = io.TextIOWrapper(raw, encoding="utf-8", newline="\n", errors="replace")
            return _parse(stream, archive / member, Path(member).name)


def _parse(lines: Iterable[str], where: Path, name: str) -> WordVectors:
    """Numbers are counted from the right, since a word may contain spaces. Of a repeated word the first is used."""
    index: dict[str, int] = {}
    numbers = array("f")  # 4 bytes per number, where Python floats take 32
    dim = expected = None
    rows = 0
    for number, line in enumerate(lines, start=1):
        fields = line.rstrip("\r\n ").split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            expected, dim = int(fields[0]), int(fields[1])
            continue
        if fields == [""]:
            continue
        dim = dim or len(fields) - 1
        try:
            values = [float(field) for field in fields[-dim:]]
        except ValueError:
            values = []
        if dim < 1 or len(fields) <= dim or not _fits(values) or not values:
            raise InputError(
                f"{where}:{number}: expected a word and {dim} numbers, got {line.strip()[:60]!r}"
            )
        rows += 1
        word = " ".join(fields[:-dim])
        if word not in index:
            index[word] = len(index)
            numbers.extend(values)
    if not index:
        raise InputError(f"{where} holds no word vectors")
    if expected is not None and rows != expected:
        raise InputError(f"{where} should have {expected} words but has {rows}; is the file complete?")
    return WordVectors(name, index, np.frombuffer(numbers, dtype=np.float32).reshape(len(index), -1))


def _fits(values: list[float]) -> bool:
    """Finite, also as float32."""
    return all(-_FLOAT32 <= value <= _FLOAT32 for value in values)


def _word_list(table: Path) -> Path:
    """The list next to a table: the one named like it, else words or vocab, else the only one."""
    near = [file for file in sorted(table.parent.iterdir()) if file.suffix in _WORD_LISTS]
    for stem in (table.stem, "words", "vocab"):
        for file in near:
            if file.stem == stem:
                return file
    if len(near) == 1:
        return near[0]
    names = ", ".join(file.name for file in near) or "none"
    raise InputError(
        f"{table} needs the list of its words next to it, as {table.stem}.txt, words.txt, vocab.txt or .parquet; "
        f"found: {names}"
    )


def _read_table(path: Path, word_list: Path) -> WordVectors:
    try:
        table = checked(np.load(path, allow_pickle=False), str(path))
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read {path} as a table of vectors: {error}") from error
    if word_list.suffix == ".parquet":
        words = _parquet_words(word_list)
    else:
        words = word_list.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if len(words) != len(table):
        raise InputError(f"{path} has {len(table)} rows but {word_list} has {len(words)} words")
    index: dict[str, int] = {}
    for row, word in enumerate(words):
        index.setdefault(word, row)
    return WordVectors(path.name, index, table)


def _parquet_words(path: Path) -> list[str]:
    file = RecordFile(path)
    names = file.columns()
    if len(names) != 1:
        raise InputError(f"{path} should have one column of words, it has {', '.join(names)}")
    return [str(word) for _, (word,) in file.good_records(names)]


@dataclass(frozen=True, eq=False)
class AverageReport:
    """Vectors, and the number of words that they are averages of."""

    vectors: Vectors
    """(n, dim)"""
    words: int
    skipped: int
    """Words without a vector."""
    empty: int
    """Texts without any word that has a vector; their vectors are zero."""


@dataclass(frozen=True, eq=False)
class AverageWords:
    """An encoder without word order or context. A word that occurs twice counts twice."""

    vectors: WordVectors
    stop_words: bool = True
    """False leaves out stop words."""

    @property
    def dim(self) -> int:
        return int(self.vectors.table.shape[1])

    @property
    def name(self) -> str:
        return f"average of {self.vectors.name}" + ("" if self.stop_words else " without stop words")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dim); zeros for a text in which no word has a vector."""
        return self.encode_report(texts).vectors

    def encode_report(self, texts: Sequence[str]) -> AverageReport:
        """The vectors, and the number of skipped words."""
        row_of, table = self.vectors.index, self.vectors.table
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        words = skipped = empty = 0
        for row, text in enumerate(check_texts(texts)):
            in_text = words_of(text, stop_words=self.stop_words)
            rows = [row_of[word] for word in in_text if word in row_of]
            words, skipped = words + len(in_text), skipped + len(in_text) - len(rows)
            if rows:
                out[row] = table[rows].mean(axis=0, dtype=np.float64)
            else:
                empty += 1
        return AverageReport(out, words, skipped, empty)
