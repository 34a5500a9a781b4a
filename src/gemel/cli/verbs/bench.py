"""Measure encoding on this machine, and say which options are fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.texts.benchmark import BenchmarkResult, EngineResult

EXAMPLES = """\b
Examples:
  gemel bench
  gemel bench tickets.csv --text-column body --sample 200"""


@click.command(epilog=EXAMPLES)
@click.argument("file", required=False, metavar="[FILE]")
@flags.text_column_option()
@flags.encoding_option
@flags.skip_bad_option
@click.option(
    "--sample", type=click.IntRange(1), default=1000, show_default=True, help="Use at most this many texts."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Rounds; the best counts."
)
@flags.threads_option
@flags.progress_option
@flags.json_option()
@flags.model_option
def command(
    *,
    model: str,
    file: str | None,
    text_column: str | None,
    sample: int,
    skip_bad: bool,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure encoding on this machine, and say which options are fastest.

    Every engine that can run the model, in float32 and int8, with several batch sizes, takes its turn in each round,
    with the same threads and the same texts: those of FILE, or the sample sentences. Next to each speed it shows how
    close the vectors are to those of float32.
    """
    from gemel.texts.benchmark import run_benchmark

    texts = _texts(file, text_column, sample, skip_bad)
    result = run_benchmark(model, texts, progress=flags.shows_progress(progress), **settings)
    if as_json:
        rows = [trial.to_json() for trial in result.ran]
        fastest = {trial.precision: trial.to_json() for trial in result.winners()}
        facts = {"model": model, "texts": len(texts), "trials": rows, "fastest": fastest}
        echo_json({**facts, "cores": result.cores.to_json(), "skipped": result.skipped})
    else:
        _show(result, len(texts))
        for trial in result.winners():
            echo(_advice(trial, model, default_engine=result.ran[0].engine))
    for reason in result.skipped:
        echo(f"not run: {reason}", err=True)


def _texts(path: str | None, column: str | None, count: int, skip_bad: bool) -> list[str]:
    from itertools import islice

    if path is None:
        from gemel.cli.verbs.demo import sentences

        return sentences()[:count]
    from gemel.files.rows import read_texts

    rows = read_texts(path, text_column=column, skip_bad=skip_bad)
    texts = [row.text for row in islice(rows, count)]
    if rows.skipped:
        echo(rows.skipped_summary(), err=True)
    return texts


def _show(trials: BenchmarkResult, count: int) -> None:
    fastest = trials.winners()
    first = trials.ran[0]
    echo(f"{counted(count, 'text')}, {counted(first.threads, 'thread')}, {first.processor}")
    echo(f"cores: {trials.cores.line()}")
    echo(
        f"{'engine':<22}{'precision':<11}{'batch tokens':>12}{'texts/s':>10}{'difference':>12}{'cosine':>9}"
        f"{'same nearest':>14}"
    )
    for trial in sorted(trials.ran, key=lambda trial: -trial.texts_per_second):
        near = trial.agreement
        difference = f"{near.difference:.0e}" if near.difference else "same bits"
        echo(
            f"{trial.kernel:<22}{trial.precision:<11}{trial.batch_tokens:>12,}{trial.texts_per_second:>10,.0f}"
            f"{difference:>12}{near.cosine:>9.4f}{near.same_nearest:>14.1%}{'  fastest' if trial in fastest else ''}"
        )
    echo(
        "Against the first float32 engine: the largest difference of a number, the lowest cosine of a text's two "
        "vectors, and the texts whose nearest other text is the same."
    )


def _advice(trial: EngineResult, model: str, *, default_engine: str) -> str:
    """How to encode with the fastest settings of one precision."""
    python = [repr(model)]
    if trial.precision != "float32":
        python.append(f"precision={trial.precision!r}")
    if trial.engine != default_engine:
        python.append(f"engine={trial.engine!r}")
    flag = "" if trial.precision == "float32" else f"--precision {trial.precision}, or in Python: "
    rate = f"{trial.texts_per_second / trial.threads:,.0f} texts/s per core"
    return f"fastest in {trial.precision} ({rate}): {flag}gemel.load({', '.join(python)})"
