"""Flags that several verbs share: one spelling, one description, with room for what is special to a verb.

Flags of encoding, training, serving and planning are generated from dataclasses of options, one for each field.
`--on ray` gives a command its model and search functions, on this machine or on a cluster.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click

from gemel.cli.output import RowsOut, echo
from gemel.errors import InputError, WorkError
from gemel.options import EncodeOptions

if TYPE_CHECKING:
    from gemel.integrations.ray.cluster import RayCluster
    from gemel.model import Model
    from gemel.vectors.pair_scan import Pairs
    from gemel.vectors.search import Hits

DEFAULT_MODEL = "all-MiniLM-L6-v2"

CLUSTER_BLOCK = 16_384  # documents per commit, at least, so that all workers are busy between two commits

Function = Callable[..., Any]  # a click callback: its arguments are whatever its decorators declare

Decorator = Callable[[Function], Function]

_JSON = {"object": "Print one JSON object.", "lines": "Print JSON lines, one object per row."}

TEXT_COLUMN = 'The column with the texts. Default: "text", or the only column with strings.'

PROGRESS = "Show texts per second and the time left on standard error."

WHEN_SHOWN = "Default: yes; a line every 30 seconds unless that is a terminal."

PRECISION = (
    "Numbers used in the computation: float32, bfloat16 (float32 where the processor cannot) or int8 (fastest, "
    "nearly as good)."
)
PRECISIONS = ["float32", "bfloat16", "int8"]


def json_option(
    shape: Literal["object", "lines"] = "object", *, piped: bool = False, more: str = ""
) -> Decorator:
    """`--json`, as the argument `as_json`. `piped`: what is not shown on a terminal is JSON anyway."""
    help = " ".join(part for part in (_JSON[shape], more, "The same when piped." if piped else "") if part)
    return click.option("--json", "as_json", is_flag=True, help=help)


def out_option(help: str, *, metavar: Literal["FILE", "FOLDER", "PATH"], **settings: Any) -> Decorator:
    """`-o`, `--out`: where the result is written; PATH may be a file or a folder."""
    kind = click.Path(path_type=Path, file_okay=metavar != "FOLDER")
    return click.option(
        "-o", "--out", type=kind, metavar=metavar, callback=_can_be_written, help=help, **settings
    )


def _can_be_written(_: click.Context, __: click.Parameter, out: Path | None) -> Path | None:
    """Refuse a path that cannot be written before any work is done, not after hours of it."""
    if out is None:
        return None
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise click.BadParameter(f"{above} is a file, so nothing can be written below it")
    if not os.access(out if out.exists() else above, os.W_OK):
        raise click.BadParameter(f"{out if out.exists() else above} cannot be written to")
    return out


def rows_out_option(more: str = "") -> Decorator:
    """`-o`, `--escape-formulas` and `--json`; the command gets them as one argument `target`, which was checked."""
    out = out_option(f"A file for the rows: .tsv, .csv, .jsonl or .parquet.{more}", metavar="FILE")
    escape = click.option(
        "--escape-formulas",
        is_flag=True,
        help="Put ' before texts of .csv and .tsv that a spreadsheet would evaluate (= + - @).",
    )

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
            target = RowsOut(*(values.pop(name) for name in ("out", "as_json", "escape_formulas")))
            target.check()
            return function(*arguments, target=target, **values)

        return out(escape(json_option("lines", piped=True)(call)))

    return decorate


def overwrite_option(what: str) -> Decorator:
    """`--overwrite`: nothing is replaced without it."""
    return click.option("--overwrite", is_flag=True, help=f"Replace {what}.")


def text_column_option(more: str = "", *, multiple: bool = False) -> Decorator:
    """`--text-column`."""
    help = f"{TEXT_COLUMN} {more}".strip()
    return click.option("--text-column", multiple=multiple, metavar="NAME", help=help)


def id_column_option(default: str = '"id" if there is one; else rows are numbered from 0') -> Decorator:
    """`--id-column`."""
    help = f"The column with the ids. Default: {default}."
    return click.option("--id-column", metavar="NAME", help=help)


def encoding_option(function: Function) -> Function:
    """`--encoding`: everything that the command reads has it unless the code names another."""

    @wraps(function)
    def call(*arguments: Any, encoding: str | None, **values: Any) -> Any:  # noqa: ANN401
        if encoding is None:
            return function(*arguments, **values)
        from gemel.files.records import check_encoding, reading_as

        with reading_as(check_encoding(encoding)):
            return function(*arguments, **values)

    help = "The encoding of text files, such as cp1252 or utf-16. Default: utf-8."
    return click.option("--encoding", metavar="NAME", help=help)(call)


def input_format_option(function: Function) -> Function:
    """`--input-format` and `--encoding`."""
    option = click.option(
        "--input-format",
        type=click.Choice(["txt", "jsonl", "csv", "tsv", "parquet"]),
        help="The format of FILE. Default: by its name; txt for standard input.",
    )
    return option(encoding_option(function))


skip_bad_option = click.option(
    "--skip-bad/--no-skip-bad",
    default=False,
    help="Leave out rows that cannot be used, and report how many.",
)


def k_option(what: str, default: int | None = None) -> Decorator:
    """`-k`, `--k`: how many results."""
    return click.option(
        "-k", "--k", type=click.IntRange(1), default=default, show_default=True, help=f"How many {what}."
    )


def min_score_option(what: str, default: float | None = None) -> Decorator:
    """`--min-score`: a cosine."""
    return click.option(
        "--min-score", type=float, default=default, show_default=True, help=f"The lowest cosine {what}."
    )


def seed_option(what: str, default: int | None = 0) -> Decorator:
    """`--seed`; with `default` None the library's own is used, which is 0 too."""
    help = f"Seed of {what}." + (" Default: 0." if default is None else "")
    return click.option("--seed", type=click.IntRange(0), default=default, show_default=True, help=help)


