"""List, fetch, describe, convert, pack and remove models."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json, echo_path, report

if TYPE_CHECKING:
    from gemel.checkpoint.folder import Checkpoint
    from gemel.options import Precision


@click.group(epilog="\b\nExamples:\n  gemel models pull all-MiniLM-L6-v2\n  gemel models show ./my-model")
def command() -> None:
    """List, fetch, describe, convert, pack and remove models."""


@command.command(
    short_help="A model as a package for pip.",
    epilog="\b\nExamples:\n  gemel models wheel ./my-model --license Apache-2.0 -o dist/"
    "\n  gemel models wheel ./my-model --license-file LICENSE --name my-model-wheel --version 1.1",
)
@click.argument("model")
@flags.out_option("A folder for the wheel.", metavar="FOLDER", default=Path("dist"), show_default=True)
@click.option("--as", "called", metavar="NAME", help="The name for gemel.load. Default: the model's name.")
@click.option("--name", metavar="NAME", help="The name of the wheel for pip. Default: gemel-model-NAME.")
@click.option("--version", default="1.0", show_default=True, help="The wheel's version.")
@click.option("--license", metavar="SPDX", help="The model's license as an SPDX name, such as Apache-2.0.")
@click.option(
    "--license-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="A file with the license or a notice; may be repeated. Those in the model's folder are always included.",
)
@flags.overwrite_option("a wheel of the same name and version")
@flags.json_option()
def wheel(
    model: str,
    out: Path,
    called: str | None,
    license_file: tuple[Path, ...],
    as_json: bool,
    **settings: Any,
) -> None:
    """Write MODEL, a name or a folder, as a wheel; once that is installed, gemel.load finds it without a network.

    The wheel contains the model's files and one line of code with their path. The same model gives the same bytes.
    """
    from gemel.checkpoint.model_wheel import build_model_wheel
    from gemel.checkpoint.sources import find_model, given_name

    folder = find_model(model, offline=True)
    known_as = called or given_name(model, folder)
    built = build_model_wheel(folder, out, model=known_as, license_files=license_file, **settings)
    if as_json:
        echo_json(asdict(built) | {"path": str(built.path)})
        return
    echo_path(built.path)
    echo(f'pip install {built.path}, then gemel.load("{built.model}")', err=True)


@command.command(
    "list", short_help="Models here and models to fetch.", epilog="\b\nExample:\n  gemel models list"
)
@flags.json_option("lines", piped=True, more="A row is a model.")
def list_models(as_json: bool) -> None:
    """Models in the cache, those of installed wheels, and those that are fetched by name when first used."""
    from gemel.checkpoint.cache import models_folder
    from gemel.checkpoint.sources import cached_models, folder_size, installed_models
    from gemel.checkpoint.wheels import CARRIED

    rows: list[dict[str, Any]] = [
        {"name": model.name, "cached": True, "size": model.size, "folder": str(model.folder)}
        for model in cached_models()
    ]
    here = {row["name"] for row in rows}
    for model in installed_models():
        if model.name not in here:
            size, folder = folder_size(model.folder), str(model.folder)
            rows.append({"name": model.name, "cached": False, "size": size, "folder": folder})
    here = {row["name"] for row in rows}
    rows += [
        {"name": model.name, "cached": False, "size": model.size, "folder": None}
        for model in CARRIED.values()
        if model.name not in here
    ]
    if _wants_json(as_json):
        for row in rows:
            echo_json(row)
        return
    _echo_columns(
        [
            (row["name"], _megabytes(row["size"]), "here" if row["folder"] else "can be fetched")
            for row in rows
        ]
    )
    echo(f"cache: {models_folder()}", err=True)


@command.command(short_help="Fetch a model now.", epilog="\b\nExample:\n  gemel models pull all-MiniLM-L6-v2")
@click.argument("name")
@click.option("--revision", help="A branch, tag or commit on the Hugging Face Hub.")
@flags.json_option()
def pull(name: str, revision: str | None, as_json: bool) -> None:
    """Fetch the model NAME now, so that later no network is needed; prints its folder."""
    from gemel.checkpoint.sources import pull as pull_model

    folder = pull_model(name, revision=revision)
    if as_json:
        echo_json({"name": name, "folder": str(folder)})
    else:
        echo_path(folder)


@command.command(
    short_help="Will a model be read, and by what?",
    epilog="\b\nExamples:\n  gemel models check ./my-model\n  gemel models check all-MiniLM-L6-v2 --canaries",
)
@click.argument("model")
@click.option(
    "--canaries",
    is_flag=True,
    help="Also encode a few fixed texts, and compare them with the vectors recorded when the model was first used.",
)
@flags.precision_option
@flags.json_option(piped=True)
def check(model: str, canaries: bool, precision: Precision, as_json: bool) -> None:
    """Say whether MODEL, a name or a folder, will be read, by which engine, and why not. Fetches nothing.

    The exit code is 0 if it will be read and, with --canaries, its vectors are as recorded, otherwise 1.
    """
    from gemel.checkpoint.sources import find_model
    from gemel.encoder.check import check_model

    folder = find_model(model, offline=True)
    result = check_model(folder)
    compared = []
    if canaries and result.readable and result.kind == "sentence encoder":
        from gemel.model import load

        compared = load(folder, precision=precision, offline=True).check_canaries()
    if _wants_json(as_json):
        more = {"canaries": [each.to_json() for each in compared]} if canaries else {}
        echo_json({"name": model, "folder": str(folder), **result.to_json(), **more})
    elif result.readable:
        what = " ".join(filter(None, (result.architecture, result.kind)))
        echo(f"{model}: will be read. {what}, engine {result.engine}, {_precisions(result.int8)}")
        for note in result.notes:
            echo(f"note: {note}")
        for each in compared:
            echo(f"canaries: {each.summary()}")
    else:
        echo(f"{model}: will not be read. {result.reason}")
    if not result.readable or not all(each.holds for each in compared):
        raise click.exceptions.Exit(1)


@command.command(short_help="Describe a model.", epilog="\b\nExample:\n  gemel models show all-MiniLM-L6-v2")
@click.argument("model")
@flags.json_option(piped=True)
def show(model: str, as_json: bool) -> None:
    """Describe MODEL, a name or a folder: size, length, pooling, prompts, similarity, license. Fetches nothing.

    Where the model was used before, it says when its canaries were recorded and whether they hold.
    """
    from gemel.checkpoint.folder import is_sparse_encoder, read_checkpoint
    from gemel.checkpoint.modules import is_late_model
    from gemel.checkpoint.sources import find_model

    folder = find_model(model, offline=True)
    if is_sparse_encoder(folder):
        facts = _sparse_facts(folder)
    elif is_late_model(folder):
        facts = _late_facts(folder)
    else:
        facts = _facts(read_checkpoint(folder, offline=True))
    if _wants_json(as_json):
        echo_json(facts)
    else:
        _echo_columns(_card(facts))


@command.command(epilog="\b\nExample:\n  gemel models remove all-MiniLM-L6-v2")
@click.argument("name")
@flags.json_option()
def remove(name: str, as_json: bool) -> None:
    """Delete the model NAME from the cache."""
    from gemel.checkpoint.sources import remove as remove_model

    folder = remove_model(name)
    report({"name": name, "folder": str(folder)}, f"removed {folder}", as_json)


@command.command(
    short_help="Pickled weights to safetensors.",
    epilog="\b\nExample:\n  gemel models convert ./old-model -o ./new-model",
)
@click.argument("folder", type=click.Path(path_type=Path))
@flags.out_option("A folder for the copy. Default: convert in place.", metavar="FOLDER")
@flags.json_option()
def convert(folder: Path, out: Path | None, as_json: bool) -> None:
    """Convert the pickled weights in FOLDER to safetensors (extra: train); prints the files written."""
    from gemel.checkpoint.convert import convert as convert_model

    result = convert_model(folder, out)
    if as_json:
        echo_json({"folder": str(result.folder), "written": [str(path) for path in result.written]})
        return
    for path in result.written:
        echo_path(path)
    if not result.written:
        echo(f"nothing to convert in {folder}", err=True)


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that `show` prints, in its order, as JSON values."""
    from gemel.checkpoint.fingerprint import weights_hash
    from gemel.checkpoint.model_wheel import read_license
    from gemel.checkpoint.sources import folder_size
    from gemel.encoder.canary import recorded_canaries

    config, named = checkpoint.config, read_license(checkpoint.folder)
    layers = (config.get(key) for key in ("num_hidden_layers", "n_layers"))
    return {
        "name": checkpoint.name,
        "folder": str(checkpoint.folder),
        "kind": checkpoint.kind,
        "architecture": config.get("model_type"),
        "dim": checkpoint.dim,
        "layers": next((count for count in layers if count is not None), None),
        "parameters": checkpoint.parameters,
        "max_length": checkpoint.max_length,
        "pooling": list(checkpoint.pooling.modes),
        "dense": [
            {
                "inputs": dense.inputs,
                "outputs": dense.outputs,
                "activation": dense.activation,
            }
            for dense in checkpoint.dense
        ],
        "normalize": checkpoint.normalize,
        "lowercase": checkpoint.lowercase,
        "prompts": dict(checkpoint.prompts),
        "default_prompt_name": checkpoint.default_prompt_name,
        "similarity": checkpoint.similarity,
        "labels": list(checkpoint.relation.labels) if checkpoint.relation else [],
        "license": None if named is None else named.name,
        "non_commercial": named is not None and named.non_commercial,
        "weights_hash": weights_hash(checkpoint),
        "size": folder_size(checkpoint.folder),
        "canaries": list(recorded_canaries(checkpoint)),
        "notes": list(checkpoint.notes),
    }


