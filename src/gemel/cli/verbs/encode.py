"""Turn texts into vectors, on the screen or in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.errors import InputError
from gemel.terminal import Progress, counted

if TYPE_CHECKING:
    from gemel.files.rows import TextRows
    from gemel.options import EncodeOptions
    from gemel.texts.encode_folder import FolderProgress, FolderResult
    from gemel.types import AnyVectors

EXAMPLES = """\b
Examples:
  gemel encode tickets.csv --text-column body --id-column number -o vectors/
  printf 'a man\\na dog\\n' | gemel encode - > vectors.jsonl
  gemel encode articles.jsonl.gz -o vectors/ --on ray"""

CLUSTER_ROWS = 8192  # rows per write when a cluster encodes, which has more than that in flight

STDOUT_ROWS = 1024  # texts between two writes: large enough for full batches, small enough for a pipe to flow


@click.command(epilog=EXAMPLES)
@click.argument("file", required=False, metavar="[FILE]")
@flags.out_option(
    "A folder for the vectors. If the run is stopped, the same command resumes it. "
    "Default: JSON lines on standard output.",
    metavar="FOLDER",
)
@flags.input_format_option
@flags.text_column_option()
@flags.id_column_option()
@flags.skip_bad_option
@click.option(
    "--format",
    type=click.Choice(["npy", "safetensors", "parquet", "jsonl"]),
    help="The format of the files in the folder. Default: npy.",
)
@click.option("--keep-texts", is_flag=True, help="Store the texts next to the vectors.")
@flags.overwrite_option("what another job wrote to the folder")
@flags.json_option("lines", more="With -o: one object with what was done.")
@flags.on_option
@flags.model_option
@flags.task_option()
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
    *,
    file: str | None,
    out: Path | None,
    model: str,
    task: str | None,
    options: EncodeOptions,
    format: str | None,
    keep_texts: bool,
    overwrite: bool,
    as_json: bool,
    on: flags.On | None,
    **reading: Any,
) -> None:
    """Turn texts into vectors.

    FILE is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz; - is standard input.
    """
    if out is None and (overwrite or format not in (None, "jsonl")):
        raise InputError("--format and --overwrite need a folder. Name it with -o")
    if out is None and on is not None:
        raise InputError("--on ray writes a folder. Name it with -o")
    rows = _open_input(file, **reading)
    settings = _quiet(options)
    with flags.machine(on, model, options, task) as where:
        if out is None:
            started, encoder = perf_counter(), _CountingEncoder(where.model, settings)
            line = Progress(None, "texts", shown=options.progress and not sys.stdout.isatty())
            _to_stdout(encoder, rows, keep_texts, line)
            line.close()
            _say(f"{encoder.counts.summary()}, {perf_counter() - started:.1f} s", rows)
            return
        job = {"format": format or "npy", "keep_texts": keep_texts, "overwrite": overwrite}
        done = _to_folder(where, rows, out, settings, options.progress, job)
    if as_json:
        echo_json(done)


def _to_folder(
    where: flags.Machine, rows: TextRows, out: Path, settings: EncodeOptions, shown: bool, job: dict[str, Any]
) -> dict[str, Any]:
    """Encode to a folder; what was done, as JSON values."""
    from gemel.texts.encode_folder import encode_to_folder, fingerprint_of

    model: Any = where.model
    source: Any = rows
    if where.cluster is not None:
        from gemel.integrations.ray.encode import RowPrefetcher

        model = source = RowPrefetcher(where.model, rows, settings)  # it reads rows and encodes them
        job["checkpoint_rows"] = CLUSTER_ROWS
    encoder = _CountingEncoder(model, settings)
    line = Progress(None, "texts", shown=shown)
    result = encode_to_folder(
        encoder,
        source,
        out,
        fingerprint=fingerprint_of(model, settings),
        progress=_shows(source, line),
        **job,
    )
    line.close()
    _say(_summary(result, encoder.counts), rows)
    where.done("encode", result.encoded_now)
    facts = {**asdict(result), "path": str(result.path), **asdict(encoder.counts)}
    return {"out": facts.pop("path"), **facts, "skipped": rows.skipped}


def _open_input(
    file: str | None,
    input_format: Any,  # noqa: ANN401 - one of click's choices, which are those of read_rows
    text_column: str | None,
    id_column: str | None,
    skip_bad: bool,
) -> TextRows:
    from gemel.files.rows import read_rows

    if file is None and sys.stdin.isatty():
        raise InputError("no input: name a file, or give - to read what is typed or piped")
    rows = read_rows(
        file or "-", text_column=text_column, id_column=id_column, format=input_format, skip_bad=skip_bad
    )
    return rows.started()


def _quiet(options: EncodeOptions) -> EncodeOptions:
    # The last line reports how many texts were cut; there should be no warning for every block.
    on_long = "truncate" if options.on_long == "warn" else options.on_long
    return replace(options, on_long=on_long, progress=False)


@dataclass
class _Counts:
    """What happened to the texts, added up over all blocks."""

    texts: int = 0
    repeated: int = 0
    cut: int = 0
    lost: int = 0

    def summary(self) -> str:
        cut = f"{self.cut:,} cut ({self.lost:,} tokens lost)" if self.cut else "none cut"
        return f"{counted(self.texts, 'text')}, {self.repeated:,} repeated, {cut}"


@dataclass
class _CountingEncoder:
    """The model with its options fixed."""

    model: Any  # gemel.Model; tests use a fake
    options: EncodeOptions
    counts: _Counts = field(default_factory=_Counts)

    @property
    def dim(self) -> int:
        return int(self.options.dim or self.model.dim)

    def encode(self, texts: Sequence[str]) -> AnyVectors:
        report = self.model.encode_report(texts, self.options)
        cut = report.truncated
        self.counts.texts += len(texts)
        self.counts.repeated += report.duplicates
        self.counts.cut += len(cut)
        self.counts.lost += int((report.tokens - report.kept)[cut].sum())
        vectors: AnyVectors = report.vectors
        return vectors


def _to_stdout(encoder: _CountingEncoder, rows: TextRows, keep_texts: bool, line: Progress) -> None:
    from gemel.texts.encode_folder import take
    from gemel.texts.folder_files import json_rows

    out = sys.stdout.buffer
    while block := take(rows, STDOUT_ROWS):
        texts = [row.text for row in block]
        try:
            vectors = encoder.encode(texts)
        except InputError as error:
            raise InputError(
                f"{error} (positions count from row {encoder.counts.texts} of the input)"
            ) from error
        kept = texts if keep_texts else None
        for each in json_rows([row.id for row in block], vectors, kept, numbered=not rows.with_ids):
            out.write(each)
        out.flush()
        done = encoder.counts.texts
        line.reached(done, done / rows.fraction if rows.fraction else None)


def _shows(rows: TextRows, line: Progress) -> Callable[[FolderProgress], None]:
    """Reports to the line; the number of rows is estimated from the part of the file that was read."""

    def show(state: FolderProgress) -> None:
        total = state.rows / rows.fraction if rows.fraction else None
        line.reached(state.rows, total, before=state.rows - state.encoded_now)

    return show


def _summary(result: FolderResult, counts: _Counts) -> str:
    if not result.encoded_now and result.resumed:
        return f"already complete: {counted(result.rows, 'text')} in {result.path}"
    before = f" ({result.resumed:,} were there already)" if result.resumed else ""
    rate = result.encoded_now / max(result.seconds, 1e-9)
    now = f"now {counts.summary()}, {result.seconds:.1f} s, {rate:,.0f}/s"
    return f"{result.path}: {counted(result.rows, 'row')}{before}; {now}"


def _say(line: str, rows: TextRows) -> None:
    if rows.skipped:
        line += f"; {rows.skipped_summary()}"
    echo(line, err=True)
