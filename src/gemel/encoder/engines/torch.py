"""The torch engine: architectures that gemel does not read itself, run by transformers. Slower, in the train extra.

`load_network` reads safetensors only and runs no code of a checkpoint. Weights that transformers would fill with random
numbers, leave out, or notice only after it has allocated everything, are refused by name. Training uses it too.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gemel.checkpoint.architecture import key_set, max_positions
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
from gemel.errors import InputError, MissingExtra, ModelError
from gemel.files.machine import disable_usage_reports, usable_cores
from gemel.types import Ids, Vectors

if TYPE_CHECKING:
    from torch import Tensor, nn

Task = Literal["hidden-states", "pairs"]

_PROBE = 8  # tokens of the text that a network runs once when it is loaded
_MOST_ROWS = 32
_MOST_TOKENS = 2048
_LEAST_TOKENS = 16  # per call; with fewer, torch uses other kernels and gives other bits
_MOST_FILLED = 64  # what a text alone is filled up to at most, on machines with many cores
_RANDOM = {"reformer"}  # draws new hash functions in every call
_SHARED_STATE = {"funnel"}  # keeps numbers of the current batch in its modules


class _TorchRunner:
    """Rows of token ids through a network of transformers; subclasses name what comes out.

    Batch invariance: a row has the same bits alone, in any batch and after any other. torch picks its kernels by the
    shape of a batch. So a short text alone is run as a few copies of itself, which takes the kernels of larger batches;
    a batch is compared with its rows alone when its shape is first used, and a length whose bits differ is run row by
    row from then on. Decision 15 has the measurements.
    """

    name = "torch"
    batch_tokens = _MOST_TOKENS
    _task: Task = "hidden-states"
    _gives = "one vector for each token"
    _per_token = True

    def __init__(self, checkpoint: Checkpoint, *, device: str = "cpu") -> None:
        kind = checkpoint.config.get("model_type")
        if kind in _RANDOM:
            raise ModelError(
                f"{checkpoint.name} has the architecture {kind!r}, which draws random numbers while it runs: a text "
                "would have another vector in every call. Use another model"
            )
        try:
            model: Any = load_network(checkpoint, task=self._task)
        except ImportError as error:
            raise MissingExtra("a model without an architecture file", "torch", "train") from error
        _limit_threads()
        model.config.use_cache = False
        try:
            self._model = model.eval().to(device)
        except (RuntimeError, AssertionError) as error:  # torch built without the device asserts
            raise InputError(f"torch cannot use device {device!r}: {error}") from error
        self.device = device
        self.vocabulary = _vocabulary(model, checkpoint)
        self._takes = set(inspect.signature(model.forward).parameters)
        self._prepare = _state_setters(model)
        self._turn: AbstractContextManager[Any] = (
            threading.Lock() if self._prepare or kind in _SHARED_STATE else nullcontext()
        )
        # Experts see tokens of all rows, so the shapes inside depend on the texts: nothing can be compared beforehand.
        self._alone_always = any("expert" in key for key in checkpoint.config)
        # By torch's number of threads, which a program may change: kernels follow it.
        self._alone_lengths: set[tuple[int, int]] = set()
        self._same_bits: set[tuple[int, int, int]] = set()
        self.width = self._probe(checkpoint)

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width) float32."""
        import torch

        self._check(ids)
        tokens = torch.from_numpy(ids.astype(np.int64)).to(self.device)
        with torch.inference_mode():
            parts, start = [], 0
            while start < len(tokens):
                rows = self._rows(len(tokens) - start, tokens.shape[1])
                parts.append(self._batch(tokens[start : start + rows]))
                start += rows
            states: Vectors = torch.cat(parts).float().cpu().numpy()
        return states

    def bytes_per_text(self, tokens: int) -> int:
        """An estimate for an unknown network: twenty matrices of its width, and scores of sixteen heads."""
        return 4 * tokens * (20 * self.width + 16 * tokens)

    def _forward(self, tokens: Tensor) -> Tensor:
        """(b, t) -> (b, t, width); one run of the network."""
        raise NotImplementedError

    def _run(self, inputs: dict[str, Tensor]) -> Any:  # noqa: ANN401 - each architecture has its own class of outputs
        import torch

        ids = inputs["input_ids"]
        inputs = {**inputs, "attention_mask": torch.ones_like(ids)}
        with self._turn:
            for prepare in self._prepare:
                prepare(ids.shape[1])
            return self._model(**{name: value for name, value in inputs.items() if name in self._takes})

    def _copies(self, length: int) -> int:
        """Copies that a single text is run as: enough tokens for the kernels of larger batches."""
        if self._alone_always:
            return 1
        least = min(max(_LEAST_TOKENS, 8 * _threads()), _MOST_FILLED)
        return 1 << int(-(-least // length) - 1).bit_length()

    def _rows(self, waiting: int, length: int) -> int:
        """Rows of the next batch: a power of two, so that few shapes have to be compared, or too few to fill one."""
        if self._alone_always or (_threads(), length) in self._alone_lengths:
            return 1
        most = max(1, min(waiting, _MOST_ROWS, _MOST_TOKENS // length))
        return min(waiting, max(self._copies(length), 1 << (most.bit_length() - 1)))

    def _batch(self, tokens: Tensor) -> Tensor:
        """All rows at once where that gives the bits of each row alone."""
        import torch

        if len(tokens) == 1:
            return self._alone(tokens)
        missing = self._copies(tokens.shape[1]) - len(tokens)
        filled = torch.cat([tokens, tokens[-1:].expand(missing, -1)]) if missing > 0 else tokens
        shape = (_threads(), len(filled), tokens.shape[1])
        if shape in self._same_bits:
            return self._forward(filled)[: len(tokens)]
        alone = torch.cat([self._alone(row[None]) for row in tokens])
        # Two threads may compare the same shape at once; both get the same result.
        if torch.equal(alone, self._forward(filled)[: len(tokens)]):
            self._same_bits.add(shape)
        else:
            self._alone_lengths.add((shape[0], shape[2]))
        return alone

    def _alone(self, row: Tensor) -> Tensor:
        return self._forward(row.repeat(self._copies(row.shape[1]), 1))[:1]

    def _check(self, ids: Ids) -> None:
        if ids.ndim != 2 or ids.size == 0 or ids.min() < 0 or ids.max() >= self.vocabulary:
            allowed = f"0 to {self.vocabulary - 1}"
            raise InputError(
                f"token ids must be (texts, tokens), none empty, from {allowed}; got {ids.shape}"
            )

    def _probe(self, checkpoint: Checkpoint) -> int:
        """The width, measured on a short text; a network that cannot read one is refused at load."""
        import torch

        length = min(_PROBE, max_positions(checkpoint.config) or _PROBE)
        tokens = (torch.arange(length) % self.vocabulary)[None].to(self.device)
        kind = checkpoint.config.get("model_type")
        start = f"{checkpoint.name}: the architecture {kind!r} does not turn token ids into"
        try:
            with torch.inference_mode():
                states, again = self._forward(tokens), self._forward(tokens)
        except Exception as error:  # of any kind: the network was not made for this
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise ModelError(f"{start} {self._gives}: {reason}. Use a model for texts") from error
        if states.ndim != 3 or states.shape[:2] != (1, length if self._per_token else 1):
            raise ModelError(
                f"{start} {self._gives}, but gives the shape {tuple(states.shape)}. Use a model for texts"
            )
        if not torch.equal(states.nan_to_num(), again.nan_to_num()):
            raise ModelError(
                f"{start} the same numbers twice: it draws random numbers while it runs. Use another model"
            )
        return int(states.shape[2])


class TorchEngine(_TorchRunner):
    """Fits `Engine`. Loads safetensors only, and runs no code that comes with a checkpoint."""

    def _forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self._run({"input_ids": tokens}).last_hidden_state
        return states


class TorchPairEngine(_TorchRunner):
    """A cross-encoder with its own head. Fits `Engine` with one row of numbers for each pair: (b, 1, labels).

    Ids from `vocabulary` on are tokens of the second text, as `PairTokenizer` gives them.
    """

    _task: Task = "pairs"
    _gives = "one number for each label"
    _per_token = False

    def __init__(self, checkpoint: Checkpoint, *, typed: bool, device: str = "cpu") -> None:
        self._typed = typed
        super().__init__(checkpoint, device=device)
        # Without a padding id transformers cannot tell where the texts of a batch end, though none is padded here.
        self._alone_always = self._alone_always or self._model.config.pad_token_id is None

    def _forward(self, tokens: Tensor) -> Tensor:
        inputs = {"input_ids": tokens % self.vocabulary}
        if self._typed:
            inputs["token_type_ids"] = tokens // self.vocabulary
        logits: Tensor = self._run(inputs).logits
        return logits[:, None]

    def _check(self, ids: Ids) -> None:
        super()._check(ids % self.vocabulary if self._typed and ids.size and ids.min() >= 0 else ids)


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _limit_threads() -> None:
    """Lower torch's number of threads to the cores that the process may use: torch sees no quota of a container."""
    import torch

    torch.set_num_threads(min(_threads(), usable_cores()))


def _vocabulary(model: Any, checkpoint: Checkpoint) -> int:  # noqa: ANN401
    """Rows of the word table."""
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError, TypeError) as error:
        kind = checkpoint.config.get("model_type")
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which has no table of words: it is not a model for "
            "texts, or it reads more than texts. Use a model for texts"
        ) from error


def _state_setters(model: Any) -> list[Callable[[int], None]]:  # noqa: ANN401
    """What has to be set before a text of so many tokens, so that its vector does not depend on earlier texts."""
    setters = [_rope_setter(module) for module in model.modules() if hasattr(module, "max_seq_len_cached")]
    body = getattr(model, "base_model", model)
    if hasattr(body, "set_attention_type"):
        setters.append(_attention_setter(body))
    return [setter for setter in setters if setter is not None]


def _attention_setter(body: Any) -> Callable[[int], None] | None:  # noqa: ANN401
    """BigBird: a text too short for sparse attention gets the full one, from which transformers never switches back."""
    config, sparse = body.config, body.attention_type
    if sparse != "block_sparse":
        return None
    least = (5 + 2 * config.num_random_blocks) * config.block_size
    return lambda length: body.set_attention_type(sparse if length > least else "original_full")


def _rope_setter(module: nn.Module) -> Callable[[int], None] | None:
    """Rotary positions that are recomputed for a long text: restore them before each text."""
    kinds = getattr(module, "rope_type", None)
    named = kinds.values() if isinstance(kinds, dict) else [kinds]
    if not any("dynamic" in str(kind) or kind == "longrope" for kind in named):
        return None
    ends = ("inv_freq", "max_seq_len_cached", "attention_scaling")
    names = [name for name in (*vars(module), *dict(module.named_buffers())) if name.endswith(ends)]
    initial = {name: _copy(getattr(module, name)) for name in names}

    def restore(_: int) -> None:
        for name, value in initial.items():
            setattr(module, name, _copy(value))

    return restore


def _copy(value: Any) -> Any:  # noqa: ANN401 - a tensor or a number
    return value.clone() if hasattr(value, "clone") else value


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
_NO_ENCODER = key_set("blenderbot blenderbot-small m2m_100 marian pegasus pegasus_x prophetnet t5gemma")
_MOST_BUFFERS = 2**28  # numbers that are computed, not stored: masks and tables of positions
_SPARE = 2**24  # numbers of a pooler and the like that a checkpoint may lack


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
    if checkpoint.tokenizer_file.suffix == ".gguf":
        raise ModelError(
            f"{name} is a GGUF file, which torch does not read. Fetch the safetensors of the model"
        )
    if checkpoint.adapter is not None:
        raise ModelError(
            f"{name} is an adapter to {checkpoint.adapter.base!r}, which torch would run without it. Save the two as "
            "one model first: gemel.load(...).save(folder)"
        )
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
    _check_weights(model, report, name)
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


def _check_weights(model: Any, report: Any, name: str) -> None:  # noqa: ANN401
    """`report`: the names of weights that transformers reports as missing, unexpected or of another shape."""
    # A pooler is not run for hidden states. For pairs it is, and transformers counts it as missing all the same.
    pairs = hasattr(model, "num_labels") and type(model).__name__.endswith("ForSequenceClassification")
    missing = sorted(report["missing_keys"])
    refuse_missing([weight for weight in missing if pairs or not is_harmless(weight)], name)
    mismatched = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    if mismatched:
        raise ModelError(
            f"{name}: the weights {listing(mismatched)} have other shapes than config.json asks for"
        )
    children = {child for child, _ in model.named_children()}
    unexpected = sorted(report["unexpected_keys"])
    refuse_unexpected([weight for weight in unexpected if _counts(weight, model, children)], name)


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
    from_larger = any("For" in str(each) or each == "HF_ColBERT" for each in architectures)
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
