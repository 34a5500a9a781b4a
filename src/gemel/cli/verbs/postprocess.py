"""Fit whitening or the like on texts and save a new model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemel.texts.whitening import PostprocessResult

EXAMPLES = """\b
Examples:
  gemel postprocess ./my-model --data texts.txt -o ./my-model-white
  gemel postprocess ./my-model --data pairs.tsv.gz --text-column sentence1 --text-column sentence2
    --method whitening --dim 128 -o ./my-model-128"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option(
    "--method",
    type=click.Choice(["whitening", "centering", "all-but-the-top", "flow"]),
    default="whitening",
    show_default=True,
    help="What to fit; a flow needs the extra train.",
)
@click.option("--data", required=True, metavar="FILE", help="Unlabeled texts to fit on, as many as you have.")
@flags.text_column_option("May be repeated: each column is read.", multiple=True)
@flags.encoding_option
@flags.skip_bad_option
@click.option("--dim", type=click.IntRange(1), help="whitening: keep this many directions. Default: all.")
@click.option(
    "--remove", type=click.IntRange(0), help="all-but-the-top: directions to remove. Default: dim / 100."
)
@click.option("--epochs", type=click.IntRange(0), help="flow: passes over the texts. Default: 4.")
@flags.seed_option("the initial weights of a flow", default=None)
@flags.out_option("A folder for the new model.", metavar="FOLDER", required=True)
@flags.overwrite_option("the model in that folder")
@flags.json_option()
def command(
    model: str,
    method: str,
    data: str,
    text_column: tuple[str, ...],
    skip_bad: bool,
    out: Path,
    overwrite: bool,
    as_json: bool,
    **settings: int | None,
) -> None:
    """Fit a method on unlabeled texts and save MODEL with it as a new model.

    The vectors of many models lie in a narrow cone, where every cosine is high. The new model gives vectors of
    length 1 that are spread more evenly; like other models, it runs without torch.
    """
    import gemel
    from gemel.texts.whitening import Settings, save_postprocessed

    result = save_postprocessed(
        gemel.load(model),
        _texts(data, text_column, skip_bad),
        out,
        method=method,
        settings=Settings(**settings),
        overwrite=overwrite,
    )
    if as_json:
        echo_json(result.to_json())
    else:
        _show(result)


def _texts(path: str, columns: tuple[str, ...], skip_bad: bool) -> Iterator[str]:
    from gemel.files.rows import read_texts

    for column in columns or (None,):
        rows = read_texts(path, text_column=column, skip_bad=skip_bad)
        for row in rows:
            yield row.text
        if rows.skipped:
            echo(rows.skipped_summary(), err=True)


def _show(result: PostprocessResult) -> None:
    echo(
        f"{result.folder}: {result.method} fitted on {counted(result.texts, 'text')}, {result.dim} dimensions"
    )
    echo(f"before: {result.before.summary()}")
    echo(f"after:  {result.after.summary()}")
    if result.fitted.note:
        echo(result.fitted.note)
