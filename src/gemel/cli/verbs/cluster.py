"""Group similar texts, name the groups, draw a map."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import cell, console, echo, echo_json, new_table
from gemel.errors import InputError
from gemel.registry import Registry

if TYPE_CHECKING:
    from gemel.files.rows import Row
    from gemel.groups.cluster import Clusters
    from gemel.groups.map import ClusteredTexts
    from gemel.options import EncodeOptions

EXAMPLES = """\b
Examples:
  gemel cluster tickets.csv --text-column body --min-score 0.7 -o clusters/
  gemel cluster news.tsv.gz --text-column text --k 12 -o clusters/
  gemel cluster new.csv --text-column body --earlier clusters/ -o clusters/"""

# The names of gemel.groups.grouping.METHODS, without importing NumPy.
METHOD_NAMES = list(
    Registry("method", package="gemel.groups.methods", aliases={"spherical-k-means": "k_means"})
)

ROWS = 40  # clusters shown on a terminal

WIDE = 110  # columns of a terminal where the central text is beside the name, not below it


@click.command(epilog=EXAMPLES)
@click.argument("file", metavar="FILE")
@flags.out_option("A folder for clusters.json, assignments.tsv, vectors.npy and map.html.", metavar="FOLDER")
@click.option(
    "--method",
    type=click.Choice(METHOD_NAMES),
    help="Default: communities; k-means with --k.",
)
@flags.min_score_option("inside a group, for communities and agglomerative. Default for communities: 0.75")
@flags.k_option("clusters, for k-means and agglomerative")
@click.option("--min-size", type=int, default=2, show_default=True, help="Smaller groups are not clusters.")
@flags.seed_option("k-means and of the map")
@click.option(
    "--earlier",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="The folder of an earlier run: the texts are added to its clusters, which keep their ids.",
)
@click.option(
    "--map",
    type=click.Choice(["tsne", "pca", "none"]),
    default="tsne",
    show_default=True,
    help="The layout of the map; pca is faster, none: no map.",
)
@click.option(
    "--cluster-memory", default="1GB", show_default=True, help="Memory for neighbors and distances."
)
@flags.text_column_option()
@flags.id_column_option()
@flags.input_format_option
@flags.skip_bad_option
@flags.json_option("lines", piped=True, more="A row is a cluster.")
@flags.model_option
@flags.task_option()
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
    *,
    file: str,
    out: Path | None,
    earlier: Path | None,
    model: str,
    task: str | None,
    options: EncodeOptions,
    map: Any,  # noqa: ANN401 - one of click's choices, which are those of the layout
    as_json: bool,
    seed: int,
    cluster_memory: str,
    **given: Any,
) -> None:
    """Group similar texts, name the groups, draw a map.

    FILE is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz; - is standard input.
    """
    reading = {name: given.pop(name) for name in ("text_column", "id_column", "input_format", "skip_bad")}
    from gemel.cli.documents import read_input

    read = read_input(file, **reading)
    rows = read.rows
    work = {"memory": cluster_memory, "threads": options.threads, "progress": options.progress}
    if earlier is not None:
        if given.pop("min_size") != 2 or any(given.values()):
            raise InputError("--earlier takes the method and its settings from that folder. Leave them out")
        result = _added(rows, earlier, (model, task), options, work, named=read.with_ids)
    else:
        result = _clustered(rows, (model, task), options, {**given, "seed": seed, **work})
    if out is not None:
        from gemel.groups.map import write_cluster_folder

        title = f"Clusters of {Path(file).name if file != '-' else 'standard input'}"
        write_cluster_folder(out, result, title=title, map=None if map == "none" else map, seed=seed)
    _report(result.clusters, out, as_json)


@dataclass(frozen=True)
class _Encoded:
    vectors: Any
    model: dict[str, Any]
    """Its name and fingerprint."""
    vocabulary: list[str]
    """Its words, the most frequent first."""


_ModelAndTask = tuple[str, str | None]


def _encoded(rows: list[Row], model: _ModelAndTask, options: EncodeOptions) -> _Encoded:
    import gemel
    from gemel.groups.grouping import frequent_words

    if options.output == "binary":
        raise InputError("clustering compares cosines, which binary vectors do not have. Leave out --output")
    encoder = gemel.load(model[0], precision=options.precision or "float32", task=model[1])
    quiet = replace(options, on_long="truncate") if options.on_long == "warn" else options
    report = encoder.encode_report([row.text for row in rows], quiet)
    if len(report.truncated):
        echo(f"{report.summary()}; --on-long chunk reads all", err=True)
    encoder_facts = {"name": encoder.name, "fingerprint": encoder.fingerprint_for(options).to_json()}
    return _Encoded(report.vectors, encoder_facts, frequent_words(encoder.tokenizer))


def _clustered(
    rows: list[Row], model: _ModelAndTask, options: EncodeOptions, settings: dict[str, Any]
) -> ClusteredTexts:
    from gemel import cluster
    from gemel.groups.map import ClusteredTexts

    encoded = _encoded(rows, model, options)
    texts = [row.text for row in rows]
    clusters = cluster(encoded.vectors, texts=texts, vocabulary=encoded.vocabulary, **settings)
    return ClusteredTexts([row.id for row in rows], texts, encoded.vectors, clusters, encoded.model)


def _added(
    rows: list[Row],
    folder: Path,
    model: _ModelAndTask,
    options: EncodeOptions,
    work: dict[str, Any],
    *,
    named: bool,
) -> ClusteredTexts:
    """Without a column of ids (`named`) the numbers of the new rows continue those of the earlier ones."""
    import numpy as np

    from gemel import cluster
    from gemel.groups.map import ClusteredTexts, read_cluster_folder

    before = read_cluster_folder(folder)
    encoded = _encoded(rows, model, options)
    if encoded.model["fingerprint"] != before.model.get("fingerprint"):
        raise InputError(
            f"{folder} was created by {before.model.get('name')} with other weights or options than {model[0]} here; "
            "their vectors cannot be compared. Use the same model and options, or cluster all texts again"
        )
    texts = [row.text for row in rows]
    return ClusteredTexts(
        [*before.ids, *(row.id if named else str(len(before.ids) + at) for at, row in enumerate(rows))],
        [*before.texts, *texts],
        np.concatenate([before.vectors.astype(np.float32), encoded.vectors]),
        cluster(encoded.vectors, texts=texts, vocabulary=encoded.vocabulary, earlier=before.clusters, **work),
        encoded.model,
    )


def _report(result: Clusters, out: Path | None, as_json: bool) -> None:
    if as_json or (not sys.stdout.isatty() and out is None):
        for item in result.to_json()["clusters"]:
            echo_json(item)
    elif sys.stdout.isatty():
        _show(result)
    where = f"{out}: " if out is not None else ""
    echo(f"{where}{result.summary()}", err=True)


def _show(result: Clusters) -> None:
    screen, table = console(), new_table()
    table.expand = True  # names and texts get what the numbers leave of the line
    beside = screen.width >= WIDE
    for name in ("id", "texts", "inside", "nearest"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("name", "central text") if beside else ("name, central text",):
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1 if name == "name" else 2)
    for item in result.items[:ROWS]:
        nearest = "" if item.outside is None else f"{item.nearest} ({item.outside:.2f})"
        title, central = cell(item.name), cell(" ".join((item.text or "").split()))
        if not beside and item.keywords:
            title.stylize("bold")
            central = title + cell("\n") + central
        named = (title, central) if beside else (central,)
        table.add_row(str(item.id), f"{item.size:,}", f"{item.inside:.2f}", nearest, *named)
    screen.print(table)
    if len(result.items) > ROWS:
        screen.print(f"and {len(result.items) - ROWS:,} more; all with --json or -o", style="dim")
