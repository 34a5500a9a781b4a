"""Score models on labeled data and say which is better."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import cell, console, echo, echo_json, in_flags, new_table
from gemel.errors import InputError
from gemel.registry import Registry

if TYPE_CHECKING:
    from gemel.evaluation.statistics import NamedComparison
    from gemel.evaluation.task import Score, Scores
    from gemel.options import EncodeOptions

EXAMPLES = """\b
Examples:
  gemel evaluate all-MiniLM-L6-v2 --task sts --data sts/
  gemel evaluate all-MiniLM-L6-v2 ./my-model --task sts --data pairs.tsv -o report/
  gemel evaluate all-MiniLM-L6-v2 --task binary-pairs --data qqp-test.tsv.gz --metric all --json"""

TASK_NAMES = ", ".join(Registry("task", package="gemel.evaluation.tasks"))  # without importing NumPy

COLUMNS = 6  # numbers to a row on a screen; all of them are in the JSON


@click.command(epilog=EXAMPLES)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--task", required=True, metavar="NAME", help=f"One of {TASK_NAMES}.")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A table, or a folder of tables.",
)
@click.option("--metric", help='cosine, dot, euclidean, manhattan, or "all" side by side. Default: cosine.')
@click.option("--rounds", type=click.IntRange(0), help="Bootstrap rounds of an interval. Default: 1000.")
@flags.seed_option("the bootstrap and of everything else that is random", default=None)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the task, such as k=20."
)
@click.option("--pooling", help="Instead of the model's own: mean, cls, max, ...")
@flags.task_option("--model-task")
@flags.encoding_option
@flags.out_option("A folder for results.json, .md and a report.", metavar="FOLDER")
@flags.json_option("lines", piped=True, more="A row is a model on a data set.")
@flags.encode_options
def command(models: tuple[str, ...], as_json: bool, out: Path | None, **values: Any) -> None:
    """Score each MODEL on labeled data; of several, say which is better and how certain that is.

    MODEL is a model's name or folder, or a baseline such as glove:FILE, tfidf or bm25. Shares are in points (82.03),
    with the 95 % bootstrap interval in brackets. JSON has one object for each model and data set.
    """
    wants_json = as_json or not _on_a_terminal()
    results: list[Scores] = []
    found: list[NamedComparison] = []
    for result, compared in _run(models, **values):
        results.append(result)
        found += compared
        if wants_json:
            rows = [one.to_json() for one in compared]
            content = {**result.to_json(), "compared": rows} if len(models) > 1 else result.to_json()
            echo_json(content)
            sys.stdout.flush()  # each line at once, for a reader of the pipe
    if not wants_json:
        _show(results, found)
    if out is not None:
        from gemel.evaluation.report.write import write_report

        for path in write_report(results, found, out):
            echo(f"wrote {path}", err=True)


def _on_a_terminal() -> bool:
    return sys.stdout.isatty()


def _run(
    models: Sequence[str],
    *,
    task: str,
    data: Path,
    options: EncodeOptions,
    pooling: str | None,
    model_task: str | None,
    settings: tuple[str, ...],
    **given: Any,
) -> Iterator[tuple[Scores, list[NamedComparison]]]:
    """Each result as it is computed, with its comparisons to the models before it."""
    from gemel.evaluation.evaluate import compare_with, name_of, open_encoder, score_model
    from gemel.evaluation.task import load_task

    tasks = load_task(task, data, **given, **_settings(settings))
    draws = {name: given[name] for name in ("rounds", "seed") if given[name]}
    earlier: list[Scores] = []
    for model in models:
        encoder = open_encoder(model, options=options, pooling=pooling, task=model_task)
        name = name_of(model, encoder)
        taken = any(result.model == name for result in earlier)  # two folders may end in the same name
        mine = []
        with _warnings_once():
            for result in score_model(tasks, encoder, name=model if taken else name):
                mine.append(result)
                yield result, compare_with(earlier, result, **draws)
        earlier += mine


def _settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`k=20` to a number, `closed=true` to a bool, anything else to a string."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE, got {pair!r}")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            found[name.replace("-", "_")] = value
    return found


@contextmanager
def _warnings_once() -> Iterator[None]:
    """Each warning of the library once on standard error, without a position in the source."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        echo(f"warning: {in_flags(message)}", err=True)


