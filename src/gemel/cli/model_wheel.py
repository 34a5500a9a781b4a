"""`gemel models wheel`: a model as a package that pip installs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from gemel.cli.flags import json_option, out_option, overwrite_option
from gemel.cli.screen import echo, echo_json, echo_path


@click.command(
    "wheel",
    short_help="A model as a package for pip.",
    epilog="\b\nExamples:\n  gemel models wheel ./my-model --licence Apache-2.0 -o dist/"
    "\n  gemel models wheel ./my-model --licence-file LICENSE --name my-model-wheel --version 1.1",
)
@click.argument("model")
@out_option("A folder for the wheel.", place="FOLDER", default=Path("dist"), show_default=True)
@click.option(
    "--as", "called", metavar="NAME", help="What gemel.load finds it by. Default: the model's name."
)
@click.option("--name", metavar="NAME", help="What pip calls the wheel. Default: gemel-model-NAME.")
@click.option("--version", default="1.0", show_default=True, help="The wheel's version.")
@click.option("--licence", metavar="SPDX", help="The model's licence by its name, such as Apache-2.0.")
@click.option(
    "--licence-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="A file with the licence or a notice; may be repeated. Those in the model's folder come along anyway.",
)
@overwrite_option("a wheel of the same name and version")
@json_option()
def wheel(
    model: str,
    out: Path,
    called: str | None,
    name: str | None,
    version: str,
    licence: str | None,
    licence_file: tuple[Path, ...],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write MODEL, a name or a folder, as a wheel; where that is installed, gemel.load finds it without a network.

    The wheel holds the model's files and no code but a line with their place. The same model gives the same bytes.
    """
    from gemel.checkpoint.model_wheel import build_model_wheel
    from gemel.checkpoint.sources import find_model, given_name

    folder = find_model(model, offline=True)
    built = build_model_wheel(
        folder,
        out,
        model=called or given_name(model, folder),
        name=name,
        version=version,
        licence=licence,
        licence_files=licence_file,
        overwrite=overwrite,
    )
    if as_json:
        echo_json(asdict(built) | {"path": str(built.path)})
        return
    echo_path(built.path)
    echo(f'pip install {built.path}, then gemel.load("{built.model}")', err=True)
