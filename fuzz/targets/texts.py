"""Files of texts and numbers: txt, csv, tsv, jsonl, each also packed, parquet, word vectors."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

from fuzz.target import Job, WrongAnswerError, target

LINES = ("gemel.files.rows", "gemel.files.records")
SEEDS = {
    "txt": [b"a man\nthe cat\n\n", b"\xef\xbb\xbfone\r\ntwo"],
    "csv": [b'id,text,year\n1,"a, ""b""",2\n2,"two\nlines",3\n', b"text\r\nhello\r\n"],
    "tsv": [b"id\ttext\tlabel\n1\ta man\tx\n2\tthe cat\ty\n"],
    "jsonl": [
        b'{"id": 1, "text": "a", "tags": ["x"]}\n{"id": "b", "text": "c", "n": null}\n',
        b'"bare"\n\n"two"\n',
    ],
}


def _read_all(path: Path) -> None:
    """As texts, and as a table with all its columns, with and without rows that are skipped."""
    from gemel.errors import GemelError
    from gemel.files.records import RecordFile
    from gemel.files.rows import Columns, read_rows, text_column_of

    refused: GemelError | None = None
    for skip in (True, False):
        try:
            for row in read_rows(path, skip_bad=skip):
                row.text.encode("utf-8", "surrogatepass")
            list(
                read_rows(path, text_column="text", id_column="id", skip_bad=skip)
            ) if path.suffix != ".txt" else None
        except GemelError as error:
            refused = error
    table = RecordFile(path)
    names = table.columns()
    table.types()
    text_column_of(table, Columns(None, None, str(path)))
    list(table.records(names, optional=names))
    if refused is not None:
        raise refused


def _add(kind: str, packed: bool) -> None:
    name = f"{kind}.gz" if packed else kind

    @target(f"read-{name}", "bytes" if packed else "lines", *LINES)
    def make(folder: Path) -> Job:
        path = folder / f"input.{name}"

        def read(data: bytes) -> None:
            path.write_bytes(data)
            _read_all(path)

        return Job([gzip.compress(seed, mtime=0) for seed in SEEDS[kind]] if packed else SEEDS[kind], read)


for _kind in SEEDS:
    _add(_kind, packed=False)
_add("jsonl", packed=True)


def _add_documents(suffix: str) -> None:
    @target(f"read-document-{suffix}", "bytes", "gemel.files.document_files", "gemel.files.document_formats")
    def make(folder: Path) -> Job:
        path = folder / f"input.{suffix}"

        def read(data: bytes) -> None:
            from gemel.files.document_files import read_documents

            path.write_bytes(data)
            reader = read_documents(path)
            for document in reader:
                document.text.encode("utf-8")
                if not document.text or "\0" in document.text:
                    raise WrongAnswerError(f"a document without text, or with NUL: {document!r}")
            if any("\n" in each.reason for each in reader.skipped):
                raise WrongAnswerError("a reason of several lines")

        return Job(_document_seeds(suffix), read)


def _document_seeds(suffix: str) -> list[bytes]:
    page = "BT /F1 12 Tf 20 200 Td (hello) Tj ET"
    pdf = (
        "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
        "3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F1<</Type/Font/Subtype"
        f"/Type1/BaseFont/Helvetica>>>>>>>>endobj 4 0 obj<</Length {len(page)}>>stream\n{page}\nendstream endobj\n"
        "trailer<</Root 1 0 R>>\n%%EOF"
    )
    seeds = {
        "pdf": [pdf.encode()],
        "html": [
            b"<title>t</title><nav>n</nav><h1 id=a>A</h1><p>b<ul><li>c</ul><pre> d</pre><table><tr><td>e"
        ],
        "md": [b"---\ntitle: t\n---\n# A\n\nb [c](d)\n\n- e\n\n|f|g|\n|-|-|\n|h|i|\n\n```\nj\n```\n<p>k\n"],
    }
    if suffix != "docx":
        return seeds[suffix]
    import docx

    document, out = docx.Document(), io.BytesIO()
    document.add_heading("A", 1)
    document.add_paragraph("b")
    document.save(out)
    return [out.getvalue()]


for _suffix in ("pdf", "html", "md", "docx"):
    _add_documents(_suffix)