threads_option = click.option(
    "--threads", type=click.IntRange(1), help="CPU cores to use. Default: all that the process may use."
)


progress_option = click.option("--progress/--no-progress", default=None, help=f"{PROGRESS} {WHEN_SHOWN}")


def shows_progress(progress: bool | None) -> bool:
    """Whether to show progress: as the flag says, else yes. Short work that is not on a terminal shows none."""
    return progress is not False


precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="float32",
    show_default=True,
    help=PRECISION,
)


def candidates_option(what: str) -> Decorator:
    """`--candidates`."""
    help = f"{what} per query that --hybrid and --rerank consider. Default: 50, or -k if that is more."
    return click.option("--candidates", type=click.IntRange(1), help=help)


model_option = click.option(
    "-m",
    "--model",
    default=DEFAULT_MODEL,
    show_default=True,
    metavar="NAME",
    help="A model's name, or its folder.",
)


KIND_OPTIONS = (
    click.option(
        "--sparse",
        metavar="MODEL",
        help="A sparse encoder (SPLADE), by name or folder: its weights of words are stored too.",
    ),
    click.option(
        "--late",
        metavar="MODEL",
        help="A model for late interaction (ColBERT), by name or folder: its vectors of tokens are stored too.",
    ),
    click.option(
        "--late-form",
        type=click.Choice(["float16", "int8", "2bit"]),
        help="Numbers in which vectors of tokens are stored; 2bit: by migrate. Default: float16, or as in the index.",
    ),
)

MODES = ("dense", "sparse", "late", "words", "hybrid")


new_mode_option = click.option(
    "--mode",
    type=click.Choice(MODES),
    help="How it is searched unless a search says otherwise. Default: by all kinds of vectors that it has.",
)

passage_tokens_option = click.option(
    "--passage-tokens",
    type=click.IntRange(8),
    help="Longer documents are stored as passages of at most this many tokens. Default: what the model reads; 128 with "
    "--late-chunks.",
)

late_chunks_option = click.option(
    "--late-chunks/--no-late-chunks",
    default=None,
    help="The model reads a document as a whole, and the vectors of its passages know what is around them. For models "
    "with mean pooling. Default: no, or as in the index.",
)


def kind_options(function: Function) -> Function:
    """`--sparse`, `--late` and `--late-form`: further kinds of vectors of an index."""
    for option in reversed(KIND_OPTIONS):
        function = option(function)
    return function


def mode_options(function: Function) -> Function:
    """`--mode` and `--weights`: how an index is searched; `weights_of` reads the weights."""
    weights = click.option(
        "--weights",
        metavar="NAME=NUMBER,...",
        help="Of the rankings that hybrid search combines, e.g. dense=1,sparse=2,words=0.5; 0 leaves one out.",
    )
    mode = click.option(
        "--mode",
        type=click.Choice(MODES),
        help="By which vectors, or by words (BM25); hybrid combines the rankings of all. Default: as in the index.",
    )
    return mode(weights(function))


def weights_of(given: str | None) -> dict[str, float] | None:
    """The value of `--weights` as names and numbers."""
    if given is None:
        return None
    parts = [part.partition("=") for part in given.split(",")]
    try:
        return {name.strip(): float(number) for name, _, number in parts}
    except ValueError:
        raise InputError(f"--weights takes names and numbers, like dense=1,sparse=2; got {given!r}") from None