def _sparse_facts(folder: Path) -> dict[str, Any]:
    """Those of the part that encodes documents, and what makes it a sparse encoder."""
    from gemel.texts.sparse_model import load_sparse

    model = load_sparse(folder, offline=True)
    document, query = model.checkpoint.document, model.checkpoint.query
    steps = [type(part.step).__name__ for part in (document, query) if part is not None]
    facts = _facts(document.checkpoint)
    changed = {
        "kind": "sparse encoder",
        "dim": model.dim,
        "pooling": [" / ".join(steps)],
        "similarity": "dot",
        "weights_hash": model.weights_hash,
        "notes": [*document.checkpoint.notes, "a sparse encoder: load it with gemel.load_sparse(...)"],
    }
    return {**facts, **changed}


def _late_facts(folder: Path) -> dict[str, Any]:
    """As `_facts`, of a model for late interaction: its length is that of a document."""
    from gemel.encoder.late import late_network, read_late

    late = read_late(folder)
    sides = {"query": late.query, "document": late.document}
    filled = "not filled up" if late.expansion is None else f"filled up to {late.expansion.length} tokens"
    return _facts(late.encoder) | {
        "kind": "late interaction",
        "dim": late_network(late).width,
        "max_length": late.document.length,
        "pooling": ["none (one vector per token)"],
        "normalize": late.normalize,
        "prompts": {name: (side.prefix or "") + side.prompt for name, side in sides.items()},
        "similarity": "maxsim",
        "notes": [f"late interaction: load it with gemel.load_late; queries are {filled}"],
    }


