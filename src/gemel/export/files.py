"""A graph to a .onnx file. Weights of more than a protobuf can hold go to a second file next to it, as ONNX has it.

An ONNX file to OpenVINO's own format, and the run that checks it. Needs the package openvino.

The files next to an exported graph: a tokenizer that cuts and pads as the graph expects, the config, the licences.

What transformers, optimum and fastembed look for by name.

Does the exported file say what gemel says? Sample texts of many lengths through both, before anything is kept.

What an export gives back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.files import read_object_if_there
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.encoder.engines.onnx_graph import OPSET
from gemel.errors import InputError, WorkError
from gemel.export.graph import SentenceGraph
from gemel.files.atomic import write_json
from gemel.files.isolation import without_module
from gemel.model import Model
from gemel.options import EncodeOptions, Precision
from gemel.types import Vectors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OUTPUT = "sentence_embedding"

MOST_INSIDE = 1_900_000_000
"""Bytes of weights that stay in the .onnx file; a protobuf ends at 2^31."""

_SMALL = 1024  # bytes; such constants stay inside always, where shape inference sees them

_ALIGNED = 4096


def write_onnx(
    graph: SentenceGraph, path: Path, facts: Mapping[str, str], *, most_inside: int = MOST_INSIDE
) -> tuple[Path, ...]:
    """Write the model and return its files; `facts` go into its metadata."""
    import onnx
    from onnx import TensorProto, helper

    nodes = graph.nodes
    last = helper.make_node("Identity", [graph.output], [OUTPUT])
    used = {name for node in nodes.nodes for name in node.input}
    arrays = {name: np.asarray(array, order="C") for name, array in nodes.arrays.items() if name in used}
    outside = sum(array.nbytes for array in arrays.values()) > most_inside
    data = path.with_name(f"{path.name}_data")
    constants = _outside(arrays, data) if outside else _inside(arrays)
    made = helper.make_graph(
        [*nodes.nodes, last],
        "sentence_encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", "tokens"))
            for name in graph.inputs
        ],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ("batch", graph.dim))],
        constants,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10, producer_name="gemel"
    )
    helper.set_model_props(model, dict(facts))
    onnx.save_model(model, str(path))
    return (path, data) if outside else (path,)


def _inside(arrays: Mapping[str, NDArray[Any]]) -> list[object]:
    from onnx import numpy_helper

    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _outside(arrays: Mapping[str, NDArray[Any]], data: Path) -> list[object]:
    """Large arrays one after the other in `data`, at places that a memory map can start at."""
    from onnx import TensorProto, helper, numpy_helper

    constants: list[object] = []
    with data.open("wb") as sink:
        for name, array in arrays.items():
            if array.nbytes <= _SMALL:
                constants.append(numpy_helper.from_array(array, name))
                continue
            sink.write(bytes(-sink.tell() % _ALIGNED))
            tensor = TensorProto(
                name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape
            )
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", sink.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            sink.write(array.data)
            constants.append(tensor)
    return constants


_NAME = "openvino_model.xml"  # and .bin: where optimum-intel looks


def write_openvino(source: Path, folder: Path) -> Path:
    """openvino_model.xml and .bin in `folder`, in float32."""
    openvino = _openvino()
    target = folder / _NAME
    # Not convert_model, which reports what it converts.
    openvino.save_model(openvino.Core().read_model(str(source)), str(target), compress_to_fp16=False)
    return target


def openvino_run(path: Path) -> Run:
    """The model on the CPU in float32, whatever the processor would rather take."""
    openvino = _openvino()
    compiled: Any = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Feed) -> Vectors:
        vectors: Vectors = compiled(dict(inputs))[OUTPUT].copy()
        return vectors

    return run


def _openvino() -> Any:  # noqa: ANN401 - a module without types
    try:
        # It sends an event when it is imported. Without the module that sends, it uses a stand-in of its own.
        with without_module("openvino_telemetry"):
            return import_module("openvino")
    except ImportError as error:
        raise InputError(
            "an export to OpenVINO needs the package 'openvino'. Install it with: pip install openvino"
        ) from error


FACTS = "gemel_export.json"
"""Says what was exported and how; a folder that has it may be overwritten by another export."""

_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")

_MARKS = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")

_PADDINGS = ("[PAD]", "<pad>")


def ready_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Cuts at the model's length and pads on the right, so that its ids and masks fit the graph as they are."""
    opened = open_tokenizer(checkpoint)
    tokenizer = opened.tokenizer
    if checkpoint.kind == "static":
        from tokenizers import processors

        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    if checkpoint.max_length is not None and not checkpoint.skip_unknown:  # that graph counts by itself
        tokenizer.enable_truncation(checkpoint.max_length, direction=opened.truncation_side)
    name = _padding(checkpoint, tokenizer)
    # The padding's id never counts, as the mask is 0 there; it only has to be a row of the table.
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(name) or 0, pad_token=name)
    return tokenizer


