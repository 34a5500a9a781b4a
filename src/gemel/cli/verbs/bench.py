"""Measure encoding on this machine and show what was chosen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gemel.cli.flags import (
    json_option,
    model_option,
    progress_option,
    shows_progress,
    text_column_option,
    threads_option,
)
from gemel.cli.output import echo
from gemel.errors import InputError

if TYPE_CHECKING:
    from gemel.options import Precision
    from gemel.texts.benchmark import BenchmarkResult, EngineResult

EXAMPLES = """\b
Examples:
  gemel bench
  gemel bench tickets.csv --text-column body --sample 200 --save int8
  gemel bench --show
  gemel bench --forget"""


@click.command(epilog=EXAMPLES)
@click.argument("file", required=False, metavar="[FILE]")
@text_column_option()
@click.option(
    "--sample", type=click.IntRange(1), default=1000, show_default=True, help="Texts to use at the most."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="The best of so many counts."
)
@click.option(
    "--save",
    type=click.Choice(["engine", "float32", "int8", "none"]),
    default="engine",
    show_default=True,
    help="What to keep. engine: the fastest engine and batch of each precision, which gemel.load takes from now on. "
    "float32, int8: that, and the precision of commands for this very model when they have no --precision.",
)
@click.option(
    "--show", is_flag=True, help="Show what was kept, of all models or of --model; measure nothing."
)
@click.option("--forget", is_flag=True, help="Remove what was kept, of all models or of --model.")
@threads_option
@progress_option
@json_option()
@model_option
@click.pass_context
def command(
    context: click.Context, /, *, model: str, show: bool, forget: bool, as_json: bool, **asked: Any
) -> None:
    """Measure encoding on this machine and keep the winner.

    Every engine that can run the model, in float32 and int8, with several batch sizes, takes its turn in each round,
    with the same threads and the same texts: those of FILE, or the sample sentences. Shown next to each speed is how
    far the vectors are those of float32. An index keeps the precision that it was made with, whatever is saved here.
    """
    if show or forget:
        if (show and forget) or asked["file"] is not None:
            raise InputError("--show and --forget stand alone: no FILE, and not both")
        named = context.get_parameter_source("model") is ParameterSource.COMMANDLINE
        _show_kept(model if named else None, forget=forget, as_json=as_json)
        return
    _measure(model, as_json=as_json, **asked)


def _measure(
    model: str,
    *,
    file: str | None,
    text_column: str | None,
    sample: int,
    save: str,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    from gemel.texts.benchmark import keep_winners, run_benchmark

    texts = _texts(file, text_column, sample)
    trials = run_benchmark(model, texts, progress=shows_progress(progress), **settings)
    precision: Precision | None = "float32" if save == "float32" else "int8" if save == "int8" else None
    kept = [] if save == "none" else keep_winners(model, trials, precision=precision)
    if as_json:
        rows = [trial.to_json() | {"kept": trial in kept} for trial in trials.ran]
        facts = {"model": model, "texts": len(texts), "trials": rows, "skipped": trials.skipped}
        click.echo(json.dumps({**facts, "saved": save}))
    else:
        _show(trials, kept, len(texts))
    for reason in trials.skipped:
        echo(f"not run: {reason}", err=True)
    if precision is not None:
        echo(
            f"commands compute with {model} in {precision} from now on, unless --precision says otherwise",
            err=True,
        )


def _texts(path: str | None, column: str | None, count: int) -> list[str]:
    from itertools import islice

    if path is None:
        from gemel.cli.verbs.demo import sentences

        return sentences()[:count]
    from gemel.files.rows import read_rows

    return [row.text for row in islice(read_rows(path, text_column=column, id_column=None), count)]


def _show(trials: BenchmarkResult, kept: list[EngineResult], count: int) -> None:
    first = trials.ran[0]
    echo(f"{count:,} texts, {first.threads} threads, {first.processor}")
    echo(
        f"{'engine':<22}{'precision':<11}{'batch tokens':>12}{'texts/s':>10}{'difference':>12}{'cosine':>9}"
        f"{'same nearest':>14}"
    )
    for trial in sorted(trials.ran, key=lambda trial: -trial.texts_per_second):
        near = trial.agreement
        difference = f"{near.difference:.0e}" if near.difference else "same bits"
        echo(
            f"{trial.kernel:<22}{trial.precision:<11}{trial.batch_tokens:>12,}{trial.texts_per_second:>10,.0f}"
            f"{difference:>12}{near.cosine:>9.4f}{near.same_nearest:>14.1%}{'  kept' if trial in kept else ''}"
        )
    echo(
        "Against the first float32 engine: the largest difference of a number, the lowest cosine of a text's two "
        "vectors, and the texts whose nearest other text is the same."
    )


def _show_kept(model: str | None, *, forget: bool, as_json: bool) -> None:
    from gemel.texts.benchmark import forget_choices, saved_choices

    found = forget_choices(model) if forget else saved_choices(model)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return
    for line in found.lines():
        echo(f"forgotten: {line}" if forget else line)
    if not found.lines():
        echo("nothing was kept", err=True)
