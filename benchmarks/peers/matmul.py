"""The float32 limit of the machine: the best rate of a square matrix product, by numpy or by torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from protocol import Answer, answer_requests, installed

SIZES = (1024, 1536, 2048)


def rate(product: Callable[[], Any], size: int, calls: int) -> float:
    """Best GFLOP/s of `calls` products: 2 n^3 operations each."""
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def numpy_product(size: int) -> Callable[[], Any]:
    import numpy as np

    random = np.random.default_rng(0)
    left, right = (random.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def torch_product(size: int) -> Callable[[], Any]:
    import torch

    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(left, right, out=out)


def handle(verb: str, request: Answer) -> Answer:
    library = request["library"]
    if verb == "load":
        if library == "torch":
            import torch

            torch.set_num_threads(request["threads"])
        return {"packages": installed()}
    make = torch_product if library == "torch" else numpy_product
    return {"gflops": {size: rate(make(size), size, request["calls"]) for size in SIZES}}


if __name__ == "__main__":
    answer_requests(handle)
