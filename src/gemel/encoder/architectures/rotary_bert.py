"""BERT with rotary positions: NomicBERT, GTE and Jina Embeddings v3 (arXiv 2402.01613, 2407.19669, 2409.10173).

Each was published with code of its own (`trust_remote_code`) and later became a class of transformers, so their
checkpoints have two spellings of config.json and of the names of weights. Both are read; no code of a checkpoint runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gemel.checkpoint.adapter import chosen_task
from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout, key_set
from gemel.checkpoint.files import Tensors
from gemel.encoder.architectures.rotary import KEYS, number, rope_parameters, rotary_of
from gemel.encoder.network import Array, Block, Linear, Network, StoredArray
from gemel.encoder.weights import (
    MAX_POSITIONS,
    CheckpointWeights,
    activation_of,
    epsilon_of,
    heads_of,
    layers_of,
    positive,
    shape_of,
    unsupported,
)
from gemel.errors import ModelError

_CONFIG_KEYS = key_set(
    "hidden_act hidden_size intermediate_size layer_norm_eps max_position_embeddings num_attention_heads",
    "num_hidden_layers pad_token_id type_vocab_size vocab_size",
    KEYS,
)


@dataclass(frozen=True)
class _ConfigNames:
    """Names of the weights of a network."""

    layers: str
    """What stands before the number of a layer."""
    qkv: tuple[str, ...]
    out: str
    attention_norm: str
    up: tuple[str, ...]
    """Of a gated step: what is activated, then what multiplies it."""
    down: str
    ffn_norm: str
    embedding_norm: str = "embeddings.LayerNorm"
    up_first: bool = False
    """One weight has both parts of a gated step, the one that multiplies first."""


_NATIVE = _ConfigNames(
    "layers",
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    ffn_norm="post_mlp_layernorm",
)
_NATIVE_PLAIN = replace(_NATIVE, up=("mlp.fc1",), down="mlp.fc2")
_FLASH = _ConfigNames(
    "encoder.layers",
    ("mixer.Wqkv",),
    out="mixer.out_proj",
    attention_norm="norm1",
    up=("mlp.fc1",),
    down="mlp.fc2",
    ffn_norm="norm2",
    embedding_norm="emb_ln",
)
_NOMIC = replace(_FLASH, qkv=("attn.Wqkv",), out="attn.out_proj", up=("mlp.fc12", "mlp.fc11"))
_NEW = _ConfigNames(
    "encoder.layer",
    ("attention.qkv_proj",),
    out="attention.o_proj",
    attention_norm="attn_ln",
    up=("mlp.up_gate_proj",),
    down="mlp.down_proj",
    ffn_norm="mlp_ln",
    up_first=True,
)


@dataclass(frozen=True)
class _Form:
    """What the three differ in."""

    spellings: tuple[_ConfigNames, _ConfigNames]
    theta: float
    gated: bool
    biases: Callable[[Config], tuple[bool, bool, bool]]
    """Of the attention, of the first and of the second feed-forward layer."""
    epsilon: float = 1e-12
    activation: str = "gelu"
    required: Mapping[str, object] | None = None
    """Settings that have one value only."""


def _read(form: _Form) -> Callable[[Config, CheckpointWeights], Network]:
    """The function that reads networks of this form."""

    def read(config: Config, weights: CheckpointWeights) -> Network:
        _refuse_variants(config, form.required or {})
        names = next(
            names for names in form.spellings if _is_spelled(weights, names) or names is form.spellings[-1]
        )
        width, epsilon = positive(config, "hidden_size"), epsilon_of(config, default=form.epsilon)
        heads, positions = (
            heads_of(config, width),
            positive(config, "max_position_embeddings", most=MAX_POSITIONS),
        )
        _refuse_variants(config, {"head_dim": width // heads})
        rotary = rotary_of(config, width // heads, theta=form.theta)
        return Network(
            word=weights.word(width),
            positions=_first_type(config, weights, positions, width),
            embedding_norm=weights.norm(names.embedding_norm, width, epsilon),
            projection=None,
            blocks=tuple(
                replace(_block(config, weights, form, names, layer), rotary=rotary)
                for layer in range(layers_of(config))
            ),
            heads=heads,
            activation=activation_of(config, default=form.activation),
            max_positions=positions,
            gated=form.gated,
        )

    return read


def _is_spelled(weights: CheckpointWeights, names: _ConfigNames) -> bool:
    return f"{names.layers}.0.{names.qkv[0]}.weight" in weights


def _refuse_variants(config: Config, required: Mapping[str, object]) -> None:
    for key, value in required.items():
        given = config.get(key)
        if given is not None and given != value:
            raise unsupported(f"config.json sets {key!r} to {given!r:.60}, only {value!r} is known")


def _first_type(config: Config, weights: CheckpointWeights, positions: int, width: int) -> Array | None:
    """The row of token type 0, for every position; None: the network has no types."""
    if config.get("type_vocab_size") == 0:
        return None
    types = positive(config, "type_vocab_size", 2)
    table = weights.array("embeddings.token_type_embeddings.weight", types, width)
    return np.broadcast_to(table[0], (positions, width))


def _block(config: Config, weights: CheckpointWeights, form: _Form, names: _ConfigNames, layer: int) -> Block:
    width, inner = positive(config, "hidden_size"), positive(config, "intermediate_size")
    epsilon, at = epsilon_of(config, default=form.epsilon), f"{names.layers}.{layer}"
    attention, first, second = form.biases(config)

    def stacked(parts: tuple[str, ...], rows: int, bias: bool) -> Linear:
        return weights.stacked(
            [f"{at}.{part}" for part in parts], [rows // len(parts)] * len(parts), width, bias=bias
        )

    up = stacked(names.up, inner * (1 + form.gated), first)
    return Block(
        qkv=stacked(names.qkv, 3 * width, attention),
        out=weights.linear(f"{at}.{names.out}", width, width, bias=attention),
        attention_norm=weights.norm(f"{at}.{names.attention_norm}", width, epsilon),
        up=Linear(_HalvesSwapped(up.weight)) if names.up_first else up,
        down=weights.linear(f"{at}.{names.down}", width, inner, bias=second),
        ffn_norm=weights.norm(f"{at}.{names.ffn_norm}", width, epsilon),
    )


@dataclass(frozen=True, eq=False)
class _HalvesSwapped:
    """The second half of the rows, then the first: a `StoredArray` of `network.py`."""

    stored: Array | StoredArray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def __array__(self, dtype: None = None, copy: None = None) -> Array:
        first, second = np.split(np.asarray(self.stored), 2)
        return np.concatenate([second, first])


# NomicBERT.

_NOMIC_NAMES = {
    "activation_function": "hidden_act",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_GATES = {"swiglu": "silu", "geglu": "gelu"}
_TRAINED_POSITIONS = 2048


def _native_nomic(config: Config) -> Config:
    """Of nomic-embed-text v1 and v1.5, which also have both spellings side by side.

    A setting whose two spellings contradict one another keeps both, and is refused as unknown.
    """
    if config.get("moe_every_n_layers"):
        raise ModelError(
            "config.json describes a mixture of experts ('moe_every_n_layers', as nomic-embed-text-v2-moe has), which "
            "is not supported. Use a model without experts, such as nomic-embed-text-v1.5"
        )
    native = dict(config)
    gate = _GATES.get(str(config.get("activation_function")))
    rotary = rope_parameters(config)
    for theirs, name in _NOMIC_NAMES.items():
        value = gate if name == "hidden_act" else config.get(theirs)
        given = rotary.get(name) if name == "rope_theta" else config.get(name)
        if value is not None and given in (None, value):
            native.pop(theirs)
            native |= {} if given is not None else {name: value}
    if config.get("n_positions") is not None:
        native["max_position_embeddings"] = native.pop("n_positions")
    if native.pop("rotary_scaling_factor", None) is not None:
        # The positions of longer texts turn at a speed that depends on the length of the text.
        trained = positive(native, "max_trained_positions", _TRAINED_POSITIONS)
        native["max_position_embeddings"] = min(positive(native, "max_position_embeddings", trained), trained)
    return native


def _nomic_biases(config: Config) -> tuple[bool, bool, bool]:
    attention, first, second = (
        config.get(f"{name}_bias") is True for name in ("qkv_proj", "mlp_fc1", "mlp_fc2")
    )
    return attention, first, second


ARCHITECTURES.add("nomic_bert")(
    Architecture(
        _read(
            _Form(
                (_NATIVE, _NOMIC),
                theta=1000.0,
                gated=True,
                biases=_nomic_biases,
                activation="silu",
                required={
                    "causal": False,
                    "parallel_block": False,
                    "prenorm": False,
                    "rotary_emb_fraction": 1.0,
                    "rotary_emb_interleaved": False,
                    "scale_attn_by_inverse_layer_idx": False,
                    "scale_attn_weights": True,
                    "use_rms_norm": False,
                },
            )
        ),
        HeadLayout("nomic_bert.", "nomic_bert.pooler.dense", "classifier", "tanh"),
        class_prefix="NomicBert",
        config_keys=_CONFIG_KEYS
        | key_set(
            "head_dim mlp_fc1_bias mlp_fc2_bias qkv_proj_bias max_trained_positions causal parallel_block prenorm",
            "rotary_emb_fraction rotary_emb_interleaved scale_attn_by_inverse_layer_idx scale_attn_weights",
            "use_rms_norm",
            # Refused as a whole, by the number of layers without experts.
            "expert_choice_router ffn_div moe_every_n_layers moe_impl moe_normalize_expert_weights moe_resid_pdrop",
            "moe_top_k num_experts num_shared_experts",
            # Training, and how it is computed.
            "attn_pdrop dense_seq_output embd_pdrop fused_dropout_add_ln pad_vocab_size_multiple",
            "parallel_block_tied_norm reorder_and_upcast_attn resid_pdrop use_xentropy",
        ),
        native=_native_nomic,
        tokenizer_types=True,
        wordpiece_vocabulary=True,
    )
)


# GTE.


def _native_gte(config: Config) -> Config:
    """Of the model type "new", whose rotary positions have another default."""
    if config.get("model_type") != "new":
        return config
    return {"rope_theta": 10_000.0, **config, "model_type": "gte"}


def _gte_head(config: Config) -> HeadLayout:
    prefix = "new." if config.get("architectures") == ["NewForSequenceClassification"] else "gte."
    return HeadLayout(prefix, f"{prefix}pooler.dense", "classifier", "tanh")


ARCHITECTURES.add("gte")(
    Architecture(
        _read(
            _Form(
                (_NATIVE, _NEW),
                theta=160_000.0,
                gated=True,
                biases=lambda _: (True, False, True),
                required={
                    "layer_norm_type": "layer_norm",
                    "logn_attention_clip1": False,
                    "logn_attention_scale": False,
                    "pack_qkv": True,
                    "position_embedding_type": "rope",
                },
            )
        ),
        _gte_head,
        class_prefix="Gte",
        config_keys=_CONFIG_KEYS
        | key_set(
            "layer_norm_type logn_attention_clip1 logn_attention_scale pack_qkv position_embedding_type"
        ),
        native=_native_gte,
    )
)


# Jina Embeddings v3.


class AdaptedWeights(Mapping[str, Array]):
    """Weights with the low-rank adapters (LoRA, arXiv 2106.09685) of one task folded into them.

    The code of the checkpoint stores a weight "x.weight" as "x.parametrizations.weight.original", with two stacks of
    matrices beside it, one matrix per task. Here it has its plain name again.
    """

    def __init__(self, weights: Mapping[str, Array], tasks: int, task: int | None, scale: float) -> None:
        """`task`: the number of one of so many `tasks`; None: no adapter is used."""
        self._weights, self._tasks, self._task, self._scale = weights, tasks, task, np.float32(scale)
        ends = {name.removesuffix(_ORIGINAL): name for name in weights if name.endswith(_ORIGINAL)}
        self._originals = {f"{start}.weight": name for start, name in ends.items()}
        plain = (name for name in weights if ".parametrizations." not in name)
        self._names = dict.fromkeys([*plain, *self._originals])

    def __getitem__(self, name: str) -> Array:
        if name not in self._originals:
            return self._weights[name]
        original = self._read(self._originals[name])
        if self._task is None:
            return original
        start = name.removesuffix(".weight")
        left, right = (self._read(f"{start}{_ADAPTER}{part}") for part in "BA")
        # A table is looked up, not multiplied with, so its two matrices have the other order.
        left, right = (right, left) if "embeddings." in name else (left, right)
        rows, columns = original.shape
        rank = right.shape[1] if right.ndim == 3 else 0
        if left.shape != (self._tasks, rows, rank) or right.shape != (self._tasks, rank, columns):
            raise ModelError(
                f"the adapters of {name!r} have the shapes {left.shape} and {right.shape}, which do not fit "
                f"{self._tasks} tasks and a weight of shape {original.shape}"
            )
        folded: Array = original + left[self._task] @ right[self._task] * self._scale
        return folded

    def _read(self, name: str) -> Array:
        if name not in self._weights:
            raise ModelError(f"the weight {name!r} is missing from the checkpoint. The file is incomplete")
        stored = self._weights.read(name) if isinstance(self._weights, Tensors) else self._weights[name]
        array: Array = np.asarray(stored, dtype=np.float32)
        return array

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight, without reading its numbers where that is possible."""
        return shape_of(self._weights, self._originals.get(name, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


_ORIGINAL = ".parametrizations.weight.original"
_ADAPTER = ".parametrizations.weight.0.lora_"


def _adapted(config: Config, weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights for the chosen task."""
    if not any(name.endswith(_ORIGINAL) for name in weights):
        return weights
    task, tasks = chosen_task(config, "lora_adaptations"), config["lora_adaptations"]
    scale = number(config, "lora_alpha", 1) / positive(config, "lora_rank", 4)
    number_of_task = None if task is None else tasks.index(task)
    return AdaptedWeights(weights, len(tasks), number_of_task, scale)


ARCHITECTURES.add("jina_embeddings_v3")(
    Architecture(
        _read(
            _Form(
                (_NATIVE_PLAIN, _FLASH),
                theta=20_000.0,
                gated=False,
                biases=lambda _: (True, True, True),
                epsilon=1e-5,
                required={"position_embedding_type": "rotary"},
            )
        ),
        HeadLayout("roberta.", "classifier.dense", "classifier.out_proj", "tanh"),
        class_prefix="JinaEmbeddingsV3",
        config_keys=_CONFIG_KEYS
        | key_set(
            "default_task load_trained_adapters lora_adaptations lora_alpha lora_main_params_trainable lora_rank",
            # `task_instructions` are the prompts of config_sentence_transformers.json.
            "position_embedding_type task_instructions",
        ),
        adapt=_adapted,
    )
)
