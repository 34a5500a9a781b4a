"""Fine-tune a model on labeled texts, with snapshots and a report."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.training.objectives.base import OBJECTIVES, ObjectiveSetting, all_settings
from gemel.training.options import TrainOptions

if TYPE_CHECKING:
    from gemel.training.run import TrainResult

EXAMPLES = """\b
Examples:
  gemel train pairs.tsv.gz --model ./bert --objective classification -o my-model
  gemel train triplets.jsonl --model all-MiniLM-L6-v2 --objective in-batch-ranking --batch-size 64 -o my-model
  gemel train stsb-train.tsv --model ./my-model --objective regression --eval-data stsb-dev.tsv -o my-model-sts
  gemel train stsb-train.tsv --model ./bert --kind cross-encoder --objective regression -o my-reranker"""


def objective_settings(function: flags.Function) -> flags.Function:
    """A flag for every setting of every objective; `function` gets those that were given as `settings`."""
    known = all_settings()

    @wraps(function)
    def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
        given = {each.name: values.pop(each.name) for each in known}
        settings = {name: value for name, value in given.items() if value is not None}
        return function(*arguments, settings=settings, **values)

    decorated: flags.Function = call
    for each in reversed(known):
        decorated = flags.flag_of(each.name, each.annotation, default=None, help=_help(each))(decorated)
    return decorated


def _help(setting: ObjectiveSetting) -> str:
    text = flags.field_docs(setting.owner).get(setting.name, "")
    owners = ", ".join(f"{name} ({default})" for name, default in setting.defaults.items())
    return f"{text} Of: {owners}."


@click.command(epilog=EXAMPLES)
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "-m",
    "--model",
    required=True,
    metavar="NAME",
    help="A model's name, or its folder: the one to start from.",
)
@click.option(
    "--objective",
    required=True,
    metavar="NAME",
    help=f"What to learn: {', '.join(OBJECTIVES)}. See: gemel objectives.",
)
@flags.out_option("A folder for the model and its run.", metavar="FOLDER", required=True)
@click.option(
    "--kind",
    type=click.Choice(["bi-encoder", "cross-encoder", "sparse", "late"]),
    default="bi-encoder",
    show_default=True,
    help="bi-encoder: one vector per text. cross-encoder: both texts through the network at once, to score pairs. "
    "sparse: weights of words (SPLADE). late: a vector of each token (ColBERT).",
)
@click.option(
    "--column", "columns", multiple=True, metavar="ROLE=NAME", help="Which column has a role: left=question1."
)
@click.option(
    "--score-range",
    type=float,
    nargs=2,
    metavar="LOW HIGH",
    help="The range of the scores. Default: taken from the data.",
)
@click.option("--pooling", help="Instead of the model's own: mean, cls, max, ...")
@click.option(
    "--eval-data", multiple=True, metavar="FILE", help="Evaluate the model on this during training."
)
@click.option(
    "--eval-task", default="sts", show_default=True, help="The task of --eval-data; see gemel evaluate."
)
@click.option("--resume", is_flag=True, help="Resume the run in --out from its last snapshot.")
@flags.encoding_option
@flags.json_option()
@flags.options_of(TrainOptions)
@objective_settings
def command(
    data: tuple[str, ...],
    options: TrainOptions,
    columns: tuple[str, ...],
    as_json: bool,
    **request: Any,
) -> None:
    """Fine-tune a model on DATA: TSV, CSV, JSONL or parquet files, each also .gz; several are mixed.

    The defaults are the recipe of Sentence-BERT: one epoch, batches of 16, AdamW with 2e-5, warmup for a tenth of the
    steps. The folder gets the model, and in training/ the metrics, the snapshots and a report.
    """
    from gemel.training.train import TrainRequest, run_request

    files: Any = list(data) if len(data) > 1 else data[0]
    training = TrainRequest(data=files, columns=role_columns(columns), **request)
    result = run_request(training, options, say=lambda line: echo(line, err=True))
    _show(result, as_json)


def role_columns(given: tuple[str, ...]) -> dict[str, str] | None:
    """ROLE=NAME, any number of times."""
    pairs = [each.partition("=") for each in given]
    for role, sign, name in pairs:
        if not (role and sign and name):
            raise click.BadParameter(f"write ROLE=NAME, got {role + sign + name!r}", param_hint="--column")
    return {role: name for role, _, name in pairs} or None


def _show(result: TrainResult, as_json: bool) -> None:
    if as_json:
        echo_json(result.to_json())
    else:
        echo(result.summary())
