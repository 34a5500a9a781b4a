"""Find hard negatives for pairs of queries and positives, as training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, report
from gemel.errors import InputError
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.model import Model
    from gemel.options import EncodeOptions

EXAMPLES = """\b
Examples:
  gemel negatives tickets.csv --text-column body --queries train.tsv -o triplets.jsonl
  gemel negatives docs.jsonl --queries train.tsv -k 3 --format tuples --skip 5 -o tuples.tsv
  gemel negatives texts.txt --queries train.tsv --rerank ./my-reranker -o triplets.tsv"""


@click.command(epilog=EXAMPLES)
@click.argument("corpus", metavar="CORPUS")
@click.option(
    "--queries",
    required=True,
    metavar="FILE",
    help="A file of queries with their positives: columns query (or anchor) and positive, or labeled pairs; .tsv, "
    ".csv, .jsonl or .parquet.",
)
@flags.out_option(
    "A file for the training data: .tsv, .csv, .jsonl or .parquet.", metavar="FILE", required=True
)
@click.option(
    "--format",
    type=click.Choice(["triplets", "tuples", "pairs"]),
    default="triplets",
    show_default=True,
    help="triplets: one row per negative. tuples: one row with all -k negatives. pairs: labeled 1 or 0.",
)
@click.option("--scores", is_flag=True, help="Add columns with the cosines.")
@flags.k_option("negatives per pair", default=5)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Pass over so many of the nearest texts, the most likely false negatives.",
)
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Texts after those of --skip that are considered.",
)
@click.option(
    "--margin", type=float, help="A negative scores at most the positive's score minus this. Default: any."
)
@click.option(
    "--ratio",
    type=float,
    default=0.95,
    show_default=True,
    help="A negative scores at most this share of the positive's score.",
)
@click.option("--no-ratio", is_flag=True, help="No limit by --ratio.")
@click.option("--max-score", type=float, help="The highest cosine of a negative. Default: any.")
@click.option(
    "--rerank",
    metavar="MODEL",
    help="A cross-encoder that reranks the candidates: those above the positive are dropped as false negatives.",
)
@click.option(
    "--rerank-margin",
    type=float,
    default=0.0,
    show_default=True,
    help="With --rerank: drop those above the positive's score minus this, too.",
)
@click.option(
    "--sampling",
    type=click.Choice(["hardest", "random"]),
    default="hardest",
    show_default=True,
    help="Which candidates that all rules allow become negatives.",
)
@flags.seed_option("--sampling random")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="ROLE=NAME",
    help="Which column of --queries has a role: anchor=title, positive=body.",
)
@click.option(
    "--positive-ids", is_flag=True, help="The positives are ids of CORPUS (else row numbers), not texts."
)
@flags.text_column_option()
@flags.id_column_option()
@flags.encoding_option
@flags.skip_bad_option
@click.option(
    "--search-memory",
    default="1GB",
    show_default=True,
    help="Memory for a block of queries, besides the corpus.",
)
@flags.json_option()
@flags.model_option
@flags.task_option()
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
    *,
    corpus: str,
    queries: str,
    out: Path,
    format: str,
    scores: bool,
    ratio: float,
    no_ratio: bool,
    rerank: str | None,
    columns: tuple[str, ...],
    text_column: str | None,
    id_column: str | None,
    skip_bad: bool,
    as_json: bool,
    model: str,
    task: str | None,
    options: EncodeOptions,
    **rules: Any,
) -> None:
    """Write hard negatives from CORPUS for each pair of --queries: texts near the query that are not its positive.

    CORPUS is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz, or a folder of
    gemel encode --keep-texts. Every text is compared. `gemel train` reads the result.
    """
    import gemel
    from gemel.cli.verbs.train import role_columns
    from gemel.files.records import existing_file
    from gemel.files.rows import check_output, write_rows

    check_output(out)
    existing_file(Path(queries))
    roles = role_columns(columns)
    documents = _corpus(corpus, text_column, id_column, skip_bad=skip_bad)
    loaded = gemel.load(model, precision=options.precision or "float32", task=task)
    if "folder" in documents:
        _check_folder(corpus, documents.pop("folder"), loaded, options)
    result = gemel.mine_negatives(
        loaded,
        queries,
        **documents,
        columns=roles,
        skip_bad=skip_bad,
        ratio=None if no_ratio else ratio,
        rerank=None if rerank is None else gemel.load_cross(rerank),
        options=options,
        **rules,
    )
    enough = result.index.shape[1] if format == "tuples" else 1
    if not (result.counts >= enough).any():
        raise InputError(
            f"no pair of {queries} has {counted(enough, 'negative')} that the rules allow, so there is nothing to "
            f"write: {'; '.join(result.summary().splitlines())}"
        )
    rows = write_rows(out, result.rows(format, scores=scores))  # type: ignore[arg-type]  # one of the choices
    report(
        {"out": str(out), "rows": rows, "format": format, **result.to_json()},
        f"{result.summary()}\n{out}: {rows:,} rows ({format})",
        as_json,
    )
    if result.skipped:
        echo(f"{queries}: {result.skipped:,} bad rows skipped", err=True)


def _corpus(path: str, text_column: str | None, id_column: str | None, *, skip_bad: bool) -> dict[str, Any]:
    """The texts and ids of a file, or those and the vectors of a folder, as keywords of `mine_negatives`."""
    if Path(path).is_dir():
        from gemel.texts.encode_folder import read_folder

        if text_column or id_column:
            raise InputError(f"{path} is a folder of vectors, which has no columns to name")
        folder = read_folder(path)
        return {"corpus": folder.texts, "ids": folder.ids, "vectors": folder.vectors, "folder": folder}
    from gemel.cli.documents import read_input, warn_of_blank

    read = read_input(path, text_column=text_column, id_column=id_column, skip_bad=skip_bad)
    warn_of_blank(read.ids, read.texts, read.with_ids)
    return {"corpus": read.texts, "ids": read.ids}


def _check_folder(path: str, folder: Any, model: Model, options: EncodeOptions) -> None:  # noqa: ANN401
    """Refuse vectors of another model."""
    weights = folder.manifest["fingerprint"].get("weights")
    if weights is not None and weights != model.fingerprint_for(options).weights:
        raise InputError(
            f"{path} has the vectors of another model than {model.name}. Name the one that encoded it with --model"
        )
