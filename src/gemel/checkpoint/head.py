"""What follows the network in a checkpoint, as plain data, read and written: pooling, dense layers, layer norms, flows,
and the classification head. `encoder/head.py` runs them.

The classification head is in the folder `relation` of the model. modules.json does not list it, so other programs read
the model as if it were not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import key_set
from gemel.checkpoint.files import module_weights, read_object
from gemel.checkpoint.settings import refuse_unknown
from gemel.errors import InputError, ModelError

_DENSE_KEYS = key_set(
    "in_features out_features bias activation_function module_input_name module_output_name",
    "use_residual",
)
"""config.json of a Dense."""

# In the order in which their results are joined when a config has several of them.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt-len",
    "pooling_mode_weightedmean_tokens": "weighted-mean",
    "pooling_mode_lasttoken": "last",
}

_NAMES = {
    **{name: name for name in ("cls", "max", "mean")},
    "mean_sqrt_len_tokens": "mean-sqrt-len",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}

_POOLING_KEYS = key_set("embedding_dimension word_embedding_dimension pooling_mode include_prompt", *_FLAGS)
"""config.json of a Pooling."""

_LAYER_NORM_KEYS = frozenset({"dimension"})
"""config.json of a LayerNorm."""

_LAYER_NORM_EPSILON = 1e-5  # torch's default; config.json cannot give another

_ACTIVATION_CLASSES = (
    *(
        "Identity",
        "Tanh",
        "ReLU",
        "GELU",
        "Sigmoid",
        "SiLU",
        "ELU",
        "SELU",
        "CELU",
        "LeakyReLU",
        "ReLU6",
        "Mish",
    ),
    *("Softplus", "Softsign", "LogSigmoid", "Hardtanh", "Hardsigmoid", "Hardswish"),
    *("Softshrink", "Hardshrink", "Tanhshrink"),
)
"""Classes of torch.nn, with their default arguments: config.json gives no others."""

ACTIVATIONS = {word.lower(): word for word in _ACTIVATION_CLASSES}
"""Activations of a dense layer: the name of each, and its class in torch.nn."""


@dataclass(frozen=True)
class PoolingConfig:
    """The poolings of a checkpoint; `encoder/pooling.py` has the arithmetic."""

    modes: tuple[str, ...] = ("mean",)
    """Of cls, mean, max, mean-sqrt-len, weighted-mean, last; the results are joined in this order."""
    include_prompt: bool = True
    """False: tokens of the prompt do not count."""


@dataclass(frozen=True, eq=False)
class Dense:
    """x -> activation(x @ weight.T + bias) on the pooled vector."""

    weight: NDArray[np.float32]
    """(out, in)"""
    bias: NDArray[np.float32] | None
    activation: str
    """A name of `ACTIVATIONS`."""

    @property
    def inputs(self) -> int:
        """Numbers of a vector before the layer."""
        return int(self.weight.shape[-1])

    @property
    def outputs(self) -> int:
        """Numbers of a vector after the layer."""
        return int(self.weight.shape[0])


@dataclass(frozen=True, eq=False)
class LayerNorm(Dense):
    """x -> normalized x * weight + bias on the pooled vector; `weight` and `bias` have the shape (d,)."""

    activation: str = "layernorm"
    epsilon: float = _LAYER_NORM_EPSILON


def read_pooling(folder: Path) -> PoolingConfig:
    """The pooling of a config with one flag per mode (older) or with the modes by name (newer)."""
    config = read_object(folder / "config.json")
    refuse_unknown(folder / "config.json", config, _POOLING_KEYS)
    named = config.get("pooling_mode")
    if named is None:
        modes = tuple(mode for flag, mode in _FLAGS.items() if config.get(flag) is True) or ("mean",)
    else:
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not names or not all(str(name) in _NAMES for name in names):
            raise ModelError(f"{folder}: unknown pooling {named!r}. Known: {', '.join(_NAMES)}")
        modes = tuple(_NAMES[name] for name in names)
    return PoolingConfig(modes, config.get("include_prompt") is not False)


def pooling_config(pooling: PoolingConfig, width: int) -> dict[str, Any]:
    """What `read_pooling` reads: as flags, which every release of sentence-transformers reads, where they suffice."""
    flags = {flag: mode in pooling.modes for flag, mode in _FLAGS.items()}
    if tuple(mode for mode in _FLAGS.values() if mode in pooling.modes) == pooling.modes:
        return {"word_embedding_dimension": width, **flags, "include_prompt": pooling.include_prompt}
    names = {mode: name for name, mode in _NAMES.items()}
    modes = [names[mode] for mode in pooling.modes]
    return {"embedding_dimension": width, "pooling_mode": modes, "include_prompt": pooling.include_prompt}


def dense_config(dense: Dense) -> dict[str, Any]:
    """What `read_dense` and sentence-transformers read."""
    word = ACTIVATIONS[dense.activation]
    home = "linear" if word == "Identity" else "activation"
    return {
        "in_features": dense.weight.shape[1],
        "out_features": dense.weight.shape[0],
        "bias": dense.bias is not None,
        "activation_function": f"torch.nn.modules.{home}.{word}",
    }


def read_dense(model: Path, folder: Path) -> Dense:
    """The layer in `folder`, a sub-folder of `model`."""
    config = read_object(folder / "config.json")
    refuse_unknown(folder / "config.json", config, _DENSE_KEYS)
    _check_plain_dense(folder, config)
    weights = module_weights(model, folder)
    if "linear.weight" not in weights:
        raise ModelError(
            f"{folder}: a dense layer needs the tensor 'linear.weight', found {', '.join(weights)}"
        )
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shape = None if bias is None else bias.shape
        raise ModelError(f"{folder}: a weight of shape {weight.shape} and a bias of shape {shape} do not fit")
    return Dense(weight, bias, _activation(folder, config))


def _activation(folder: Path, config: Mapping[str, Any]) -> str:
    named = config.get("activation_function", "torch.nn.Tanh")  # sentence-transformers' default
    package, _, word = str(named).rpartition(".")
    # A class of another package may have a known name and be any function.
    if word not in _ACTIVATION_CLASSES or package.partition(".")[0] not in ("torch", ""):
        known = ", ".join(_ACTIVATION_CLASSES)
        raise ModelError(f"{folder}: unknown activation {named!r}. Known, of torch.nn: {known}")
    return word.lower()


def _check_plain_dense(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("use_residual"):
        raise ModelError(f"{folder}: a dense layer with a residual connection is not supported")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise ModelError(
                f"{folder}: a dense layer on {config[key]!r} is not supported, only on the pooled vector"
            )


def read_layer_norm(model: Path, folder: Path) -> LayerNorm:
    """The layer norm in `folder`, a sub-folder of `model`."""
    refuse_unknown(folder / "config.json", read_object(folder / "config.json"), _LAYER_NORM_KEYS)
    weights = module_weights(model, folder)
    missing = [name for name in ("norm.weight", "norm.bias") if name not in weights]
    if missing:
        raise ModelError(
            f"{folder}: a layer norm needs the tensor {missing[0]!r}, found {', '.join(weights)}"
        )
    weight, bias = weights["norm.weight"], weights["norm.bias"]
    if weight.ndim != 1 or bias.shape != weight.shape:
        raise ModelError(
            f"{folder}: a layer norm of a weight of shape {weight.shape} and a bias of shape {bias.shape}"
        )
    return LayerNorm(weight, bias)


FLOW = "gemel.checkpoint.head.Flow"
"""The type of a flow in modules.json: the only module that sentence-transformers does not have."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """One step of a flow: d numbers are permuted, then the second half is scaled and shifted depending on the first.

    a, b = x[order] split at d // 2;  s, t = w2 @ relu(w1 @ a + b1) + b2 split in the middle
    -> a, b * exp(tanh(s)) + t
    """

    order: NDArray[np.int64]
    """(d,) a permutation"""
    w1: NDArray[np.float32]
    b1: NDArray[np.float32]
    w2: NDArray[np.float32]
    b2: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Flow(Dense):
    """A square dense layer whose activation is an invertible network: `couplings`, one after the other."""

    couplings: tuple[Coupling, ...]


def read_flow(model: Path, folder: Path) -> Flow:
    """The flow in `folder`, with all shapes checked."""
    weights = module_weights(model, folder)
    count = read_object(folder / "config.json").get("couplings")
    if not isinstance(count, int) or not 0 <= count <= len(weights):
        raise ModelError(f"{folder}: 'couplings' must be their number, got {count!r}")
    names = ["linear.weight", "linear.bias", *(name for n in range(count) for name in coupling_names(n))]
    missing = [name for name in names if name not in weights]
    if missing:
        raise ModelError(f"{folder}: a flow of {count} couplings needs the tensor {missing[0]!r}")
    weight, bias = weights["linear.weight"], weights["linear.bias"]
    if weight.ndim != 2 or weight.shape != (*bias.shape, *bias.shape):
        raise ModelError(
            f"{folder}: a weight of shape {weight.shape} and a bias of shape {bias.shape} are no flow"
        )
    couplings = tuple(
        Coupling(weights[order].astype(np.int64), *(weights[name] for name in others))
        for order, *others in map(coupling_names, range(count))
    )
    for number, coupling in enumerate(couplings):
        _check_coupling(f"{folder}: coupling {number}", coupling, len(bias))
    return Flow(weight, bias, "flow", couplings)


def flow_tensors(flow: Flow) -> dict[str, NDArray[Any]]:
    """What `read_flow` reads."""
    tensors: dict[str, NDArray[Any]] = {"linear.weight": flow.weight}
    assert flow.bias is not None, "a flow starts with a mean to subtract"
    tensors["linear.bias"] = flow.bias
    for number, step in enumerate(flow.couplings):
        parts = (step.order.astype(np.int32), step.w1, step.b1, step.w2, step.b2)
        tensors.update(zip(coupling_names(number), parts, strict=True))
    return tensors


def coupling_names(number: int) -> tuple[str, ...]:
    """Names of the tensors of one coupling, in the order of its fields."""
    return tuple(f"couplings.{number}.{part}" for part in ("order", "w1", "b1", "w2", "b2"))


def _check_coupling(where: str, step: Coupling, dim: int) -> None:
    half, hidden = dim // 2, len(step.b1) if step.b1.ndim == 1 else -1
    shapes = (step.w1.shape, step.b1.shape, step.w2.shape, step.b2.shape)
    expected = ((hidden, half), (hidden,), (2 * (dim - half), hidden), (2 * (dim - half),))
    if shapes != expected:
        raise ModelError(f"{where}: tensors of shapes {shapes} do not fit {dim} dimensions")
    if not np.array_equal(np.sort(step.order), np.arange(dim)):
        raise ModelError(f"{where}: 'order' is not an order of {dim} numbers")


FOLDER = "relation"

PARTS = ("u", "v", "|u-v|", "u*v")
"""What a head can concatenate of the two vectors u and v."""


@dataclass(frozen=True, eq=False)
class ClassificationHead:
    """softmax(weight @ concatenated + bias), of the parts of the vectors u and v that `concat` lists."""

    concat: str
    """Parts in their order, such as "u,v,|u-v|"."""
    weight: NDArray[np.float32]
    """(k, parts * dim)"""
    bias: NDArray[np.float32] | None
    """(k,)"""
    labels: tuple[str, ...]
    """k names, in the order of the rows of `weight`."""

    @property
    def dim(self) -> int:
        """Numbers in each of the two vectors."""
        return int(self.weight.shape[1]) // len(parse_concat(self.concat))


def parse_concat(spec: str) -> tuple[str, ...]:
    """The parts of a spec such as "u,v,|u-v|"; refused when one is unknown or repeated, or a vector is missing."""
    parts = tuple("".join(part.split()) for part in spec.split(","))
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"concat has an unknown part {unknown[0]!r}, in {spec!r}. Known: {', '.join(PARTS)}")
    if len(set(parts)) < len(parts):
        raise InputError(f"concat names a part twice: {spec!r}. Name each once")
    if set(parts) in ({"u"}, {"v"}):
        raise InputError(f"concat {spec!r} has one of the two vectors only. Try 'u,v,|u-v|'")
    return parts


def read_classification_head(model: Path) -> ClassificationHead | None:
    """The head in the folder of a model; None if it has none."""
    folder = model / FOLDER
    if not folder.is_dir():
        return None
    config = read_object(folder / "config.json")
    weights = module_weights(model, folder)
    if "weight" not in weights:
        raise ModelError(
            f"{folder}: a classification head needs the tensor 'weight', found {', '.join(weights)}"
        )
    head = ClassificationHead(
        str(config.get("concat")), weights["weight"], weights.get("bias"), _labels(folder, config)
    )
    try:
        check_classification_head(head)
    except InputError as error:
        raise ModelError(f"{folder}: {error}") from error
    return head


def write_classification_head(head: ClassificationHead, model: Path) -> None:
    """Write the head into the folder of a model."""
    from safetensors.numpy import save_file

    from gemel.files.atomic import write_json

    check_classification_head(head)
    folder = model / FOLDER
    write_json(folder / "config.json", {"concat": head.concat, "labels": list(head.labels)})
    tensors = {"weight": head.weight} if head.bias is None else {"weight": head.weight, "bias": head.bias}
    ready = {name: np.array(tensor, np.float32, order="C") for name, tensor in tensors.items()}
    save_file(ready, folder / "model.safetensors", metadata={"format": "pt"})


def check_classification_head(head: ClassificationHead) -> None:
    """Refuse a head whose parts do not fit together."""
    parts, labels = parse_concat(head.concat), len(head.labels)
    if labels < 2 or len(set(head.labels)) < labels:
        raise InputError(f"a classification head needs two or more different labels, got {list(head.labels)}")
    shape = head.weight.shape
    bias = (labels,) if head.bias is None else head.bias.shape
    if len(shape) != 2 or shape[0] != labels or shape[1] < 1 or shape[1] % len(parts) or bias != (labels,):
        raise InputError(
            f"a weight of shape {shape} and a bias of shape {None if head.bias is None else bias} "
            f"do not fit {labels} labels and the parts {head.concat!r}"
        )
    if not (np.isfinite(head.weight).all() and (head.bias is None or np.isfinite(head.bias).all())):
        raise InputError("the classification head has weights that are NaN or infinite. Train it again")


def _labels(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    labels = config.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ModelError(f"{folder / 'config.json'}: 'labels' must be a list of names, got {labels!r}")
    return tuple(labels)
