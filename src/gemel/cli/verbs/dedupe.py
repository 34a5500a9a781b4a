"""Write a file without its duplicates, and a report of why."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import cell, console, echo, echo_json, new_table
from gemel.errors import InputError, WorkError

if TYPE_CHECKING:
    from gemel.groups.dedupe import DedupeResult
    from gemel.groups.dedupe_files import Documents
    from gemel.options import EncodeOptions

EXAMPLES = """\b
Examples:
  gemel dedupe tickets.csv --text-column title --text-column body -o clean/
  gemel dedupe texts.txt --exact-only -o clean/"""

ROWS = 15  # groups shown on a terminal


@click.command(epilog=EXAMPLES)
@click.argument("file", metavar="FILE")
@flags.out_option(
    "A folder for kept.*, removed.*, report.html and report.json.", metavar="FOLDER", required=True
)
@flags.min_score_option("of a duplicate", default=0.9)
@click.option("--exact-only", is_flag=True, help="Only texts that are equal; no model is needed.")
@click.option(
    "--keep",
    type=click.Choice(["first", "longest", "central"]),
    default="first",
    show_default=True,
    help="Which of several duplicates to keep; central is the one with the most duplicates.",
)
@click.option(
    "--ignore-case/--no-ignore-case",
    default=True,
    show_default=True,
    help="Upper and lower case are the same.",
)
@click.option(
    "--ignore-space/--no-ignore-space",
    default=True,
    show_default=True,
    help="Any run of spaces is one space.",
)
@flags.text_column_option("May be repeated: the columns are read as one text.", multiple=True)
@flags.id_column_option()
@flags.encoding_option
@flags.skip_bad_option
@click.option("--pairs-memory", default="1GB", show_default=True, help="Memory for the pairs.")
@flags.json_option(piped=True)
@flags.model_option
@flags.task_option()
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
    *,
    file: str,
    out: Path,
    text_column: tuple[str, ...],
    id_column: str | None,
    skip_bad: bool,
    exact_only: bool,
    min_score: float,
    pairs_memory: str,
    as_json: bool,
    model: str,
    task: str | None,
    options: EncodeOptions,
    **given: Any,
) -> None:
    """Write FILE without its duplicates, and what was removed with its reason.

    FILE is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz. Rows keep all their
    columns. Texts that are too long for the model are read in chunks, unless --on-long says otherwise.
    """
    from gemel.cli.documents import warn_of_blank
    from gemel.groups.dedupe_files import read_documents

    documents = read_documents(file, text_columns=text_column, id_column=id_column, skip_bad=skip_bad)
    if documents.skipped.count:
        echo(documents.skipped.summary(), err=True)
    warn_of_blank(documents.ids, documents.texts, documents.with_ids)
    if exact_only:
        result = _dedupe(documents, None, options, {**given, "min_score": None})
    else:
        settings = {**given, "min_score": min_score, "memory": pairs_memory}
        result = _dedupe(documents, (model, task), options, settings)
    _write(out, documents, result, None if exact_only else model)
    if as_json or not sys.stdout.isatty():
        counts = {name: result.to_json()[name] for name in ("texts", "kept", "removed", "exact")}
        more = {"spared": len(result.spared), "skipped": documents.skipped.count}
        echo_json({"out": str(out), **counts, **more})
    else:
        _show(result, documents)
    echo(f"{out}: {result.summary()}", err=True)


def _dedupe(
    documents: Documents,
    model: tuple[str, str | None] | None,
    options: EncodeOptions,
    settings: dict[str, Any],
) -> DedupeResult:
    """`model`: its name and the task to load it for."""
    import gemel

    if options.output == "binary":
        raise InputError(
            "duplicates are found by cosines, which binary vectors do not have. Leave out --output"
        )
    if model is not None:
        settings["model"] = gemel.load(model[0], precision=options.precision or "float32", task=model[1])
        settings["options"] = replace(options, on_long="chunk") if options.on_long == "warn" else options
        settings |= {"threads": options.threads, "progress": options.progress}
    return gemel.dedupe(documents.texts, **settings)


def _write(out: Path, documents: Documents, result: DedupeResult, model: str | None) -> None:
    from gemel.groups.dedupe_files import page, write_documents, write_json

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_documents(out, documents, result)
        write_json(out / "report.json", documents, result, model)
        (out / "report.html").write_text(page(documents, result, model), encoding="utf-8")
    except OSError as error:
        raise WorkError(f"cannot write to {out}: {error}") from error


def _show(result: DedupeResult, documents: Documents) -> None:
    table = new_table()
    table.add_column("removed", justify="right")
    table.add_column("id" if documents.with_ids else "row", overflow="fold")
    for name in ("kept", "for example"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1)
    groups = result.groups()
    for group in groups[:ROWS]:
        texts = (documents.texts[group.kept], documents.texts[group.removed[0]])
        kept = cell(documents.ids[group.kept])
        table.add_row(f"{len(group.removed):,}", kept, *(cell(" ".join(text.split())) for text in texts))
    screen = console()
    screen.print(table)
    if len(groups) > ROWS:
        screen.print(f"and {len(groups) - ROWS:,} more groups in report.html", style="dim")
