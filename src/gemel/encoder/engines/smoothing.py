"""Where a few channels are far larger than the rest, 8 bits for a row leave little for the others.

Dividing channel j of a layer's input by a factor and multiplying column j of its weight by the same changes
nothing in exact numbers, and evens out both (SmoothQuant, arXiv 2211.10438, exponent 1/2). The large channels
belong to the network, not to the text: random tokens show the same ones, so no data is needed.
"""

from __future__ import annotations

import numpy as np

from gemel.encoder.engines.plain import PlainNetwork
from gemel.encoder.network import Array, Linear, Network

_TEXTS, _TOKENS, _SEED = 2, 32, 20
_TINY = np.float32(1e-6)


def smoothing_factors(network: Network) -> dict[Linear, Array]:
    """(in,) factors for the layers that read a normalised state: queries, keys, values, and feed-forward up.

    Powers of two: multiplying by them is exact, and last bits that differ between processors hardly ever matter.
    """
    smoothed = {linear for block in network.blocks for linear in (block.qkv, block.up)}
    largest: dict[Linear, Array] = {}

    def watch(linear: Linear, x: Array) -> None:
        if linear in smoothed:
            seen = np.abs(x).max(axis=(0, 1))
            largest[linear] = np.maximum(largest.get(linear, seen), seen)

    random = np.random.default_rng(_SEED)
    tokens = min(_TOKENS, network.max_positions)
    ids = random.integers(0, network.vocabulary, (_TEXTS, tokens)).astype(np.int32)
    PlainNetwork(network, watch).hidden(ids)
    return {linear: _factors(linear, seen) for linear, seen in largest.items()}


def _factors(linear: Linear, inputs: Array) -> Array:
    weights = np.abs(linear.weight).max(axis=0)
    logs = np.log2(np.maximum(inputs, _TINY) / np.maximum(weights, _TINY)) / 2
    # A channel that random tokens leave silent must not become the loudest when a text does use it.
    steps = np.maximum(np.rint(logs - logs.mean()), -2)
    factors: Array = np.exp2(steps).astype(np.float32)
    return factors
