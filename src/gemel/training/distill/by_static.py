"""The student is a table of token vectors: made from the vocabulary, fitted to texts, trained if asked to."""

from __future__ import annotations

from gemel.model import Model, load
from gemel.training.distill.agreement import split_rows, yardstick_of_texts
from gemel.training.distill.by_vectors import learn_vectors
from gemel.training.distill.job import DistillJob, DistillResult, read_texts
from gemel.training.distill.static_table import (
    DIM,
    StaticTable,
    fitted_rows,
    read_vocabulary,
    static_rows,
    write_static,
)
from gemel.training.run import publish


def distill_static(job: DistillJob) -> DistillResult:
    """Without texts the vocabulary alone; with texts a closed-form fit; training after that on demand."""
    request, options = job.request, job.options
    teacher, dim = job.encoder.model, request.dim or DIM
    vocabulary = read_vocabulary(teacher, threads=options.threads, progress=options.progress)
    plain = static_rows(teacher, vocabulary, dim)
    if request.data is None:
        job.note(*plain.notes)
        return _published(job, _written(job, plain, "static"))
    rows = read_texts(request.data, request.columns, skip_bad=options.skip_bad)
    job.note(*rows.notes)
    split = split_rows(len(rows), options.seed)
    yardstick = yardstick_of_texts(job.encoder, rows.rows, split, near_by=None, seed=options.seed)
    before = yardstick.measure(_written(job, plain, "static-unfitted"), threads=options.threads)
    texts = [rows.rows[row][0] for row in split.train]
    fitted = fitted_rows(teacher, vocabulary, dim, texts=texts, vectors=job.vectors(texts))
    job.note(*fitted.notes)
    student = _written(job, fitted, "static")
    if request.trains:
        return learn_vectors(job, student, rows.rows, split, yardstick)
    publish(student.checkpoint.folder, request.out)
    return job.finish(yardstick, before, f"{len(texts):,} texts", None)


def _written(job: DistillJob, table: StaticTable, name: str) -> Model:
    checkpoint = job.encoder.model.checkpoint
    folder = job.folder / f"{checkpoint.folder.name}-{name}"
    return load(write_static(checkpoint, table.rows, folder, overwrite=True))


def _published(job: DistillJob, student: Model) -> DistillResult:
    publish(student.checkpoint.folder, job.request.out)
    return job.finish(None, None, "", None)
