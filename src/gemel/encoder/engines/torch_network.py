"""A checkpoint's network in torch, by transformers: for the torch engine and for training.

Reads safetensors only and runs no code that comes with a checkpoint. What transformers would fill with random numbers,
leave out or only notice after it has allocated everything is refused here, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from gemel.checkpoint.files import reason_of
from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.weights import (
    check_sizes,
    is_harmless,
    is_head,
    listing,
    refuse_missing,
    refuse_unexpected,
)
from gemel.errors import ModelError
from gemel.files.isolation import disable_usage_reports

if TYPE_CHECKING:
    from torch import nn

Task = Literal["hidden-states", "pairs"]

# Of a network with an encoder and a decoder, vectors come from the encoder.
_ENCODERS = {
    "longt5": "LongT5EncoderModel",
    "mt5": "MT5EncoderModel",
    "switch_transformers": "SwitchTransformersEncoderModel",
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
}
_DECODER = ("decoder.", "lm_head.")
# Their encoder alone is what others take vectors from, and transformers cannot load it from such a checkpoint.
_NO_ENCODER = {
    "blenderbot",
    "blenderbot-small",
    "m2m_100",
    "marian",
    "pegasus",
    "pegasus_x",
    "prophetnet",
    "t5gemma",
}
_MOST_BUFFERS = 2**28  # numbers that are computed, not stored: masks and tables of positions
_SPARE = 2**24  # numbers of a pooler and the like that a checkpoint may lack


@dataclass(frozen=True)
class _LoadingReport:
    """The weights that transformers reports as missing, unexpected or of another shape."""

    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]


def load_network(
    checkpoint: Checkpoint,
    *,
    task: Task = "hidden-states",
    attention: str | None = None,
    adjust: Callable[[Any], None] | None = None,
) -> nn.Module:
    """The network with exactly the checkpoint's weights, float32; `adjust` may change its config first.

    Raises ImportError where torch or transformers is not there: the caller knows what it was for.
    """
    disable_usage_reports("huggingface_hub")
    import torch
    import transformers

    folder, name = checkpoint.network_folder, checkpoint.name
    shapes = {weight: checkpoint.weights.shape(weight) for weight in checkpoint.weights}
    check_sizes(checkpoint.config, shapes.values(), name)
    settings: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    with quiet_transformers(), _refusals(f"transformers cannot load {name} from {folder}"):
        config = transformers.AutoConfig.from_pretrained(folder, **settings)
        if adjust is not None:
            adjust(config)
        kind = _class_for(config, task)
        _check_skeleton(kind, config, shapes, name)
        if attention is not None:
            settings["attn_implementation"] = attention
        model, report = kind.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **settings,
        )
    _check_weights(model, _loading_report(report), name)
    network: nn.Module = model
    return network


def _class_for(config: Any, task: Task) -> Any:  # noqa: ANN401 - a class of transformers
    import transformers

    if task == "pairs":
        return transformers.AutoModelForSequenceClassification
    if config.model_type in _NO_ENCODER:
        raise ModelError(
            f"the architecture {config.model_type!r} has an encoder and a decoder, and its encoder cannot be loaded "
            "alone. Use a sentence encoder"
        )
    encoder = _ENCODERS.get(config.model_type)
    return transformers.AutoModel if encoder is None else getattr(transformers, encoder)


def _check_skeleton(kind: Any, config: Any, shapes: dict[str, tuple[int, ...]], name: str) -> None:  # noqa: ANN401
    """Build the network without memory, and compare its sizes with those that are stored."""
    import torch

    make = getattr(kind, "from_config", None) or kind._from_config
    with torch.device("meta"):
        skeleton = make(config)
    prefix = _prefix_to_drop(skeleton)
    stored = {weight.removeprefix(prefix): shape for weight, shape in shapes.items()}
    wrong = []
    for weight, tensor in skeleton.named_parameters():
        shape = stored.get(weight, tuple(tensor.shape))
        # Tensors that transformers joins or turns while it loads have other names or another number of axes.
        if shape != tuple(tensor.shape) and len(shape) == tensor.ndim:
            wrong.append(f"{weight!r} with shape {shape}, where config.json asks for {tuple(tensor.shape)}")
    if wrong:
        more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise ModelError(
            f"{name}: the checkpoint holds {wrong[0]}{more}. One of the two files belongs to another model"
        )
    needed = sum(tensor.numel() for tensor in skeleton.parameters())
    computed = sum(tensor.numel() for tensor in skeleton.buffers())
    stored_numbers = sum(map(prod, shapes.values()))
    if needed > 2 * stored_numbers + _SPARE or computed > stored_numbers + _MOST_BUFFERS:
        raise ModelError(
            f"{name}: config.json asks for {needed:,} weights and {computed:,} computed numbers, but the checkpoint "
            f"stores {stored_numbers:,}. One of the two files is damaged or of another model"
        )


def _prefix_to_drop(model: Any) -> str:  # noqa: ANN401
    """The prefix that a larger model puts before the names of its encoder; empty if `model` is such a larger one."""
    prefix = f"{model.base_model_prefix}." if getattr(model, "base_model_prefix", "") else ""
    own = (weight for weight, _ in model.named_parameters())
    return "" if any(weight.startswith(prefix) for weight in own) else prefix


def _loading_report(report: Any) -> _LoadingReport:  # noqa: ANN401 - sets of names, whose classes changed between releases
    return _LoadingReport(
        missing=sorted(report["missing_keys"]),
        unexpected=sorted(report["unexpected_keys"]),
        mismatched=sorted(str(entry[0]) for entry in report["mismatched_keys"]),
    )


def _check_weights(model: Any, report: _LoadingReport, name: str) -> None:  # noqa: ANN401
    # A pooler is not run for hidden states. For pairs it is, and transformers counts it as missing all the same.
    pairs = hasattr(model, "num_labels") and type(model).__name__.endswith("ForSequenceClassification")
    refuse_missing([weight for weight in report.missing if pairs or not is_harmless(weight)], name)
    if report.mismatched:
        raise ModelError(
            f"{name}: the weights {listing(report.mismatched)} have other shapes than config.json asks for"
        )
    children = {child for child, _ in model.named_children()}
    refuse_unexpected([weight for weight in report.unexpected if _counts(weight, model, children)], name)


def _counts(weight: str, model: Any, children: set[str]) -> bool:  # noqa: ANN401
    """True for a stored weight that was not loaded and belongs to the network, or may belong to it."""
    own = weight.removeprefix(f"{model.base_model_prefix}.")
    if is_harmless(own):
        return False
    if type(model).__name__ in _ENCODERS.values() and weight.startswith(_DECODER):
        return False
    if own.partition(".")[0] in children:
        return True
    architectures = model.config.architectures or ()
    from_larger = any("For" in str(each) for each in architectures)
    return not (from_larger or is_head(weight))


@contextmanager
def _refusals(start: str) -> Iterator[None]:
    """Any error of transformers becomes a ModelError."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # of any kind: a missing package of a quantized checkpoint is one, too
        raise ModelError(f"{start}: {reason_of(error)}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers without its progress bar and its table of unused weights."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
