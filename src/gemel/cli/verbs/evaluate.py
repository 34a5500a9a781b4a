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
  gemel evaluate all-MiniLM-L6-v2 --task binary-pairs --data qqp-test.tsv.gz --metric all --json
  gemel evaluate all-MiniLM-L6-v2 bm25 --task retrieval --data nanobeir/ --hybrid --rerank ./my-reranker"""

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
@click.option("--hybrid", is_flag=True, help="Also combine the searches of all MODELs by rank (retrieval).")
@click.option(
    "--weights",
    metavar="NUMBERS",
    help="Weights of the MODELs in --hybrid, in their order: 1,0.5. Default: 1 each.",
)
@click.option(
    "--rerank",
    metavar="MODEL",
    help="A cross-encoder that reranks the best documents of each search, or a model for late interaction (retrieval).",
)
@click.option(
    "--candidates",
    type=click.IntRange(1),
    metavar="N",
    help="Documents per query that --rerank sorts. Default: 100.",
)
@click.option("--costs", is_flag=True, help="Also measure the time and memory of each search (retrieval).")
@click.option(
    "--late-form",
    type=click.Choice(["float32", "float16", "int8", "2bit"]),
    help="How token vectors of documents are stored (retrieval). Default: float32.",
)
@click.option("--pooling", help="Instead of the model's own: mean, cls, max, ...")
@flags.task_option("--model-task")
@flags.encoding_option
@flags.out_option("A folder for results.json, .md and a report.", metavar="FOLDER")
@flags.json_option("lines", piped=True, more="A row is a model on a data set.")
@flags.encode_options
def command(models: tuple[str, ...], as_json: bool, out: Path | None, **values: Any) -> None:
    """Score each MODEL on labeled data; of several, say which is better and how certain that is.

    MODEL is a model's name or folder, or a baseline such as glove:FILE, tfidf or bm25. A sparse encoder and a model for
    late interaction are recognized; sparse:MODEL and late:MODEL choose an output of a model that has several. Shares
    are in points (82.03), with the 95 % bootstrap interval in brackets. JSON has one object for each model and data
    set. With --hybrid, --rerank or --costs, all are compared with the first, and their costs are measured.
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
        _show_searches(results, found) if results[0].costs else _show(results, found)
    if out is not None:
        from gemel.evaluation.report.write import write_report

        for path in write_report(results, found, out):
            echo(f"wrote {path}", err=True)


def _on_a_terminal() -> bool:
    return sys.stdout.isatty()


def _run(  # noqa: PLR0913 - one argument per flag
    models: Sequence[str],
    *,
    task: str,
    data: Path,
    options: EncodeOptions,
    pooling: str | None,
    model_task: str | None,
    settings: tuple[str, ...],
    metric: str | None,
    rounds: int | None,
    seed: int | None,
    **search: Any,
) -> Iterator[tuple[Scores, list[NamedComparison]]]:
    """Each result as it is computed, with its comparisons to the models before it."""
    from gemel.evaluation.evaluate import compare_with, name_of, open_encoder, score_model
    from gemel.evaluation.task import load_task

    compares = _compares_searches(task, **search)
    tasks = load_task(task, data, metric=metric, rounds=rounds, seed=seed, **_settings(settings))
    if compares:
        opening = {"options": options, "pooling": pooling, "task": model_task}
        with _warnings_once():
            yield from _searches(models, tasks, opening, **search)
        return
    draws = {name: number for name, number in (("rounds", rounds), ("seed", seed)) if number}
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


def _compares_searches(
    task: str,
    *,
    hybrid: bool,
    weights: str | None,
    rerank: str | None,
    candidates: int | None,
    costs: bool,
    late_form: str | None,
) -> bool:
    """Whether the flags of searches are used; those that need another one are refused without it."""
    if weights is not None and not hybrid:
        raise InputError("--weights are those of --hybrid, and there is no --hybrid")
    if candidates is not None and rerank is None:
        raise InputError("--candidates are sorted by --rerank, and there is no --rerank")
    used = [name for name, on in (("hybrid", hybrid), ("rerank", rerank), ("costs", costs)) if on]
    if late_form is not None and not used:
        raise InputError("--late-form changes what --costs measures. Give --costs, --hybrid or --rerank too")
    if used and task != "retrieval":
        raise InputError(f"--{used[0]} is for the task 'retrieval', not for {task!r}. Leave it out")
    return bool(used)


def _searches(
    models: Sequence[str],
    tasks: Sequence[Any],
    opening: dict[str, Any],
    *,
    hybrid: bool,
    weights: str | None,
    rerank: str | None,
    candidates: int | None,
    late_form: str | None,
    **_: bool,
) -> Iterator[tuple[Scores, list[NamedComparison]]]:
    """The results of all searches, with their comparisons to the first."""
    from gemel.evaluation.search_comparison import SearchPlan, compared_searches, named_systems
    from gemel.texts.late_model import load_reranker

    systems = named_systems(models, **opening)
    numbers = _weights(weights, len(systems))
    fusions = (dict(zip(systems, numbers, strict=True)),) if hybrid else ()
    reranker = None if rerank is None else load_reranker(rerank)
    plan: dict[str, Any] = {"candidates": candidates, "late_form": late_form}
    given = {name: value for name, value in plan.items() if value is not None}
    yield from compared_searches(tasks, SearchPlan(systems, fusions, reranker, **given))


def _weights(text: str | None, count: int) -> list[float]:
    if text is None:
        return [1.0] * count
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise InputError(f"--weights takes one number for each of {count} models: 1,0.5; got {text!r}")
    return numbers


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
    _show_notes(screen.print, results, more=_names(results)[COLUMNS:])
    if found:
        _show_comparisons(found)


def _show_searches(results: Sequence[Scores], found: Sequence[NamedComparison]) -> None:
    """One table per data set: the searches down, what they find and what they cost across."""
    from gemel.evaluation.report.content import COST_NAMES, cost_text

    screen = console()
    compared = {(one.second, one.dataset): one.comparison for one in found}
    names = [name for name in _names(results) if name.startswith(("ndcg", "mrr")) or name == "recall@100"]
    for dataset in dict.fromkeys(result.dataset for result in results):
        own = [result for result in results if result.dataset == dataset]
        table = new_table(title=f"{own[0].task}: {dataset}, {own[0].items:,} {own[0].unit}")
        table.add_column("search")
        for name in (*names, f"difference to {own[0].model}", *COST_NAMES.values()):
            table.add_column(cell(name), justify="right")
        for result in own:
            pair = compared.get((result.model, dataset))
            cells = [_cell(result.values.get(name), bounds=True) for name in names]
            cells.append(f"{pair.difference:+.2f} [{pair.low:+.2f}, {pair.high:+.2f}]" if pair else "")
            cells += [cost_text(result.costs.get(name)) for name in COST_NAMES]
            table.add_row(cell(result.model), *cells)
        screen.print(table)
    _show_notes(screen.print, results, more=[name for name in _names(results) if name not in names])


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


def _show_notes(
    write: Any,  # noqa: ANN401 - rich's print
    results: Sequence[Scores],
    more: Sequence[str],
) -> None:
    """Values that are not defined, data that was left out, and values that are not in the table, once each."""
    undefined = {
        f"{result.dataset}: {name} is not defined: {score.note}"
        for result in results
        for name, score in result.values.items()
        if score.value is None
    }
    left = list(dict.fromkeys(name for result in results for name in result.protocol.get("left_out", ())))
    notes = sorted(undefined) + ([f"test splits only; left out: {', '.join(left)}"] if left else [])
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