_TASK = "Of a model with adapters for several tasks, such as jina-embeddings-v3: the one to use."


def task_option(name: str = "--task") -> Decorator:
    """`--task`: that of `gemel.load`; a verb with tasks of another kind gives it another name."""
    return click.option(name, metavar="NAME", help=f"{_TASK} Default: those for both sides of a search.")


def model_for_task(function: Function) -> Function:
    """`--task`; with it, the command gets the loaded model as `model` instead of its name."""

    @wraps(function)
    def call(*arguments: Any, model: str | None, task: str | None, **values: Any) -> Any:  # noqa: ANN401
        if model is None or task is None:
            return function(*arguments, model=model, **values)
        import gemel

        return function(*arguments, model=gemel.load(model, task=task), **values)

    return task_option()(call)


def options_of(cls: type[Any]) -> Decorator:
    """A flag for every field of a dataclass of options; the function gets all of them as one argument `options`."""
    names = [field.name for field in fields(cls)]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
            settings = {name: values.pop(name) for name in names}
            if "progress" in settings:
                settings["progress"] = shows_progress(settings["progress"])
            return function(*arguments, options=cls(**settings), **values)

        docs, types = field_docs(cls), get_type_hints(cls)
        decorated: Function = call
        for field in reversed(fields(cls)):  # click shows the last decorator first
            default, help = field.default, flag_help(docs.get(field.name, ""), names)
            if field.name == "progress":
                default, help = None, f"{help} {WHEN_SHOWN}"
            if default is MISSING:
                kind = types[field.name]
                decorated = click.option(f"--{field.name}", type=kind, required=True, help=help)(decorated)
            else:
                decorated = flag_of(field.name, types[field.name], default=default, help=help)(decorated)
        return decorated

    return decorate


def flag_of(name: str, annotation: object, *, default: Any, help: str) -> Decorator:  # noqa: ANN401
    """The flag of one field: its name with hyphens, its type. Its environment variables: config.py."""
    flag = "--" + name.replace("_", "-")
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    shape: dict[str, Any] = {}
    if get_origin(annotation) is tuple:
        shape = {"type": kinds[0], "multiple": True}
        help = f"{help} May be repeated."
    elif get_origin(annotation) is Literal or get_origin(kinds[0]) is Literal:
        literal = annotation if get_origin(annotation) is Literal else kinds[0]
        shape = {"type": click.Choice(get_args(literal))}
    elif kinds == [bool]:
        flag = f"{flag}/--no-{flag[2:]}"
    else:
        shape = {"type": kinds[0] if len(kinds) == 1 else str}
    shown = default is not None and default != ()
    return click.option(flag, name, default=default, show_default=shown, help=help, **shape)


