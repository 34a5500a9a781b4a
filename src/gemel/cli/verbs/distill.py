"""Make a smaller or faster model that agrees with a larger one."""

from __future__ import annotations

from typing import Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.cli.verbs.train import role_columns
from gemel.training.options import TrainOptions

EXAMPLES = """\b
Examples:
  gemel distill all-MiniLM-L6-v2 --how static --data texts.txt -o my-fast-model
  gemel distill all-MiniLM-L6-v2 --how layers --layers 3 --data texts.txt --epochs 2 -o my-small-model
  gemel distill ./my-reranker --how pairs --student all-MiniLM-L6-v2 --data texts.txt -o my-model
  gemel distill all-MiniLM-L6-v2 --how vectors --student ./multilingual --data en-de.tsv -o my-german-model"""


@click.command(epilog=EXAMPLES)
@click.argument("teacher")
@click.option(
    "--data", multiple=True, metavar="FILE", help="Texts or pairs of texts, no labels. May be repeated."
)
@flags.out_option("A folder for the student and its run.", metavar="FOLDER", required=True)
@click.option(
    "--how",
    type=click.Choice(["pairs", "vectors", "layers", "static"]),
    help="What the student learns from. Default: layers with --layers or --keep, static without --student, "
    "pairs from a cross-encoder, else vectors.",
)
@click.option("--student", metavar="NAME", help="pairs, vectors: the model that the student starts from.")
@click.option(
    "--objective",
    type=click.Choice(["regression", "cosent"]),
    default="regression",
    show_default=True,
    help="pairs: fit the cosines to the teacher's scores, or only to their order.",
)
@click.option(
    "--neighbors",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="pairs, of single texts: this many near neighbors of each are labeled.",
)
@click.option(
    "--random-pairs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="pairs, of single texts: and this many random ones.",
)
@click.option(
    "--bridge",
    type=click.Choice(["auto", "pca", "dense"]),
    default="auto",
    show_default=True,
    help="vectors of different sizes: reduce the teacher's, or add a layer to the student.",
)
@click.option("--layers", type=click.IntRange(1), help="layers: keep this many, evenly spaced.")
@click.option("--keep", metavar="0,2,5", help="layers: keep these, counted from 0.")
@click.option("--dim", type=click.IntRange(1), help="static: dimensions of a vector. Default: 256.")
@click.option(
    "--train/--no-train",
    default=None,
    help="layers, static: train after the cut or the fit. Default: layers yes, static no.",
)
@click.option(
    "--teacher-vectors",
    metavar="FOLDER",
    help="vectors, layers, static: store the teacher's vectors here, for other students of the same texts. "
    "Default: in --out.",
)
@click.option(
    "--column", "columns", multiple=True, metavar="ROLE=NAME", help="Which column has a role: text=question."
)
@click.option("--resume", is_flag=True, help="Resume the distillation in --out.")
@flags.encoding_option
@flags.json_option()
@flags.options_of(TrainOptions)
def command(
    teacher: str,
    data: tuple[str, ...],
    keep: str | None,
    columns: tuple[str, ...],
    options: TrainOptions,
    as_json: bool,
    **request: Any,
) -> None:
    """Make a smaller or faster model that agrees with TEACHER: a sentence encoder or a cross-encoder.

    Reports how well the student agrees with its teacher on held-out texts, before and after, with sizes and speeds.
    A static student needs no torch; the others are trained like any model: see gemel train for the options
    of training.
    """
    from gemel import distill

    result = distill(
        teacher,
        list(data) or None,
        keep=_layer_numbers(keep),
        columns=role_columns(columns),
        options=options,
        say=lambda line: echo(line, err=True),
        **request,
    )
    if as_json:
        echo_json(result.to_json())
    else:
        echo(result.summary())


def _layer_numbers(keep: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in keep.split(",")) if keep else ()
    except ValueError:
        raise click.BadParameter(f"write numbers like 0,2,5, got {keep!r}", param_hint="--keep") from None
