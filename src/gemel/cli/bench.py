"""`gemel bench`: a fair comparison of engines, precisions and batch sizes on the user's own texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gemel.cli.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from gemel.trial import Trial, Trials

EXAMPLES = """\b
Examples:
  gemel bench
  gemel bench tickets.jsonl --model all-MiniLM-L6-v2 --json"""


@click.command(epilog=EXAMPLES)
@click.argument("input", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--model", "-m", default=DEFAULT_MODEL, show_default=True, help="A model's name or folder.")
@click.option("--text-column", help="The column with the texts.")
@click.option("--texts", "count", default=1000, show_default=True, help="Texts to use at the most.")
@click.option("--threads", type=click.IntRange(1), help="Cores to use. Default: all.")
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(1), help="The best of so many counts."
)
@click.option(
    "--save/--no-save", default=True, show_default=True, help="Let `load` take the winner from now on."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(input: str | None, model: str, as_json: bool, save: bool, **settings: Any) -> None:
    """Measure encoding on this machine and keep the winner.

    Every engine that can run the model, in float32 and int8, with several batch sizes, takes its turn in each round,
    with the same threads and the same texts (INPUT, or the sample sentences). The best engine and batch of each
    precision are remembered, so that `gemel.load` uses them. A batch size never changes a vector.
    """
    from gemel.trial import keep_winners, run_trials

    texts = _texts(input, settings["text_column"], settings["count"])
    trials = run_trials(model, texts, threads=settings["threads"], rounds=settings["rounds"])
    winners = keep_winners(model, trials) if save else []
    if as_json:
        rows = [trial.to_json() | {"kept": trial in winners} for trial in trials.ran]
        result = {"model": model, "texts": len(texts), "trials": rows, "skipped": trials.skipped}
        click.echo(json.dumps(result))
    else:
        _show(trials, winners, len(texts))


def _texts(path: str | None, column: str | None, count: int) -> list[str]:
    from itertools import islice

    if path is None:
        from importlib.resources import files

        sample = files("gemel").joinpath("data/sentences.txt").read_text(encoding="utf-8").splitlines()
        return sample[:count]
    from pathlib import Path

    from gemel.text.read import read_rows

    return [row.text for row in islice(read_rows(Path(path), text_column=column, id_column=None), count)]


def _show(trials: Trials, winners: list[Trial], count: int) -> None:
    first = trials.ran[0]
    click.echo(f"{count:,} texts, {first.threads} threads, {first.processor}")
    click.echo(f"{'engine':<22}{'precision':<11}{'batch tokens':>12}{'texts/s':>10}{'cosine':>9}")
    for trial in sorted(trials.ran, key=lambda trial: -trial.texts_per_second):
        mark = "  kept" if trial in winners else ""
        click.echo(
            f"{trial.kernel:<22}{trial.precision:<11}{trial.batch_tokens:>12,}{trial.texts_per_second:>10,.0f}"
            f"{trial.cosine:>9.4f}{mark}"
        )
    for reason in trials.skipped:
        click.echo(f"not run: {reason}")
    click.echo("cosine: the lowest agreement of a vector with that of the first float32 engine")