def _wants_json(as_json: bool) -> bool:
    return as_json or not sys.stdout.isatty()


def _precisions(int8: bool) -> str:
    return "float32 and int8" if int8 else "float32"


def _card(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts that people need to choose a model, in about ten lines."""
    layers = None if facts["layers"] is None else f"{facts['layers']} layers"
    dense = [f"{layer['inputs']} → {layer['outputs']} {layer['activation']}" for layer in facts["dense"]]
    default = facts["default_prompt_name"]
    prompts = [
        f"{name} {text!r}{' (default)' * (name == default)}" for name, text in facts["prompts"].items()
    ]
    length = "no limit" if facts["max_length"] is None else f"{facts['max_length']:,} tokens"
    rows = [
        ("name", facts["name"]),
        (
            "architecture",
            ", ".join(
                filter(None, (facts["architecture"] or facts["kind"], layers, _count(facts["parameters"])))
            ),
        ),
        ("max length", length),
        ("dimensions", _text(facts["dim"])),
        ("pooling", ", ".join((*facts["pooling"], *dense, *["normalized"] * facts["normalize"]))),
        ("similarity", facts["similarity"] or "cosine (not stated)"),
        ("prompts", ", ".join(prompts) or "-"),
        ("license", _license(facts)),
        ("size", f"{_megabytes(facts['size'])} in {facts['folder']}"),
        ("hash", facts["weights_hash"]),
    ]
    rows += [("labels", ", ".join(facts["labels"]))] if facts["labels"] else []
    rows += [("canaries", _canaries(each)) for each in facts["canaries"]]
    return rows + [("note", note) for note in facts["notes"]]


def _canaries(record: Mapping[str, Any]) -> str:
    """One record: of what, since when, and whether it holds."""
    side = f" {record['side']}" if record["side"] else ""
    by = ", ".join(
        f"{name} {record['by'][name]}" for name in ("gemel", "tokenizers", "kernel") if name in record["by"]
    )
    holds = {
        True: "holds",
        False: "an earlier version gives other vectors",
        None: "not compared with the versions here, see: gemel models check --canaries",
    }[record["holds"]]
    times = "once" if record["changes"] == 1 else f"{record['changes']} times"
    changed = f", changed {times} before" if record["changes"] else ""
    what = f"{record['engine']} {record['precision']}{side}"
    return f"{what}: recorded {record['recorded'][:10]} by {by}{changed}; {holds}"


def _license(facts: Mapping[str, Any]) -> str:
    if facts["license"] is None:
        return "not stated: there is no model card (README.md) that names it"
    return f"{facts['license']}{' - warning: no commercial use' * facts['non_commercial']}"


def _count(parameters: int) -> str:
    unit, word = next(
        (each for each in ((10**9, "G"), (10**6, "M"), (10**3, "k")) if parameters >= each[0]), (1, "")
    )
    return f"{parameters / unit:.3g} {word}".rstrip() + " parameters"


def _text(value: object) -> str:
    """A dash if there is none."""
    return "-" if value is None else str(value)


def _echo_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
