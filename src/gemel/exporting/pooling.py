"""Poolings as nodes: hidden states (b, t, d) and a mask to vectors (b, d). Padding stands on the right.

The same names as in `encoder/pooling.py`, where there is no padding and so no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from gemel.encoder.engines.onnx_graph import FAR
from gemel.exporting.portable import PortableNodes
from gemel.registry import Table

Pool: TypeAlias = Callable[[PortableNodes, str, str], str]
"""(nodes, hidden (b, t, d), mask (b, t, 1) float32 of 0 and 1) -> (b, d)"""

GRAPH_POOLINGS: Table[Pool] = Table("pooling")


def add_pooling(nodes: PortableNodes, hidden: str, mask: str, modes: tuple[str, ...]) -> str:
    """All `modes` side by side, (b, modes * d). A static text without tokens gives zeros."""
    parts = [GRAPH_POOLINGS[mode](nodes, hidden, mask) for mode in modes]
    return parts[0] if len(parts) == 1 else nodes.node("Concat", *parts, axis=1)


@GRAPH_POOLINGS.add("mean")
def mean(nodes: PortableNodes, hidden: str, mask: str) -> str:
    """The sum over the tokens that count, divided by their number."""
    return nodes.node("Div", _total(nodes, hidden, mask), _count(nodes, mask))


@GRAPH_POOLINGS.add("cls")
def cls(nodes: PortableNodes, hidden: str, mask: str) -> str:
    """The first token."""
    return nodes.node("Gather", hidden, nodes.constant(np.array(0)), axis=1)


@GRAPH_POOLINGS.add("max")
def largest(nodes: PortableNodes, hidden: str, mask: str) -> str:
    """The largest number of each dimension; padding is moved out of the way."""
    away = nodes.node("Mul", nodes.node("Sub", nodes.number(1), mask), nodes.constant(np.array(FAR)))
    return nodes.node("ReduceMax", nodes.node("Add", hidden, away), nodes.integers(1), keepdims=0)


@GRAPH_POOLINGS.add("mean-sqrt-len")
def mean_sqrt_len(nodes: PortableNodes, hidden: str, mask: str) -> str:
    """The sum divided by the square root of the length."""
    return nodes.node("Div", _total(nodes, hidden, mask), nodes.node("Sqrt", _count(nodes, mask)))


@GRAPH_POOLINGS.add("weighted-mean")
def weighted_mean(nodes: PortableNodes, hidden: str, mask: str) -> str:
    """Weights 1, 2, ..., t: a running sum of the mask."""
    weights = nodes.node("Mul", nodes.node("CumSum", mask, nodes.constant(np.array(1))), mask)
    return nodes.node("Div", _total(nodes, hidden, weights), _count(nodes, weights))


@GRAPH_POOLINGS.add("last")
def last(nodes: PortableNodes, hidden: str, mask: str) -> str:
    """The one token that counts and whose running number is the length."""
    running = nodes.node("CumSum", mask, nodes.constant(np.array(1)))
    length = nodes.node("ReduceSum", mask, nodes.integers(1), keepdims=1)  # (b, 1, 1)
    here = nodes.cast(nodes.node("Equal", running, length), "FLOAT")
    return _total(nodes, hidden, nodes.node("Mul", here, mask))


def _total(nodes: PortableNodes, hidden: str, weights: str) -> str:
    return nodes.node("ReduceSum", nodes.node("Mul", hidden, weights), nodes.integers(1), keepdims=0)


def _count(nodes: PortableNodes, weights: str) -> str:
    """The sum of the weights, (b, 1); 1 where there are none."""
    total = nodes.node("ReduceSum", weights, nodes.integers(1), keepdims=0)
    return nodes.node("Max", total, nodes.number(1))