@target("read-parquet", "bytes", "gemel.files.rows", "gemel.files.records")
def parquet(folder: Path) -> Job:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def packed(table: pa.Table, **settings: object) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink, **settings)
        return sink.getvalue()

    texts = pa.table({"id": [1, 2, 3], "text": ["a", None, "the cat"], "tags": [["x"], [], None]})
    words = pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode(), "price": [1.5, None, 2.0]})
    path = folder / "input.parquet"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        _read_all(path)

    return Job([packed(texts), packed(words, compression="none", row_group_size=1)], read)


@target(
    "training-data",
    "lines",
    *(f"gemel.training.data.{name}" for name in ("columns", "labels", "read", "store")),
)
def training_data(folder: Path) -> Job:
    """A file of pairs with labels or scores, as `gemel train` reads it for three objectives."""
    import numpy as np

    from gemel.errors import GemelError
    from gemel.training.data.read import open_all
    from gemel.training.objectives.base import OBJECTIVES

    path = folder / "pairs.jsonl"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        refused: GemelError | None = None
        for objective in ("regression", "classification", "in-batch-ranking"):
            for skip in (False, True):
                try:
                    for part in open_all(
                        path, OBJECTIVES[objective]().needs, skip_bad=skip, objective=objective
                    ):
                        part.batch(np.arange(min(3, len(part))))
                        part.fingerprint()
                except GemelError as error:
                    refused = error
        if refused is not None:
            raise refused

    seeds = [
        [
            {"sentence1": "a", "sentence2": "b", "score": 0.5},
            {"sentence1": "c", "sentence2": "d", "score": 1},
        ],
        [
            {"premise": "a", "hypothesis": "b", "label": "neutral"},
            {"premise": "a", "hypothesis": "d", "label": 1},
        ],
        [
            {"anchor": "a", "positive": "b", "negative": "c"},
            {"anchor": "d", "positive": "e", "negative": "f"},
        ],
    ]
    return Job([b"".join(json.dumps(row).encode() + b"\n" for row in rows) for rows in seeds], read)


@target("word-vectors", "lines", "gemel.evaluation.baselines")
def word_vectors(folder: Path) -> Job:
    """GloVe's and word2vec's text."""
    return _word_vectors(
        folder / "glove.txt", [b"the 0.1 -2 3e-1\ncat 1 2 3\na b 1 2 3\n", b"2 3\nthe 1 2 3\ncat 4 5 6\n"]
    )


@target("word-vectors-zip", "bytes", "gemel.evaluation.baselines")
def word_vectors_zip(folder: Path) -> Job:
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("glove.3d.txt", b"the 0.1 -2 3e-1\ncat 1 2 3\n")
    return _word_vectors(folder / "glove.zip", [packed.getvalue()])


@target("word-vectors-gz", "bytes", "gemel.evaluation.baselines")
def word_vectors_gz(folder: Path) -> Job:
    (folder / "set").mkdir()
    return _word_vectors(
        folder / "set" / "glove.txt.gz",
        [gzip.compress(b"the 0.1 -2 3e-1\ncat 1 2 3\n", mtime=0)],
        folder / "set",
    )


@target("word-vectors-npy", "bytes", "gemel.evaluation.baselines")
def word_vectors_npy(folder: Path) -> Job:
    import numpy as np

    packed = io.BytesIO()
    np.save(packed, np.ones((2, 3), np.float32))
    (folder / "words.txt").write_text("the\ncat\n")
    return _word_vectors(folder / "table.npy", [packed.getvalue()])


@target("word-vectors-words", "bytes", "gemel.evaluation.baselines")
def word_vectors_words(folder: Path) -> Job:
    """The list of words next to a table."""
    import numpy as np

    np.save(folder / "table.npy", np.ones((2, 3), np.float32))
    return _word_vectors(folder / "words.txt", [b"the\ncat\n", b"\xc3\xa9\r\n\n"], folder / "table.npy")


def _word_vectors(path: Path, seeds: list[bytes], read_from: Path | None = None) -> Job:
    import numpy as np

    from gemel.evaluation.baselines import read_word_vectors

    def read(data: bytes) -> None:
        path.write_bytes(data)
        result = read_word_vectors(read_from or path)
        if not np.isfinite(result.table).all() or max(result.index.values()) >= len(result.table):
            raise WrongAnswerError("vectors that are not finite, or words without one")

    return Job(seeds, read)
