"""What a vector depends on: a record that is stored with vectors and compared later, and the hash of the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gemel.checkpoint.architecture import key_set
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.errors import ModelError
from gemel.types import ShownResult

# Settings of config.json that change the numbers that come out; names and versions in it do not.
_ARITHMETIC = key_set(
    "model_type hidden_act activation hidden_activation layer_norm_eps norm_eps",
    "num_attention_heads n_heads num_hidden_layers n_layers num_hidden_groups",
    "pad_token_id position_embedding_type relative_attention_num_buckets",
    "default_task global_rope_theta local_rope_theta lora_alpha lora_rank rope_parameters rope_scaling rope_theta",
    "layer_types local_attention global_attn_every_n_layers",
)


@dataclass(frozen=True)
class Fingerprint(ShownResult):
    """Equal fingerprints: equal vectors for equal texts, except for last bits where engines or processors differ."""

    weights: str
    """`weights_hash` of the checkpoint."""
    pooling: tuple[str, ...]
    prompt: str
    normalize: bool
    dim: int
    precision: str
    output: str
    max_length: int
    on_long: str

    @property
    def digest(self) -> str:
        """16 hex digits: a hash of all fields."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "pooling": list(self.pooling)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Fingerprint:
        """The fingerprint that `to_json` gave; further keys are ignored."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in content]
        if missing:
            raise ModelError(f"not a fingerprint: it has no {', '.join(missing)}")
        values = {name: content[name] for name in names}
        return cls(**{**values, "pooling": tuple(values["pooling"])})

    def differences(self, other: Fingerprint) -> list[str]:
        """One line for each field that is not equal, for a message."""
        mine, theirs = self.to_json(), other.to_json()
        return [
            f"{name}: {mine[name]!r} is not {theirs[name]!r}" for name in mine if mine[name] != theirs[name]
        ]


def weights_hash(checkpoint: Checkpoint) -> str:
    """sha256 (hex) of all that vectors depend on: weight files, dense layers, tokenizer, and the settings they need.

    The same model in another folder, or with its files in another layout, has the same hash.
    """
    digest = hashlib.sha256(b"gemel weights 1\n")
    for path in (*checkpoint.parts, checkpoint.tokenizer_file):
        digest.update(f"{path.stat().st_size}\n".encode("ascii"))
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)  # adds to it
    settings = {
        "config": {key: checkpoint.config[key] for key in _ARITHMETIC if key in checkpoint.config},
        "dense": [dense.activation for dense in checkpoint.dense],
        "kind": checkpoint.kind,
        "lowercase": checkpoint.lowercase,
        "skip_unknown": checkpoint.skip_unknown,
        "include_prompt": checkpoint.pooling.include_prompt,
        **_unusual(checkpoint),
    }
    digest.update(json.dumps(settings, sort_keys=True).encode("utf-8"))
    return digest.hexdigest()


def _unusual(checkpoint: Checkpoint) -> dict[str, Any]:
    """Settings that most checkpoints do not have: only where they are set, so that other hashes do not change."""
    changed = open_tokenizer(checkpoint).changed if checkpoint.tokenizer_settings else {}
    side = checkpoint.truncation_side
    settings = {
        "tokenizer": dict(changed),
        "truncation_side": None if side == "right" else side,
        "truncate_dim": checkpoint.truncate_dim,
        # Sides that are adapters of one network are two models, each with the hash of its task.
        "query_side": None
        if checkpoint.query_side is None or checkpoint.sides_are_tasks
        else weights_hash(checkpoint.query_side),
        "adapter": checkpoint.adapter and dict(checkpoint.adapter.settings),
    }
    return {name: value for name, value in settings.items() if value}
