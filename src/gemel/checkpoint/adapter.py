"""LoRA adapters in the format of PEFT (arXiv 2106.09685): small matrices that are added to the weights of a base model.

A folder has adapter_config.json and adapter_model.safetensors; the base model is found by its folder or its name. The
sum is formed when a weight is read, so that weights stay in their file until then. Only linear layers are supported.
A checkpoint may also hold one adapter for each of several tasks (jina-embeddings-v3 and v5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import Config, architecture_of, key_set
from gemel.checkpoint.files import Tensors, inside, is_finite, read_object
from gemel.checkpoint.settings import refuse_unknown
from gemel.errors import ModelError

_PREFIX = "base_model.model."

_PART = re.compile(r"^(?P<layer>.+)\.lora_(?P<part>[AB])\.weight$")

_FOLLOWED = key_set(
    "peft_type base_model_name_or_path revision r lora_alpha use_rslora fan_in_fan_out bias",
    "alpha_pattern rank_pattern init_lora_weights",
)
"""adapter_config.json: followed; the rank of a layer is that of its matrices."""

_HARMLESS = key_set(
    "auto_mapping exclude_modules inference_mode layers_pattern layers_to_transform megatron_core",
    "peft_version qalora_group_size target_modules task_type",
)
"""adapter_config.json: training, and which layers have matrices, which the file shows."""

_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base model as it is; others change its weights before training."""


@dataclass(frozen=True)
class Adapter:
    """One adapter as its folder describes it."""

    path: Path
    """adapter_model.safetensors"""
    base: str
    """The folder or the name of the base model."""
    revision: str | None
    settings: Mapping[str, Any]
    """What the sum depends on besides the matrices."""

    def scale(self, layer: str, rank: int) -> float:
        """The factor on the product of the matrices of one layer."""
        patterns = self.settings["alpha_pattern"]
        key = next((key for key in patterns if f".{layer}".endswith(f".{key}")), None)
        alpha = float(self.settings["lora_alpha"] if key is None else patterns[key])
        return alpha / (rank**0.5 if self.settings["use_rslora"] else rank)


def read_adapter(folder: Path) -> Adapter:
    """The adapter in `folder`; one that is not a plain LoRA of linear layers is refused."""
    path = folder / "adapter_config.json"
    config = read_object(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{path}: an adapter of the kind {kind!r} is not supported, only 'LORA'. {_MERGE}")
    refuse_unknown(path, config, _FOLLOWED, _HARMLESS)
    start = config.get("init_lora_weights")
    if not any(start is value or start == value for value in _PLAIN_STARTS):
        raise ModelError(f"{path}: 'init_lora_weights' {start!r} changed the base model. {_MERGE}")
    if config.get("bias") not in (None, "none"):
        raise ModelError(f"{path}: 'bias' is {config['bias']!r}, only 'none' is supported. {_MERGE}")
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{path} does not name its base model. Write its folder as 'base_model_name_or_path'"
        )
    settings = {
        "lora_alpha": config.get("lora_alpha", 8),
        "alpha_pattern": config.get("alpha_pattern") or {},
        "use_rslora": config.get("use_rslora") is True,
        "fan_in_fan_out": config.get("fan_in_fan_out") is True,
    }
    _check_alphas(path, settings["lora_alpha"], settings["alpha_pattern"])
    return Adapter(
        folder / "adapter_model.safetensors", base, revision if isinstance(revision, str) else None, settings
    )


def _check_alphas(path: Path, alpha: object, patterns: object) -> None:
    """Refuse what is no number, and regular expressions: a file that is not trusted could make them run for ever."""
    named = patterns if isinstance(patterns, dict) else {"": None}
    if not all(_is_number(each) for each in (alpha, *named.values())):
        raise ModelError(f"{path}: 'lora_alpha' and the values of 'alpha_pattern' must be finite numbers")
    if bad := next((key for key in named if not re.fullmatch(r"[\w.]+", key)), None):
        raise ModelError(f"{path}: 'alpha_pattern' has {bad!r}; only names of layers are supported. {_MERGE}")


def _is_number(value: object) -> bool:
    """A number, and none that would make weights infinite."""
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < _LARGEST


_LARGEST = 1e30

_MERGE = "Merge it into the base model with peft (merge_and_unload) and save the result"


WITHOUT_TASK = "none"
"""The name of no task: the weights without any adapter."""


def chosen_task(config: Config, key: str) -> str | None:
    """The task of `default_task`, one of those that config.json lists under `key`; None: no adapter is used.

    A checkpoint with adapters has no other default: its vectors depend on the task.
    """
    task, tasks = config.get("default_task"), config.get(key)
    if not isinstance(tasks, list) or not tasks or not all(isinstance(name, str) for name in tasks):
        raise ModelError(f"config.json must list the tasks of the adapters as {key!r}, got {tasks!r:.200}")
    known = ", ".join(map(repr, [*tasks, WITHOUT_TASK]))
    if task is None:
        raise ModelError(
            "the checkpoint has an adapter for each of several tasks, and its vectors depend on the task. Choose one: "
            f"gemel.load(..., task={tasks[0]!r}), or 'default_task' in config.json. Known: {known}"
        )
    if task not in (*tasks, WITHOUT_TASK):
        raise ModelError(f"the checkpoint has no adapter for the task {task!r}. Known: {known}")
    return None if task == WITHOUT_TASK else str(task)