def write_sidecar(
    checkpoint: Checkpoint, tokenizer: Tokenizer, folder: Path, facts: Mapping[str, Any]
) -> None:
    """tokenizer.json and the small files that other programs ask for, into an empty folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    home = checkpoint.tokenizer_file.parent
    theirs = read_object_if_there(home / "tokenizer_config.json")
    marks = _marks(checkpoint, tokenizer, home)
    length = {} if checkpoint.max_length is None else {"model_max_length": checkpoint.max_length}
    kind = {"tokenizer_class": theirs.get("tokenizer_class", "PreTrainedTokenizerFast")}
    write_json(folder / "tokenizer_config.json", {**theirs, **kind, **length, **marks})
    write_json(folder / "special_tokens_map.json", marks)
    padding = tokenizer.token_to_id(marks["pad_token"]) or 0
    config = {**checkpoint.config, "pad_token_id": padding}
    write_json(folder / "config.json", config)
    if checkpoint.prompts:
        prompts = {
            "prompts": dict(checkpoint.prompts),
            "default_prompt_name": checkpoint.default_prompt_name,
        }
        write_json(folder / "config_sentence_transformers.json", prompts)
    for pattern in _LICENCES:
        for path in sorted(checkpoint.folder.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    write_json(folder / FACTS, dict(facts))


def _padding(checkpoint: Checkpoint, tokenizer: Tokenizer) -> str:
    said = checkpoint.config.get("pad_token_id")
    name = tokenizer.id_to_token(said) if isinstance(said, int) and said >= 0 else None
    known = next((mark for mark in _PADDINGS if tokenizer.token_to_id(mark) is not None), None)
    return known or name or tokenizer.id_to_token(0) or _PADDINGS[0]


def _marks(checkpoint: Checkpoint, tokenizer: Tokenizer, home: Path) -> dict[str, str]:
    """Special tokens by role: as the checkpoint says, else those with the usual names."""
    said = {
        **read_object_if_there(home / "tokenizer_config.json"),
        **read_object_if_there(home / "special_tokens_map.json"),
    }
    found = {"pad_token": _padding(checkpoint, tokenizer)}
    for role in _MARKS[1:]:
        value = said.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        name = value if isinstance(value, str) else f"[{role.upper()}]"
        if tokenizer.token_to_id(name) is not None:
            found[f"{role}_token"] = name
    return found


Feed: TypeAlias = Mapping[str, NDArray[np.int64]]

Run: TypeAlias = Callable[[Feed], Vectors]
"""Inputs by name to vectors: the exported file in its own runtime."""

_MOST_APART = 1e-5

_LEAST_COSINE = {"float32": 0.9999, "int8": 0.95}  # int8: what is below is a fault, not a loss of precision

_SAMPLES, _BATCH = 40, 9


def check(
    run: Run, inputs: Sequence[str], tokenizer: Tokenizer, model: Model, options: EncodeOptions
) -> ExportAgreement:
    """How near the two are; an error if that is too far for the precision in `options`."""
    batches = sample_batches()
    texts = [text for batch in batches for text in batch]
    precision: Precision = options.precision or "float32"
    wanted = model.encode(
        texts,
        prompt="",
        on_long="truncate",
        normalize=options.normalize,
        dim=options.dim,
        precision="float32",
    )
    given = np.concatenate([run(feed(tokenizer, batch, inputs)) for batch in batches])
    found = _agreement(given, wanted)
    too_far = precision == "float32" and found.difference > _MOST_APART
    if too_far or not found.cosine >= _LEAST_COSINE[precision]:
        raise WorkError(
            f"the exported graph does not agree with {model.name}: vectors differ by up to {found.difference:.1e} "
            f"and have a cosine of {found.cosine:.4f} at the least. Nothing was written; please report it"
        )
    return found


def feed(tokenizer: Tokenizer, texts: Sequence[str], inputs: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """A padded batch as the graph takes it."""
    encodings = tokenizer.encode_batch(list(texts))
    columns = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    return {name: np.array(columns[name], dtype=np.int64) for name in inputs}


def onnx_run(path: Path) -> Run:
    """The file in ONNX Runtime, as anybody would start it."""
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
    """Texts of many lengths together, then one of about 1,000 tokens, which most models cut; few are with that one."""
    lines = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = lines[:_SAMPLES]
    mixed = [*texts, " ".join(texts[:3]), " ".join(texts[:9]), ""]
    batches = [mixed[start : start + _BATCH] for start in range(0, len(mixed), _BATCH)]
    return [*batches, [" ".join(lines[:100]), "a"]]


def _agreement(given: Vectors, wanted: Vectors) -> ExportAgreement:
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    apart = np.abs(given - wanted) / np.maximum(lengths, 1)
    both = np.linalg.norm(given, axis=1) * lengths[:, 0]
    dots = (given * wanted).sum(axis=1)
    # Two vectors of zeros agree; one of them alone does not.
    equal = (given == wanted).all(axis=1)
    cosines = np.where(equal, 1.0, dots / np.where(both > 0, both, 1))
    return ExportAgreement(len(given), float(apart.max()), float(cosines.min()))


Format = Literal["onnx", "openvino"]


@dataclass(frozen=True)
class ExportAgreement:
    """How near the exported file's vectors are to gemel's own, on sample texts of many lengths."""

    texts: int
    difference: float
    """The largest difference of a number, where vectors have length 1 or are scaled to at most that."""
    cosine: float
    """The smallest cosine of the two vectors of a text."""


@dataclass(frozen=True)
class ExportResult:
    """An export that was checked and is in its place."""

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
    """Put one of these in front of a text where the model asks for it; no graph does."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `gemel export --json` prints them."""
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
