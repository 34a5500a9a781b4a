"""Random networks as data, in every form that an architecture can have: to hold the engines to the NumPy reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.network import (
    Block,
    Linear,
    Network,
    Norm,
    RelativeTables,
    Rotary,
    rotary_speeds,
)

WORDS, POSITIONS = 60, 96


@dataclass(frozen=True)
class Form:
    """What a network has beside the plain post-norm blocks of BERT; the fields are those of `Network` and `Block`."""

    width: int = 32
    heads: int = 4
    kv_heads: int | None = None
    head_size: int | None = None
    rms: bool = False
    embedding_norm: bool = True
    bias: bool = True
    rotary: bool = False
    head_norms: bool = False
    out_norms: bool = False
    relative: str = ""
    """"bias", or which of "keys" and "queries" the disentangled attention has."""
    windows: tuple[int | None, ...] = (None, None)
    causal: bool = False
    network: dict[str, Any] = field(default_factory=dict)


DECODER = {"prenorm": True, "gated": True, "activation": "silu"}
FORMS = {
    "bert": Form(),
    "qwen3": Form(
        kv_heads=2, head_size=16, rms=True, embedding_norm=False, bias=False, rotary=True, head_norms=True,
        causal=True, network=DECODER,
    ),
    "qwen3-window": Form(
        kv_heads=1, rms=True, embedding_norm=False, rotary=True, causal=True, windows=(None, 5), network=DECODER
    ),
    "gemma": Form(
        kv_heads=1, head_size=24, rms=True, embedding_norm=False, bias=False, rotary=True, head_norms=True,
        out_norms=True, windows=(7, None),
        network={**DECODER, "activation": "gelu-tanh", "word_scale": 5.7, "attention_scale": 0.2},
    ),
    "post-norm gated": Form(rotary=True, network={"gated": True, "activation": "gelu"}),
    "t5": Form(
        head_size=12, rms=True, embedding_norm=False, bias=False, relative="bias",
        network={"prenorm": True, "activation": "relu", "attention_scale": 1.0},
    ),
    "deberta": Form(relative="keys queries"),
    "deberta keys": Form(relative="keys"),
    "deberta queries": Form(relative="queries", network={"attention_scale": 0.125}),
}  # fmt: skip


def random_network(form: Form, seed: int = 0, *, layers: int = 2) -> Network:
    """A network of this form with `POSITIONS` positions and `WORDS` words."""
    random = np.random.default_rng(seed)
    head = form.head_size or form.width // form.heads
    keys = form.kv_heads or form.heads

    def numbers(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (scale * random.normal(size=shape)).astype(np.float32)

    def linear(outputs: int, inputs: int) -> Linear:
        bias = numbers(outputs, scale=0.1) if form.bias else None
        return Linear(numbers(outputs, inputs, scale=inputs**-0.5), bias)

    def norm(width: int) -> Norm:
        bias = None if form.rms else numbers(width, scale=0.1)
        return Norm(1 + numbers(width, scale=0.1), bias, 1e-6, form.rms)

    rotary = Rotary(rotary_speeds(100.0, head), 1.1) if form.rotary else None
    gated = form.network.get("gated", False)
    rows = 2 * 16
    inner = 2 * form.width

    def block(layer: int) -> Block:
        tables = [numbers(form.heads, rows, head, scale=0.1) if kind in form.relative else None
                  for kind in ("keys", "queries")]  # fmt: skip
        return Block(
            qkv=linear((form.heads + 2 * keys) * head, form.width),
            out=linear(form.width, form.heads * head),
            attention_norm=norm(form.width),
            up=linear((2 if gated else 1) * inner, form.width),
            down=linear(form.width, inner),
            ffn_norm=norm(form.width),
            rotary=rotary,
            window=form.windows[layer % len(form.windows)],
            causal=form.causal,
            query_norm=norm(head) if form.head_norms else None,
            key_norm=norm(head) if form.head_norms else None,
            attention_out_norm=norm(form.width) if form.out_norms else None,
            ffn_out_norm=norm(form.width) if form.out_norms else None,
            relative=RelativeTables(*tables) if any(table is not None for table in tables) else None,
        )

    distances = np.arange(2 * POSITIONS - 1) - POSITIONS + 1
    options: dict[str, Any] = {"activation": "gelu", **form.network}
    return Network(
        word=numbers(WORDS, form.width),
        positions=None if form.rotary or "bias" in form.relative else numbers(POSITIONS, form.width),
        embedding_norm=norm(form.width) if form.embedding_norm else None,
        projection=None,
        blocks=tuple(block(layer) for layer in range(layers)),
        heads=form.heads,
        max_positions=POSITIONS,
        kv_heads=form.kv_heads,
        head_size=form.head_size,
        final_norm=norm(form.width) if options.get("prenorm") else None,
        relative_bias=numbers(form.heads, 2 * POSITIONS - 1) if "bias" in form.relative else None,
        relative_rows=np.clip(distances // 2 + rows // 2, 0, rows - 1).astype(np.int32),
        **options,
    )