def flag_help(doc: str, names: list[str]) -> str:
    """A field's docstring for the command line: flags instead of Python names."""
    for name in names:
        doc = doc.replace(f"`{name}`", "--" + name.replace("_", "-"))
    return re.sub(r"\bNone: ", "Default: ", doc)


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, by field; empty if the source is not available."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return {}
    docs: dict[str, str] = {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for node, below in pairwise(body):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = " ".join(doc.split())
    return docs


encode_options = options_of(EncodeOptions)
"""A flag for every field of EncodeOptions; the function gets all of them as one argument `options`."""


def query_options(function: Function) -> Function:
    """[QUERY]..., `--queries`, `--query-column` and `--encoding`, for `read_queries`."""
    column = click.option("--query-column", metavar="NAME", help="The column of --queries with the texts.")
    file = click.option(
        "--queries", metavar="FILE", help="A file of queries: .txt, .jsonl, .csv, .tsv or .parquet."
    )
    return click.argument("query", nargs=-1, metavar="[QUERY]...")(file(column(encoding_option(function))))


def where_option(what: str) -> Decorator:
    """`--where`: a condition on fields."""
    return click.option(
        "--where", metavar="CONDITION", help=f"{what} that meet it: \"year >= 2020 and lang = 'en'\"."
    )


def read_queries(typed: tuple[str, ...], path: str | None, column: str | None) -> list[str]:
    """The queries of the command line, then those of the file."""
    from gemel.files.rows import read_texts

    rows = read_texts(path, text_column=column) if path else ()
    queries = [*typed, *(row.text for row in rows)]
    if not queries:
        raise InputError("no query. Give QUERY or --queries FILE")
    return queries


fast_option = click.option(
    "--fast",
    "candidates_each",
    type=click.IntRange(1),
    metavar="N",
    help="A static student of the model (created once, then cached) proposes N candidates per result, the model "
    "scores only those; the recall is measured and shown. Start with 10; more finds more.",
)


def student_of(model: Model, candidates: int | None, options: EncodeOptions) -> dict[str, Any]:
    """Keywords of `search_texts` and `find_pairs` for a student; none without `--fast`."""
    if candidates is None:
        return {}
    import gemel
    from gemel.training.distill.static_table import make_static

    student = gemel.load(make_static(model, threads=options.threads, progress=options.progress))
    return {"student": student, "student_candidates": candidates}


@dataclass(frozen=True)
class On:
    """The values of the flags."""

    where: str
    workers: int | None
    job_summary: Path | None

    @contextmanager
    def opened(self, threads: int | None) -> Iterator[RayCluster]:
        """The cluster, open until the command ends."""
        from gemel.integrations.ray.cluster import open_cluster

        with open_cluster(self.where, workers=self.workers, threads=threads or 1) as cluster:
            yield cluster


def on_option(function: Function) -> Function:
    """`--on`, `--workers` and `--job-summary`; the command gets them as one argument `on`, None for this machine."""

    @wraps(function)
    def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
        where, workers, summary = (values.pop(name) for name in ("on", "workers", "job_summary"))
        if where is None and (workers is not None or summary is not None):
            raise InputError("--workers and --job-summary need a cluster. Name it with --on ray")
        on = None if where is None else On(where, workers, summary)
        return function(*arguments, on=on, **values)

    for option in (
        click.option(
            "--job-summary",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="With --on: write what the job did (tasks, retries, nodes, seconds) as JSON.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="With --on: processes, each with --threads cores (default 1). Default: as many as fit.",
        ),
        click.option(
            "--on",
            metavar="ray[://HOST:PORT]",
            help="Run on a Ray cluster: the one of RAY_ADDRESS or of this machine, or the one at the address. "
            "The result is the same. Default: this machine alone.",
        ),
    ):
        call = option(call)
    return call


@dataclass(frozen=True)
class Machine:
    """The model and search functions of a command."""

    model: Any  # gemel.Model; that of a cluster encodes there
    on: On | None = None
    cluster: RayCluster | None = None

    def find_pairs(self) -> Callable[..., Pairs]:
        """`similar_pairs`, here or on the cluster."""
        if self.cluster is None:
            from gemel.vectors.pairs import similar_pairs

            return similar_pairs
        from gemel.integrations.ray.pairs import pairs_on_ray

        return partial(pairs_on_ray, self.cluster)

    def find_hits(self) -> Callable[..., Hits]:
        """`search`, here or on the cluster."""
        if self.cluster is None:
            from gemel.vectors.search import search

            return search
        from gemel.integrations.ray.pairs import search_on_ray

        return partial(search_on_ray, self.cluster)

    def done(self, verb: str, rows: int) -> None:
        """Report what the cluster did; nothing without one."""
        if self.cluster is None or self.on is None:
            return
        summary = self.cluster.summary(verb, rows)
        echo(summary.line(), err=True)
        if self.on.job_summary is not None:
            text = json.dumps(summary.to_json(), indent=2) + "\n"
            try:
                self.on.job_summary.write_text(text, encoding="utf-8")
            except OSError as error:
                raise WorkError(f"cannot write {self.on.job_summary}: {error}") from error


@contextmanager
def machine(on: On | None, model: str, options: EncodeOptions, task: str | None = None) -> Iterator[Machine]:
    """The model on this machine or on the cluster."""
    precision = options.precision or "float32"
    if on is None:
        import gemel

        yield Machine(gemel.load(model, precision=precision, task=task))
        return
    from gemel.integrations.ray.encode import load_on_ray

    with on.opened(options.threads) as cluster:
        yield Machine(load_on_ray(model, cluster, precision=precision, task=task), on, cluster)


@contextmanager
def machine_of_index(on: On | None, location: str) -> Iterator[Machine]:
    """The model that the index at `location` names; None if the index loads it itself."""
    if on is None:
        yield Machine(None)
        return
    import gemel
    from gemel.integrations.ray.encode import ModelOnRay

    # The cluster first: one that is started here forks, which is not safe once the store of the index is loaded.
    with on.opened(None) as cluster:
        with gemel.open_index(location, create=False, read_only=True) as index:
            named: Model | None = index.model
        if named is None:
            raise InputError(f"the index {location} has no model, so there is nothing to encode on a cluster")
        yield Machine(ModelOnRay(named.checkpoint, cluster, precision=named.precision), on, cluster)
