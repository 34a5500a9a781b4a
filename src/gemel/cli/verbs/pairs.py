"""Find the most similar pairs of texts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import RowsOut, echo
from gemel.errors import InputError

if TYPE_CHECKING:
    from gemel.cli.documents import InputRows
    from gemel.options import EncodeOptions
    from gemel.texts.search import TextPairs

EXAMPLES = """\b
Examples:
  gemel pairs tickets.csv --text-column body -k 20
  gemel pairs tickets.csv --text-column body --expected-false 1 -o pairs.tsv
  gemel pairs tickets.csv --text-column body --labels labeled.tsv --target-precision 0.8
  gemel pairs questions.txt --other answers.txt --min-score 0.8 | head"""

_DEFAULT = 20

_CHECKED = 100  # pairs of a table whose words are compared: as many as a terminal shows


@click.command(epilog=EXAMPLES)
@click.argument("file", metavar="FILE")
@flags.text_column_option()
@flags.id_column_option()
@flags.encoding_option
@flags.skip_bad_option
@click.option("--other", metavar="FILE", help="Compare with the texts of this file, not within the first.")
@click.option(
    "--other-text-column",
    metavar="NAME",
    help="The column of --other with the texts. Default: --text-column.",
)
@flags.k_option(f"best pairs. Default: {_DEFAULT} without --min-score, --expected-false and --labels")
@flags.min_score_option("of a pair; all such pairs are returned")
@click.option(
    "--expected-false",
    type=float,
    metavar="N",
    help="All pairs above the score that N random pairs of this corpus are expected to reach.",
)
@click.option(
    "--labels",
    "label_file",
    metavar="FILE",
    help="Some labeled pairs: left_text, right_text (or sentence1, sentence2) and label, 0 or 1.",
)
@click.option(
    "--target-precision",
    type=float,
    metavar="P",
    help="With --labels: as many pairs as possible of which the share P is estimated to be correct, such as 0.9.",
)
@click.option("--calibrate", "calibrated", is_flag=True, help="Show how many random pairs reach each score.")
@flags.fast_option
@flags.rows_out_option(" Pairs that do not fit into memory are kept on disk beside it.")
@flags.on_option
@flags.model_option
@flags.task_option()
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
    *,
    file: str,
    text_column: str | None,
    id_column: str | None,
    skip_bad: bool,
    other: str | None,
    other_text_column: str | None,
    label_file: str | None,
    candidates_each: int | None,
    target: RowsOut,
    model: str,
    task: str | None,
    options: EncodeOptions,
    on: flags.On | None,
    **request: Any,
) -> None:
    """Find the most similar pairs of the texts of FILE: exact, every pair compared.

    FILE is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz; - is standard input.
    A model with a classification head adds the probability of each label. Printed pairs that a number, a negation or
    swapped roles set apart, as far as English words show it, are marked as differences.
    """
    import gemel
    from gemel.cli.documents import read_input, warn_of_blank

    _check_combination(on, candidates_each, label_file, request["target_precision"])
    request["labels"] = None if label_file is None else _read_labels(label_file)
    if all(request[name] is None for name in ("k", "min_score", "expected_false", "labels")):
        request["k"] = _DEFAULT
    read = partial(read_input, id_column=id_column, skip_bad=skip_bad)
    first = read(file, text_column=text_column)
    second = None if other is None else read(other, text_column=other_text_column or text_column)
    for each in (first, *([second] if second else [])):
        warn_of_blank(each.ids, each.texts, each.with_ids)
    # The finished tiles of a cluster are kept on disk as well, so that a stopped run can be resumed.
    streamed = request["k"] is None or on is not None
    working = target.out.with_name(f".{target.out.name}.pairs") if target.out and streamed else None
    with flags.machine(on, model, options, task) as where:
        result = gemel.find_pairs(
            where.model,
            first.texts,
            other=None if second is None else second.texts,
            options=options,
            out=working,
            find=where.find_pairs(),
            **request,
            **flags.student_of(where.model, candidates_each, options),
        )
        where.done("pairs", len(first.rows) + len(second.rows if second else ()))
    _put(target, result, first, second)
    if working is not None:
        shutil.rmtree(working, ignore_errors=True)
    for note in (result.calibration, result.precision):
        if note is not None:
            echo(note.summary(), err=True)
    echo(result.summary(), err=True)


def _check_combination(
    on: flags.On | None, candidates_each: int | None, label_file: str | None, target_precision: float | None
) -> None:
    if on is not None and candidates_each is not None:
        raise InputError("--fast and --on are two ways to be faster. Choose one")
    if (label_file is None) != (target_precision is None):
        raise InputError("--labels FILE and --target-precision P belong together: give both")
    if label_file is not None and candidates_each is not None:
        raise InputError("--labels needs the scores of all pairs, which --fast does not compute. Choose one")


def _put(target: RowsOut, result: TextPairs, left: InputRows, right: InputRows | None) -> None:
    """The pairs to the output; printed ones with what sets them apart."""
    from gemel.cli.documents import with_names

    rows = result.rows(left.ids, None if right is None else right.ids)
    named = with_names(rows, {"left": left.with_ids, "right": (right or left).with_ids})
    if target.out is None:
        lines = target.as_json or not sys.stdout.isatty()
        named = map(_with_differences, named) if lines else _marked(named)
    target.put(named, hidden=("left", "right"))


def _read_labels(path: str) -> list[tuple[str, str, int]]:
    from gemel.evaluation.data import binary_labels, read_table

    table = read_table(path)
    left, right = table.texts("left_text", "sentence1"), table.texts("right_text", "sentence2")
    return list(zip(left, right, map(int, binary_labels(table)), strict=True))


def _with_differences(row: dict[str, Any]) -> dict[str, Any]:
    from gemel.texts.explanation import differences

    return {**row, "differences": list(differences(row["left_text"], row["right_text"]))}


def _marked(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of a table: with a column of differences if any of the shown pairs has some."""
    plain = list(islice(rows, _CHECKED))
    marked = [_with_differences(row) for row in plain]
    return chain(marked if any(row["differences"] for row in marked) else plain, rows)
