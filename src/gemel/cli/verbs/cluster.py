"""Group similar texts, name the groups, draw a map."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli.flags import (
    encode_options,
    id_column_option,
    input_format_option,
    json_option,
    k_option,
    min_score_option,
    model_option,
    out_option,
    seed_option,
    skip_bad_option,
    text_column_option,
)
from gemel.cli.output import cell, echo, echo_json
from gemel.errors import InputError

if TYPE_CHECKING:
    from gemel.files.rows import Row
    from gemel.groups.cluster import Clusters
    from gemel.groups.cluster_folder import ClusteredTexts
    from gemel.options import EncodeOptions

EXAMPLES = """\b
Examples:
  gemel cluster tickets.csv --text-column body --min-score 0.7 -o clusters/
  gemel cluster news.tsv.gz --text-column text --k 12 -o clusters/
  gemel cluster new.csv --text-column body --earlier clusters/ -o clusters/"""

ROWS = 40  # clusters shown on a terminal


@click.command(epilog=EXAMPLES)
@click.argument("file", metavar="FILE")
@out_option("A folder for clusters.json, assignments.tsv, vectors.npy and map.html.", place="FOLDER")
@click.option(
    "--method",
    type=click.Choice(["communities", "k-means", "spherical-k-means", "agglomerative", "hdbscan"]),
    help="Default: communities; k-means with --k.",
)
@min_score_option("inside a group, for communities and agglomerative. Default for communities: 0.75")
@k_option("clusters, for k-means and agglomerative")
@click.option("--min-size", type=int, default=2, show_default=True, help="A smaller group is no cluster.")
@seed_option("k-means and of the map")
@click.option(
    "--earlier",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="A folder of an earlier run: the texts are added to its clusters, which keep their ids.",
)
@click.option(
    "--map",
    type=click.Choice(["tsne", "pca", "none"]),
    default="tsne",
    show_default=True,
    help="How the map is laid out; pca is faster, none leaves it out.",
)
@click.option("--cluster-memory", default="1GB", show_default=True, help="For neighbours and distances.")
@text_column_option()
@id_column_option()
@input_format_option
@skip_bad_option
@json_option("lines", piped=True, more="A row is a cluster.")
@model_option
@encode_options
def command(
    file: str,
    out: Path | None,
    earlier: Path | None,
    model: str,
    options: EncodeOptions,
    map: Any,  # noqa: ANN401 - one of click's choices, which are those of the layout
    as_json: bool,
    seed: int,
    cluster_memory: str,
    **given: Any,
) -> None:
    """Group similar texts; name the groups; draw a map.

    FILE is .txt (a text a line), .jsonl, .csv, .tsv or .parquet, each text format also with .gz; - is standard input.
    """
    reading = {name: given.pop(name) for name in ("text_column", "id_column", "input_format", "skip_bad")}
    rows = _read(file, **reading)
    work = {"memory": cluster_memory, "threads": options.threads, "progress": options.progress}
    if earlier is not None:
        if given.pop("min_size") != 2 or any(given.values()):
            raise InputError("--earlier takes the method and its settings from that folder: give none here")
        found = _added(rows, earlier, model, options, work, named=reading["id_column"] is not None)
    else:
        found = _clustered(rows, model, options, {**given, "seed": seed, **work})
    if out is not None:
        from gemel.groups.cluster_folder import write_cluster_folder

        title = f"Clusters of {Path(file).name if file != '-' else 'standard input'}"
        write_cluster_folder(out, found, title=title, map=None if map == "none" else map, seed=seed)
    _report(found.clusters, out, as_json)


def _read(file: str, skip_bad: bool, input_format: Any, **columns: str | None) -> list[Row]:  # noqa: ANN401
    from gemel.files.rows import read_rows

    rows = read_rows(file, format=input_format, skip_bad=skip_bad, **columns)
    found = list(rows)
    if rows.skipped:
        echo(f"{rows.skipped:,} bad rows skipped, the first: {rows.bad[0]}", err=True)
    return found


def _encoded(rows: list[Row], model: str, options: EncodeOptions) -> tuple[Any, dict[str, Any]]:
    """Vectors, and what they depend on."""
    import gemel

    if options.output == "binary":
        raise InputError("clusters are made of cosines, which bits do not have. Leave --output away")
    encoder = gemel.load(model, precision=options.precision or "float32")
    quiet = replace(options, on_long="truncate") if options.on_long == "warn" else options
    report = encoder.encode_report([row.text for row in rows], quiet)
    if len(report.truncated):
        echo(f"{report.summary()}; --on-long chunk reads all", err=True)
    made = {"name": encoder.name, "fingerprint": encoder.fingerprint_for(options).to_json()}
    return report.vectors, made


def _clustered(
    rows: list[Row], model: str, options: EncodeOptions, settings: dict[str, Any]
) -> ClusteredTexts:
    from gemel import cluster
    from gemel.groups.cluster_folder import ClusteredTexts

    vectors, made = _encoded(rows, model, options)
    texts = [row.text for row in rows]
    return ClusteredTexts(
        [row.id for row in rows], texts, vectors, cluster(vectors, texts=texts, **settings), made
    )


def _added(
    rows: list[Row], folder: Path, model: str, options: EncodeOptions, work: dict[str, Any], *, named: bool
) -> ClusteredTexts:
    """Without a column of ids (`named`) the new rows are numbered on from the earlier ones."""
    import numpy as np

    from gemel import cluster
    from gemel.groups.cluster_folder import ClusteredTexts, read_cluster_folder

    before = read_cluster_folder(folder)
    vectors, made = _encoded(rows, model, options)
    if made["fingerprint"] != before.model.get("fingerprint"):
        raise InputError(
            f"{folder} was made by {before.model.get('name')} with other weights or options than {model} here; "
            "vectors of two kinds cannot be compared. Use the same, or cluster all texts again"
        )
    texts = [row.text for row in rows]
    return ClusteredTexts(
        [*before.ids, *(row.id if named else str(len(before.ids) + at) for at, row in enumerate(rows))],
        [*before.texts, *texts],
        np.concatenate([before.vectors.astype(np.float32), vectors]),
        cluster(vectors, texts=texts, earlier=before.clusters, **work),
        made,
    )


def _report(found: Clusters, out: Path | None, as_json: bool) -> None:
    if as_json or (not sys.stdout.isatty() and out is None):
        for item in found.to_json()["clusters"]:
            echo_json(item)
    elif sys.stdout.isatty():
        _show(found)
    where = f"{out}: " if out is not None else ""
    echo(f"{where}{found.summary()}", err=True)


def _show(found: Clusters) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("id", "texts", "inside", "nearest"):
        table.add_column(name, justify="right")
    table.add_column("name")
    table.add_column("central text", no_wrap=True, overflow="ellipsis", ratio=1)
    for item in found.items[:ROWS]:
        nearest = "" if item.outside is None else f"{item.nearest} ({item.outside:.2f})"
        central = cell(" ".join((item.text or "").split()))
        table.add_row(str(item.id), f"{item.size:,}", f"{item.inside:.2f}", nearest, cell(item.name), central)
    console = Console(highlight=False)
    console.print(table)
    if len(found.items) > ROWS:
        console.print(f"and {len(found.items) - ROWS:,} more; all with --json or -o", style="dim")
