"""The student is the teacher with fewer layers, which then learns the teacher's vectors."""

from __future__ import annotations

from gemel.distillation.agreement import split_rows, yardstick_of_texts
from gemel.distillation.by_vectors import learn_vectors
from gemel.distillation.fewer_layers import chosen_layers, keep_layers, layer_count
from gemel.distillation.job import Job
from gemel.distillation.read_data import read_texts
from gemel.distillation.result import Distilled
from gemel.model import load
from gemel.training.publish import publish


def distill_layers(job: Job) -> Distilled:
    """Cut, and train where texts are given."""
    request, options = job.request, job.options
    checkpoint = job.encoder.model.checkpoint
    keep = chosen_layers(checkpoint, request.layers, request.keep)
    job.note(f"layers {', '.join(map(str, keep))} of {layer_count(checkpoint)} stay")
    start = job.folder / f"{checkpoint.folder.name}-{len(keep)}-layers"
    if not start.is_dir():
        keep_layers(checkpoint, keep, start)
    rows = None
    if request.data is not None:
        rows = read_texts(request.data, request.columns, skip_bad=options.skip_bad)
        job.note(*rows.notes)
    if rows is None:
        publish(start, request.out)
        return job.finish(None, None, "", None)
    split = split_rows(len(rows), options.seed)
    yardstick = yardstick_of_texts(job.encoder, rows.rows, split, near_by=None, seed=options.seed)
    if request.trains:
        return learn_vectors(job, load(start), rows.rows, split, yardstick)
    publish(start, request.out)
    return job.finish(yardstick, None, "", None)