def read_task_adapter(folder: Path, config: Config) -> Adapter | None:
    """The adapter of the chosen task, in a folder of the checkpoint; None: no task was chosen, or there are none."""
    if config.get("default_task") is None:
        return None
    task = chosen_task(config, "task_names")
    return None if task is None else read_adapter(inside(folder, f"adapters/{task}"))


def config_without_tasks(config: Config) -> dict[str, Any]:
    """config.json of the network with the adapter of one task in its weights."""
    architecture = architecture_of(config)
    assert architecture is not None, "such a checkpoint is of a known architecture"
    kept = {key: value for key, value in config.items() if key not in _TASK_KEYS}
    return {**kept, "architectures": [f"{architecture.class_prefix}Model"]}


_TASK_KEYS = ("auto_map", "default_task", "task_names")


class AdaptedTensors(Tensors):
    """The weights of a base model with an adapter added to them."""

    def __init__(self, base: Tensors, adapter: Adapter) -> None:
        self.files = base.files
        self._base = base
        self._adapter = adapter
        self._matrices = Tensors({adapter.path: None})
        self._layers = _layers(adapter.path, self._matrices)
        self._stored = {self._find(layer): layer for layer in self._layers}
        self._sums: dict[str, NDArray[np.float32]] = {}
        for name, layer in self._stored.items():
            self._check_shapes(name, layer)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self._stored:
            return self._base[name]
        if name not in self._sums:
            self._sums[name] = self.read(name)
            self._sums[name].flags.writeable = False
        return self._sums[name]

    def read(self, name: str) -> NDArray[np.float32]:
        array = self._base.read(name)
        if name in self._stored:
            array += self._delta(self._stored[name])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)

    def __contains__(self, name: object) -> bool:
        return name in self._base

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(name)

    def metadata(self, path: Path) -> Mapping[str, str]:
        return self._base.metadata(path)

    def finite(self, name: str) -> bool:
        return is_finite(self.read(name)) if name in self._stored else self._base.finite(name)

    def _delta(self, layer: str) -> NDArray[np.float32]:
        """What is added to the weight of a layer."""
        first, second = (self._matrices[name] for name in self._layers[layer])
        delta = second @ first * np.float32(self._adapter.scale(layer, len(first)))
        return np.asarray(delta.T if self._adapter.settings["fan_in_fan_out"] else delta, dtype=np.float32)

    def _find(self, layer: str) -> str:
        """The weight of the base model for a layer; either may have a prefix that the other has not."""
        target = f"{layer}.weight"
        if target in self._base:
            return target
        names = [name for name in self._base if name.endswith(f".{target}") or target.endswith(f".{name}")]
        if len(names) != 1:
            count = "none" if not names else f"{len(names)}"
            raise ModelError(
                f"{self._adapter.path}: the adapter changes the layer {layer!r}, and the base model "
                f"{self._adapter.base!r} has {count} of that name. Is it another model?"
            )
        return names[0]

    def _check_shapes(self, name: str, layer: str) -> None:
        (rank, inputs), (outputs, again) = (self._matrices.shape(part) for part in self._layers[layer])
        expected = (inputs, outputs) if self._adapter.settings["fan_in_fan_out"] else (outputs, inputs)
        if not rank or rank != again or self._base.shape(name) != expected:
            raise ModelError(
                f"{self._adapter.path}: the matrices of {layer!r} have the ranks {rank} and {again} and are for a "
                f"weight of shape {expected}; {name!r} of the base model has {self._base.shape(name)}"
            )


def _layers(path: Path, matrices: Tensors) -> dict[str, tuple[str, str]]:
    """The layers of an adapter, each with the names of its matrices A (rank, in) and B (out, rank)."""
    parts: dict[str, dict[str, str]] = {}
    for name in matrices:
        match = _PART.match(name.removeprefix(_PREFIX))
        if match is None or len(matrices.shape(name)) != 2:
            raise ModelError(
                f"{path}: the tensor {name!r} is not a LoRA matrix of a linear layer, and only these are supported. "
                f"{_MERGE}"
            )
        parts.setdefault(match["layer"], {})[match["part"]] = name
    half = next((layer for layer, names in parts.items() if len(names) != 2), None)
    if half is not None or not parts:
        what = f"one of the two matrices of {half!r}" if half else "no matrices"
        raise ModelError(f"{path} has {what}: the file is not complete. Fetch or copy it again")
    return {layer: (names["A"], names["B"]) for layer, names in parts.items()}
