"""`export`: build the graph of a model, write it to a temporary path, check its vectors, then move it to its path."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from gemel.errors import InputError, WorkError
from gemel.export.files import (
    FACTS,
    OUTPUT,
    ExportAgreement,
    check,
    onnx_run,
    openvino_run,
    ready_tokenizer,
    write_onnx,
    write_openvino,
    write_sidecar,
)
from gemel.export.graph import SentenceGraph, sentence_graph
from gemel.files.atomic import atomic_folder
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision

Format = Literal["onnx", "openvino"]

ONNX_FILE = "model.onnx"


def export(
    model: str | Path | Model,
    out: str | Path,
    *,
    to: Format = "onnx",
    precision: Precision = "float32",
    dim: int | None = None,
    normalize: bool | None = None,
    overwrite: bool = False,
) -> ExportResult:
    """Write the model as one graph, including pooling, dense layers and normalization, after checking its vectors.

    `out` is a folder, which gets a tokenizer and a config too, or a file that ends in .onnx. `dim` and `normalize` are
    those of `encode`. The result is written atomically.
    """
    target = Path(out)
    options = EncodeOptions(precision=precision, dim=dim, normalize=normalize)
    _check_request(target, to, precision)
    _check_target(target, overwrite)
    opened = model if isinstance(model, Model) else load(model)
    if target.suffix == ".onnx":
        return _to_file(opened, target, options)
    with atomic_folder(target.absolute()) as working:
        return _to_folder(opened, working, target, to, options)


@dataclass(frozen=True)
class ExportResult:
    """An export that was checked and written."""

    path: Path
    """The folder, or the .onnx file."""
    files: tuple[str, ...]
    """Names of the files that were written, sorted."""
    to: Format
    precision: Precision
    inputs: tuple[str, ...]
    output: str
    dim: int
    max_length: int | None
    size: int
    """Bytes of all files."""
    agreement: ExportAgreement
    prompts: dict[str, str]
    """Prompts to put in front of texts, which the graph does not do."""

    def to_json(self) -> dict[str, Any]:
        """The JSON of `gemel export --json`."""
        return {
            "path": str(self.path),
            "files": list(self.files),
            "to": self.to,
            "precision": self.precision,
            "inputs": list(self.inputs),
            "output": self.output,
            "dim": self.dim,
            "max_length": self.max_length,
            "size": self.size,
            "texts_checked": self.agreement.texts,
            "difference": self.agreement.difference,
            "cosine": self.agreement.cosine,
            "prompts": self.prompts,
        }


def _check_request(target: Path, to: Format, precision: Precision) -> None:
    if to not in get_args(Format):
        raise InputError(f"to must be one of {', '.join(get_args(Format))}, got {to!r}")
    if to == "openvino" and (precision != "float32" or target.suffix in (".onnx", ".xml")):
        raise InputError(
            f"an export to OpenVINO is a folder in float32, got {str(target)!r} in {precision}. "
            "Give a folder; OpenVINO's own tools quantize it (nncf)"
        )


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if target.suffix == ".onnx":
        if target.is_dir() or not overwrite:
            raise InputError(f"{target} exists. Give another file, or overwrite it (overwrite=True)")
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file. Give a new folder, or a file that ends in .onnx")
    if any(target.iterdir()) and not (overwrite and (target / FACTS).is_file()):
        raise InputError(
            f"{target} exists and is not empty. Give a new folder; only an export is overwritten (overwrite=True)"
        )


def _to_folder(model: Model, working: Path, target: Path, to: Format, options: EncodeOptions) -> ExportResult:
    """Write all files to `working`, which then becomes `target`."""
    tokenizer = ready_tokenizer(model.checkpoint)
    graph = _graph(model, options)
    facts = _facts(model, graph, options)
    written = write_onnx(graph, working / ONNX_FILE, facts)
    if to == "openvino":
        run = openvino_run(write_openvino(written[0], working))
        for path in written:
            path.unlink()
    else:
        run = onnx_run(written[0])
    agreement = check(run, graph.inputs, tokenizer, model, options)
    more = {"to": to, "inputs": list(graph.inputs), "output": OUTPUT, "checked": asdict(agreement)}
    write_sidecar(model.checkpoint, tokenizer, working, {**facts, **more})
    files = [path for path in working.iterdir() if path.is_file()]
    return _result(model, target, files, to, graph, options, agreement)


def _to_file(model: Model, target: Path, options: EncodeOptions) -> ExportResult:
    """Write only the graph; weights beyond 2 GB go to a file next to it."""
    path = target.absolute()
    tokenizer, graph = ready_tokenizer(model.checkpoint), _graph(model, options)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as working:
            written = write_onnx(graph, Path(working) / path.name, _facts(model, graph, options))
            agreement = check(onnx_run(written[0]), graph.inputs, tokenizer, model, options)
            result = _result(model, target, written, "onnx", graph, options, agreement)
            for file in reversed(written):  # the weights first: the graph refers to them
                file.replace(path.with_name(file.name))
    except OSError as error:
        raise WorkError(f"cannot write {target}: {error}") from error
    return result


def _graph(model: Model, options: EncodeOptions) -> SentenceGraph:
    checkpoint = model.checkpoint
    unit = checkpoint.normalize if options.normalize is None else options.normalize
    cut = checkpoint.truncate_dim
    return sentence_graph(
        checkpoint,
        precision=options.precision or "float32",
        unit=unit,
        dim=options.dim or (cut if options.normalize else None),
        keep=None if options.dim or options.normalize else cut,
        unknown=model.tokenizer.dropped,
    )


def _facts(model: Model, graph: SentenceGraph, options: EncodeOptions) -> dict[str, str]:
    """The metadata of the file."""
    checkpoint = model.checkpoint
    unit = checkpoint.normalize if options.normalize is None else options.normalize
    return {
        "model": model.name,
        "weights_hash": model.weights_hash,
        "precision": options.precision or "float32",
        "pooling": " ".join(checkpoint.pooling.modes),
        "normalize": str(unit).lower(),
        "dim": str(graph.dim),
        "max_length": "" if checkpoint.max_length is None else str(checkpoint.max_length),
    }


def _result(
    model: Model,
    target: Path,
    files: Sequence[Path],
    to: Format,
    graph: SentenceGraph,
    options: EncodeOptions,
    agreement: ExportAgreement,
) -> ExportResult:
    return ExportResult(
        path=target,
        files=tuple(sorted(path.name for path in files)),
        to=to,
        precision=options.precision or "float32",
        inputs=graph.inputs,
        output=OUTPUT,
        dim=graph.dim,
        max_length=model.max_length,
        size=sum(path.stat().st_size for path in files),
        agreement=agreement,
        prompts=dict(model.checkpoint.prompts),
    )