def _show(results: Sequence[Scores], found: Sequence[NamedComparison]) -> None:
    screen = console()
    for model in dict.fromkeys(result.model for result in results):
        own = [result for result in results if result.model == model]
        names = _names(own)[:COLUMNS]
        table = new_table(title=f"{own[0].task}: {model}")
        table.add_column("data set")
        for name in (*names, own[0].unit):
            heading = name.replace("-", " ").replace("_", " ")
            table.add_column(cell(heading), justify="right", no_wrap=name == own[0].main)
        for result in own:
            for number, (title, values) in enumerate((*_rows(result), *_readings(result))):
                cells = [_cell(values.get(name), bounds=name == result.main) for name in names]
                table.add_row(cell(title), *cells, "" if number else f"{result.items:,}")
        screen.print(table)
    _show_notes(screen.print, results)
    if found:
        _show_comparisons(found)


def _rows(result: Scores) -> list[tuple[str, dict[str, Score]]]:
    """One row of numbers; with several similarities, one for each."""
    from gemel.vectors.similarity import METRICS

    by_metric: dict[str, dict[str, Score]] = {}
    for name, score in result.values.items():
        plain, _, metric = name.rpartition("-")
        if metric in METRICS:
            by_metric.setdefault(metric, {})[plain] = score
    if not by_metric:
        return [(result.dataset, dict(result.values))]
    return [(f"{result.dataset} {metric}", values) for metric, values in by_metric.items()]


def _names(results: Sequence[Scores]) -> list[str]:
    """The numbers of the data sets, each once."""
    return list(dict.fromkeys(name for result in results for _, values in _rows(result) for name in values))


def _readings(result: Scores) -> list[tuple[str, dict[str, Score]]]:
    """Parts over the same items, such as cross-validation next to the plain cosine; sub-sets are for the report."""
    return [
        (part.dataset, dict(part.values))
        for part in result.parts
        if part.items == result.items and part.values != result.values
    ]


def _show_notes(write: Any, results: Sequence[Scores]) -> None:  # noqa: ANN401 - rich's print
    """Values that are not defined, data that was left out, and values that are not in the table, once each."""
    undefined = {
        f"{result.dataset}: {name} is not defined: {score.note}"
        for result in results
        for name, score in result.values.items()
        if score.value is None
    }
    left = list(dict.fromkeys(name for result in results for name in result.protocol.get("left_out", ())))
    notes = sorted(undefined) + ([f"test splits only; left out: {', '.join(left)}"] if left else [])
    more = _names(results)[COLUMNS:]
    notes += [f"more with --json or -o: {', '.join(more)}"] if more else []
    for note in notes:
        write(cell(note), style="dim")


def _show_comparisons(found: Sequence[NamedComparison]) -> None:
    screen = console()
    for first, second in dict.fromkeys((one.first, one.second) for one in found):
        table = new_table(title=f"{found[0].task}: {second} against {first}")
        for name in ("data set", "difference", "p", "verdict"):
            table.add_column(name, justify="left" if name in {"data set", "verdict"} else "right")
        for one in found:
            if (one.first, one.second) == (first, second):
                pair = one.comparison
                verdict = f"{one.better} is better" if one.better else "no significant difference"
                table.add_row(
                    cell(one.dataset),
                    f"{pair.difference:+.2f} [{pair.low:+.2f}, {pair.high:+.2f}]",
                    f"{pair.p_value:.4f}",
                    cell(verdict),
                )
        screen.print(table)


def _cell(score: Score | None, *, bounds: bool) -> str:
    if score is None:
        return ""
    if score.value is None:
        return "undefined"
    ends = score.low is not None and score.high is not None
    return (
        f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]" if bounds and ends else f"{score.value:.2f}"
    )
