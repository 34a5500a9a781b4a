"""Write a model as one ONNX or OpenVINO graph for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json

if TYPE_CHECKING:
    from gemel.export.write import ExportResult
    from gemel.model import Model

EXAMPLES = """\b
Examples:
  gemel export all-MiniLM-L6-v2 -o ./minilm-onnx
  gemel export ./my-model --precision int8 -o ./my-model.onnx"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@flags.model_for_task
@click.option(
    "--to",
    type=click.Choice(["onnx", "openvino"]),
    default="onnx",
    show_default=True,
    help="The format; openvino needs that package.",
)
@flags.out_option(
    "A folder for the graph with tokenizer and config, or a file that ends in .onnx: the graph alone.",
    metavar="PATH",
    required=True,
)
@flags.precision_option
@click.option("--dim", type=click.IntRange(1), help="Keep only the first DIM numbers. Default: all.")
@click.option(
    "--normalize/--no-normalize",
    default=None,
    help="Scale vectors to length 1. Default: as the checkpoint says.",
)
@flags.overwrite_option("an existing export")
@flags.json_option()
def command(
    model: str | Model,
    out: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Write MODEL, a name or a folder, as one graph that ONNX Runtime or OpenVINO runs without gemel.

    Inputs are token ids and a mask, the output is the vectors: pooling, dense layers and normalization are part of
    the graph. Its vectors are compared with those of gemel before anything is written.
    """
    from gemel.export import export

    done = export(model, out, **settings)
    if as_json:
        echo_json(done.to_json())
    else:
        _show(done)


def _show(done: ExportResult) -> None:
    near = done.agreement
    echo(f"{done.path}: {done.to} in {done.precision}, {done.size / 1e6:,.1f} MB, {done.dim} dimensions")
    echo(f"inputs {', '.join(done.inputs)}; output {done.output}")
    echo(
        f"checked on {near.texts} texts: values differ from those of gemel by at most {near.difference:.1e}, "
        f"cosine at least {near.cosine:.6f}"
    )
    for name, prompt in done.prompts.items():
        echo(f"prompt {name}: put {prompt!r} in front of the text; it is not in the graph")
