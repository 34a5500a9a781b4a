"""Random networks as data, in every form that an architecture can have: to hold the engines to the NumPy reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.network import (
    Block,
    Convolution,
    Heads,
    Linear,
    Network,
    Norm,
    RelativeTables,
    Rotary,
    WordStep,
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
    """"bias" for all blocks together, "biases" of their own, or which of "keys" and "queries" the attention has."""
    other_heads: Heads | None = None
    """Of every second block."""
    word_step: int = 0
    """The numbers in between."""
    convolution: int = 0
    """Of the first block: how many tokens it reads."""
    output: int = 0
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
    "umt5": Form(
        head_size=12, rms=True, embedding_norm=False, bias=False, relative="biases",
        network={"prenorm": True, "gated": True, "activation": "gelu-tanh", "attention_scale": 1.0},
    ),
    "gemma2": Form(
        kv_heads=2, head_size=12, rms=True, embedding_norm=False, bias=False, rotary=True, head_norms=True,
        out_norms=True, windows=(7, None), other_heads=Heads(4, 1, 20, 0.25), word_step=20, output=24,
        network={**DECODER, "activation": "gelu-tanh", "word_scale": 5.7, "attention_scale": 1.0},
    ),
    "deberta": Form(relative="keys queries"),
    "deberta convolution": Form(relative="keys queries", convolution=3),
    "wide convolution": Form(convolution=5, width=36),
    "deberta keys": Form(relative="keys"),
    "deberta queries": Form(relative="queries", network={"attention_scale": 0.125}),
}  # fmt: skip


def random_network(form: Form, seed: int = 0, *, layers: int = 2) -> Network:
    """A network of this form with `POSITIONS` positions and `WORDS` words."""
    random = np.random.default_rng(seed)
    size = form.head_size or form.width // form.heads
    usual = Heads(
        form.heads, form.kv_heads or form.heads, size, form.network.get("attention_scale", size**-0.5)
    )

    def numbers(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (scale * random.normal(size=shape)).astype(np.float32)

    def linear(outputs: int, inputs: int) -> Linear:
        bias = numbers(outputs, scale=0.1) if form.bias else None
        return Linear(numbers(outputs, inputs, scale=inputs**-0.5), bias)

    def norm(width: int) -> Norm:
        bias = None if form.rms else numbers(width, scale=0.1)
        return Norm(1 + numbers(width, scale=0.1), bias, 1e-6, form.rms)

    shared_bias = numbers(form.heads, 2 * POSITIONS - 1)
    gated = form.network.get("gated", False)
    rows = 2 * 16
    inner = 2 * form.width

    def block(layer: int) -> Block:
        other = form.other_heads if layer % 2 else None
        heads = other or usual
        head = heads.size
        biases = {"bias": shared_bias, "biases": numbers(form.heads, 2 * POSITIONS - 1)}
        tables = [numbers(form.heads, rows, head, scale=0.1) if kind in form.relative else None
                  for kind in ("keys", "queries")]  # fmt: skip
        return Block(
            qkv=linear((heads.queries + 2 * heads.keys) * head, form.width),
            out=linear(form.width, heads.queries * head),
            heads=other,
            attention_norm=norm(form.width),
            up=linear((2 if gated else 1) * inner, form.width),
            down=linear(form.width, inner),
            ffn_norm=norm(form.width),
            rotary=Rotary(rotary_speeds(100.0, head), 1.1) if form.rotary else None,
            window=form.windows[layer % len(form.windows)],
            causal=form.causal,
            query_norm=norm(head) if form.head_norms else None,
            key_norm=norm(head) if form.head_norms else None,
            value_norm=norm(head) if form.word_step else None,
            attention_out_norm=norm(form.width) if form.out_norms else None,
            ffn_out_norm=norm(form.width) if form.out_norms else None,
            relative=RelativeTables(*tables) if any(table is not None for table in tables) else None,
            relative_bias=biases.get(form.relative),
            word_step=word_step() if form.word_step else None,
            convolution=convolution() if form.convolution and not layer else None,
            scale=1.3 if form.word_step else 1.0,
        )

    def word_step() -> WordStep:
        into, out = linear(form.word_step, form.width), linear(form.width, form.word_step)
        return WordStep(into, norm(form.word_step), linear(form.word_step, form.width), out, norm(form.width))

    def convolution() -> Convolution:
        return Convolution(linear(form.width, form.convolution * form.width), norm(form.width), "gelu")

    distances = np.arange(2 * POSITIONS - 1) - POSITIONS + 1
    options: dict[str, Any] = {"activation": "gelu", **form.network}
    return Network(
        word=numbers(WORDS, form.width),
        positions=None if form.rotary or form.relative.startswith("bias") else numbers(POSITIONS, form.width),
        embedding_norm=norm(form.width) if form.embedding_norm else None,
        projection=None,
        blocks=tuple(block(layer) for layer in range(layers)),
        heads=form.heads,
        max_positions=POSITIONS,
        kv_heads=form.kv_heads,
        head_size=form.head_size,
        final_norm=norm(form.width) if options.get("prenorm") else None,
        output=linear(form.output, form.width) if form.output else None,
        relative_rows=np.clip(distances // 2 + rows // 2, 0, rows - 1).astype(np.int32),
        **options,
    )
