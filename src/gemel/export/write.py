"""`export`: build the graph of a model, write its files to a temporary path, check its vectors, then move them.

The tokenizer truncates and pads as the graph expects; names of files are those that transformers, optimum and fastembed
look for. Before an export is finished, sample texts of many lengths are compared with the vectors of the model.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.files import read_object_if_there
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.encoder.engines.onnx_graph import FLOAT, INT64, OPSET, Node, Parts, Value, model_file, tensor
from gemel.errors import InputError, WorkError
from gemel.export.graph import SentenceGraph, sentence_graph
from gemel.files.atomic import atomic_folder, write_json
from gemel.files.machine import without_module
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.types import Vectors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Format = Literal["onnx", "openvino"]

ONNX_FILE = "model.onnx"

FACTS = "gemel_export.json"
"""What was exported and how; a folder with this file may be overwritten by another export."""

OUTPUT = "sentence_embedding"

MOST_INSIDE = 1_900_000_000
"""Bytes of weights up to which they are inside the .onnx file; the limit of a protobuf is 2^31."""

_SMALL = 1024  # bytes; such constants are always inside, where shape inference needs them

_ALIGNED = 4096


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
    if opened.checkpoint.plain is not opened.checkpoint:  # one side of a search, which the task names
        opened = Model(opened.checkpoint.plain, precision=opened.precision)
    if target.suffix == ".onnx":
        return _to_file(opened, target, options)
    with atomic_folder(target.absolute()) as working:
        return _to_folder(opened, working, target, to, options)


@dataclass(frozen=True)
class ExportAgreement:
    """How much the exported vectors differ from those of the model, on sample texts of many lengths."""

    texts: int
    difference: float
    """The largest difference of a number, with vectors scaled to a length of at most 1."""
    cosine: float
    """The smallest cosine of the two vectors of a text."""


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
    if precision == "bfloat16":
        raise InputError("an export is in float32 or int8, got precision 'bfloat16'. Use one of those")
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
    made = [path for path in working.iterdir() if path.is_file()]
    return _result(model, target, made, to, graph, options, agreement)


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
    made: Sequence[Path],
    to: Format,
    graph: SentenceGraph,
    options: EncodeOptions,
    agreement: ExportAgreement,
) -> ExportResult:
    return ExportResult(
        path=target,
        files=tuple(sorted(path.name for path in made)),
        to=to,
        precision=options.precision or "float32",
        inputs=graph.inputs,
        output=OUTPUT,
        dim=graph.dim,
        max_length=model.max_length,
        size=sum(path.stat().st_size for path in made),
        agreement=agreement,
        prompts=dict(model.checkpoint.prompts),
    )


# The files.


def write_onnx(
    graph: SentenceGraph, path: Path, facts: Mapping[str, str], *, most_inside: int = MOST_INSIDE
) -> tuple[Path, ...]:
    """Write the model and return its files; `facts` are its metadata."""
    nodes = graph.nodes
    used = {name for node in nodes.nodes for name in node.inputs}
    arrays = {name: np.asarray(array, order="C") for name, array in nodes.arrays.items() if name in used}
    outside = sum(array.nbytes for array in arrays.values()) > most_inside
    data = path.with_name(f"{path.name}_data")
    parts = model_file(
        "sentence_encoder",
        [*nodes.nodes, Node("Identity", (graph.output,), (OUTPUT,))],
        inputs=[Value(name, INT64, ("batch", "tokens")) for name in graph.inputs],
        outputs=[Value(OUTPUT, FLOAT, ("batch", graph.dim))],
        constants=_outside(arrays, data)
        if outside
        else [tensor(name, array) for name, array in arrays.items()],
        domains={"": OPSET},
        facts=facts,
    )
    with path.open("wb") as sink:
        sink.writelines(parts)
    return (path, data) if outside else (path,)


def _outside(arrays: Mapping[str, NDArray[Any]], data: Path) -> list[Parts]:
    """Large arrays are written to `data`, at offsets that can be memory-mapped."""
    constants: list[Parts] = []
    with data.open("wb") as sink:
        for name, array in arrays.items():
            if array.nbytes <= _SMALL:
                constants.append(tensor(name, array))
                continue
            sink.write(bytes(-sink.tell() % _ALIGNED))
            where = {"location": data.name, "offset": str(sink.tell()), "length": str(array.nbytes)}
            constants.append(tensor(name, array, where))
            sink.write(array.data)
    return constants


_NAME = "openvino_model.xml"  # and .bin: the names that optimum-intel expects


def write_openvino(source: Path, folder: Path) -> Path:
    """Write openvino_model.xml and .bin in float32 to `folder`."""
    openvino = _openvino()
    target = folder / _NAME
    # Not convert_model, which sends telemetry about what it converts.
    openvino.save_model(openvino.Core().read_model(str(source)), str(target), compress_to_fp16=False)
    return target


def openvino_run(path: Path) -> Run:
    """A function that runs the model on the CPU, always in float32."""
    openvino = _openvino()
    compiled: Any = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Feed) -> Vectors:
        vectors: Vectors = compiled(dict(inputs))[OUTPUT].copy()
        return vectors

    return run


def _openvino() -> Any:  # noqa: ANN401 - a module without types
    try:
        # It sends telemetry when it is imported; without the module for that, it uses a stub.
        with without_module("openvino_telemetry"):
            return import_module("openvino")
    except ImportError as error:
        raise InputError(
            "an export to OpenVINO needs the package 'openvino'. Install it with: pip install openvino"
        ) from error


_LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")

_ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")

_PADDINGS = ("[PAD]", "<pad>")


def ready_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """A tokenizer that truncates at the length of the model and pads on the right, as the graph expects."""
    opened = open_tokenizer(checkpoint)
    tokenizer = opened.tokenizer
    if checkpoint.kind == "static":
        from tokenizers import processors

        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    if (
        checkpoint.max_length is not None and not checkpoint.skip_unknown
    ):  # then the graph counts tokens itself
        tokenizer.enable_truncation(checkpoint.max_length, direction=opened.truncation_side)
    name = _padding(checkpoint, tokenizer)
    # The id of padding has no effect, as the mask is 0 there; it only has to be in the vocabulary.
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(name) or 0, pad_token=name)
    return tokenizer


def write_sidecar(
    checkpoint: Checkpoint, tokenizer: Tokenizer, folder: Path, facts: Mapping[str, Any]
) -> None:
    """Write tokenizer.json, the configs that other programs need, and licenses to an empty folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    home = checkpoint.tokenizer_file.parent
    tokenizer_config = read_object_if_there(home / "tokenizer_config.json")
    special_tokens = _special_tokens(checkpoint, tokenizer, home)
    length = {} if checkpoint.max_length is None else {"model_max_length": checkpoint.max_length}
    kind = {"tokenizer_class": tokenizer_config.get("tokenizer_class", "PreTrainedTokenizerFast")}
    write_json(folder / "tokenizer_config.json", {**tokenizer_config, **kind, **length, **special_tokens})
    write_json(folder / "special_tokens_map.json", special_tokens)
    padding = tokenizer.token_to_id(special_tokens["pad_token"]) or 0
    config = {**checkpoint.config, "pad_token_id": padding}
    write_json(folder / "config.json", config)
    if checkpoint.prompts:
        prompts = {
            "prompts": dict(checkpoint.prompts),
            "default_prompt_name": checkpoint.default_prompt_name,
        }
        write_json(folder / "config_sentence_transformers.json", prompts)
    for pattern in _LICENSES:
        for path in sorted(checkpoint.folder.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    write_json(folder / FACTS, dict(facts))


def _padding(checkpoint: Checkpoint, tokenizer: Tokenizer) -> str:
    pad_id = checkpoint.config.get("pad_token_id")
    name = tokenizer.id_to_token(pad_id) if isinstance(pad_id, int) and pad_id >= 0 else None
    usual = next((token for token in _PADDINGS if tokenizer.token_to_id(token) is not None), None)
    return usual or name or tokenizer.id_to_token(0) or _PADDINGS[0]


def _special_tokens(checkpoint: Checkpoint, tokenizer: Tokenizer, home: Path) -> dict[str, str]:
    """Special tokens by role: those that the checkpoint names, else those with the usual names."""
    config = {
        **read_object_if_there(home / "tokenizer_config.json"),
        **read_object_if_there(home / "special_tokens_map.json"),
    }
    tokens = {"pad_token": _padding(checkpoint, tokenizer)}
    for role in _ROLES[1:]:
        value = config.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        name = value if isinstance(value, str) else f"[{role.upper()}]"
        if tokenizer.token_to_id(name) is not None:
            tokens[f"{role}_token"] = name
    return tokens


Feed: TypeAlias = Mapping[str, NDArray[np.int64]]

Run: TypeAlias = Callable[[Feed], Vectors]
"""Runs the exported file in its own runtime: inputs by name to vectors."""

_MAX_DIFFERENCE = 1e-5

_LEAST_COSINE = {"float32": 0.9999, "int8": 0.95}  # int8: a lower cosine is an error, not a loss of precision

_SAMPLES, _BATCH = 40, 9


def check(
    run: Run, inputs: Sequence[str], tokenizer: Tokenizer, model: Model, options: EncodeOptions
) -> ExportAgreement:
    """How much the exported vectors differ from those of the model; an error if too much for the precision."""
    batches = sample_batches()
    texts = [text for batch in batches for text in batch]
    precision: Precision = options.precision or "float32"
    expected = model.encode(
        texts,
        prompt="",
        on_long="truncate",
        normalize=options.normalize,
        dim=options.dim,
        precision="float32",
    )
    exported = np.concatenate([run(feed(tokenizer, batch, inputs)) for batch in batches])
    agreement = _agreement(exported, expected)
    too_far = precision == "float32" and agreement.difference > _MAX_DIFFERENCE
    if too_far or not agreement.cosine >= _LEAST_COSINE[precision]:
        raise WorkError(
            f"the exported graph does not agree with {model.name}: vectors differ by up to "
            f"{agreement.difference:.1e} and their smallest cosine is {agreement.cosine:.4f}. Nothing was written; "
            "please report it"
        )
    return agreement


def feed(tokenizer: Tokenizer, texts: Sequence[str], inputs: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """A padded batch as inputs of the graph."""
    encodings = tokenizer.encode_batch(list(texts))
    columns = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    return {name: np.array(columns[name], dtype=np.int64) for name in inputs}


def onnx_run(path: Path) -> Run:
    """A function that runs the file in ONNX Runtime with default settings."""
    from gemel.encoder.engines.onnx import load_onnxruntime

    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: Feed) -> Vectors:
        vectors: Vectors = session.run([OUTPUT], dict(inputs))[0]
        return vectors

    return run


def sample_batches() -> list[list[str]]:
    """Texts of many lengths, then a small batch with one of about 1,000 tokens, which most models truncate."""
    lines = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = lines[:_SAMPLES]
    mixed = [*texts, " ".join(texts[:3]), " ".join(texts[:9]), ""]
    batches = [mixed[start : start + _BATCH] for start in range(0, len(mixed), _BATCH)]
    return [*batches, [" ".join(lines[:100]), "a"]]


def _agreement(exported: Vectors, expected: Vectors) -> ExportAgreement:
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    differences = np.abs(exported - expected) / np.maximum(lengths, 1)
    both = np.linalg.norm(exported, axis=1) * lengths[:, 0]
    dots = (exported * expected).sum(axis=1)
    # Two zero vectors agree; one alone does not.
    equal = (exported == expected).all(axis=1)
    cosines = np.where(equal, 1.0, dots / np.where(both > 0, both, 1))
    return ExportAgreement(len(exported), float(differences.max()), float(cosines.min()))
