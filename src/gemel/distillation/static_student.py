"""`make_static`: a static student of any sentence encoder, in a folder, without torch.

One vector for each token, a text is the mean of its tokens: hundreds of times as fast as the teacher, and less exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from gemel.checkpoint import cache
from gemel.checkpoint.write import check_target
from gemel.distillation.static_folder import write_static
from gemel.distillation.static_table import StaticTable, fitted_rows, static_rows
from gemel.distillation.vocabulary import read_vocabulary
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.text.tokenizer import check_texts

DIM = 256
_RULES = "1"  # raise it when the same teacher and texts give other numbers: cached students are made anew


def make_static(
    model: Model | str | Path,
    texts: Sequence[str] | None = None,
    dim: int = DIM,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: bool = False,
) -> Path:
    """The folder of a static student of `model`, which `gemel.load` and sentence-transformers read.

    `texts`: fit the student to what the model says of these; None: its vocabulary alone. `dim` is cut to the model's.
    `out` None: a folder in gemel's cache, made once for this model, these texts and this `dim`.
    """
    teacher = model if isinstance(model, Model) else load(model)
    chosen = None if texts is None else check_texts(texts)

    def table() -> StaticTable:
        return make_table(teacher, chosen, dim, threads=threads, progress=progress)

    if out is not None:
        check_target(Path(out), teacher.checkpoint, overwrite)  # before minutes of work, not after
        return write_static(teacher.checkpoint, table().rows, Path(out), overwrite=overwrite)

    def fill(folder: Path, scratch: Path) -> None:
        made = write_static(teacher.checkpoint, table().rows, scratch / "student")
        for path in made.iterdir():
            path.rename(folder / path.name)

    return cache.install(_cached_name(teacher, chosen, dim), fill)


def make_table(
    model: Model,
    texts: Sequence[str] | None,
    dim: int = DIM,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> StaticTable:
    """The numbers of the student, not written."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise InputError(f"dim must be a whole number of at least 1, got {dim!r}")
    if texts is not None and not texts:
        raise InputError("no texts to fit the static student to. Give some, or leave texts out")
    vocabulary = read_vocabulary(model, threads=threads, progress=progress)
    if texts is None:
        return static_rows(model, vocabulary, dim)
    distinct = list(dict.fromkeys(texts))
    vectors = model.encode(distinct, on_long="truncate", threads=threads, progress=progress)
    return fitted_rows(model, vocabulary, dim, texts=distinct, vectors=vectors)


def _cached_name(model: Model, texts: Sequence[str] | None, dim: int) -> str:
    digest = hashlib.sha256(f"{_RULES} {model.fingerprint.digest} {dim}".encode())
    for text in sorted(set(texts)) if texts is not None else ():
        digest.update(hashlib.sha256(text.encode("utf-8")).digest())
    kind = "tokens" if texts is None else "texts"
    return f"static-{kind}-{digest.hexdigest()[:16]}"
