"""The student of `--fast`: made once from the user's own model, then found in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemel.cli.options import Function

if TYPE_CHECKING:
    from gemel.model import Model
    from gemel.options import EncodeOptions


def fast_option(function: Function) -> Function:
    """`--fast DIAL`."""
    return click.option(
        "--fast",
        "dial",
        type=click.IntRange(1),
        metavar="DIAL",
        help="Two speeds: a static student of the model (made once, then cached) proposes DIAL candidates for each "
        "answer, the model scores only those; the recall is measured and shown. 10 is a start; more finds more.",
    )(function)


def student_of(model: Model, dial: int | None, options: EncodeOptions) -> Any:  # noqa: ANN401 - gemel.Model or None
    """The student where a dial was given, else None."""
    if dial is None:
        return None
    import gemel
    from gemel.distillation.static_student import make_static

    return gemel.load(make_static(model, threads=options.threads, progress=options.progress))
