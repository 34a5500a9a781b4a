"""BERT-flow: an invertible network that turns the vectors of texts into a Gaussian cloud (arXiv 2011.05864).

Trained with torch (extra: train) by maximum likelihood on vectors alone; what comes out is plain arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gemel.checkpoint.flow import Coupling, Flow
from gemel.encoder.head import finish
from gemel.errors import InputError, MissingExtra
from gemel.postprocess.linear_map import principal_axes
from gemel.similarity import checked
from gemel.types import Vectors

BATCH = 128  # vectors in a step of training
RATE = 1e-3  # of Adam


@dataclass(frozen=True, eq=False)
class FittedFlow:
    """A trained flow and how well it came to explain the vectors."""

    layer: Flow
    """The flow as a layer of a model."""
    log_likelihood: tuple[float, ...]
    """Nats for each dimension of a vector: before training, then after each epoch."""

    @property
    def note(self) -> str:
        first, last = self.log_likelihood[0], self.log_likelihood[-1]
        return f"log-likelihood {first:.3f} before training, {last:.3f} after {len(self.log_likelihood) - 1} epochs"

    def apply(self, vectors: ArrayLike) -> Vectors:
        """(n, dim) -> (n, dim): the same bits as a model with this layer gives before it normalises."""
        return finish(self._checked(vectors), [self.layer], unit=False, dim=None)

    def invert(self, vectors: ArrayLike) -> Vectors:
        """The vectors that `apply` turns into these, but for rounding."""
        z = self._checked(vectors).astype(np.float64)
        for step in reversed(self.layer.couplings):
            half = z.shape[1] // 2
            inner = np.maximum(z[:, :half] @ step.w1.T + step.b1, 0)
            scale, move = np.split(inner @ step.w2.T + step.b2, 2, axis=1)
            z[:, half:] = (z[:, half:] - move) * np.exp(-np.tanh(scale))
            z = z[:, np.argsort(step.order)]
        weight = self.layer.weight.astype(np.float64)
        bias = 0.0 if self.layer.bias is None else self.layer.bias
        return np.linalg.solve(weight, (z - bias).T).T.astype(np.float32)

    def _checked(self, vectors: ArrayLike) -> Vectors:
        ready, dim = checked(vectors, "vectors"), self.layer.weight.shape[1]
        if ready.shape[1] != dim:
            raise InputError(f"vectors have {ready.shape[1]} dimensions, the flow takes {dim}")
        return ready


def fit_flow(
    vectors: ArrayLike, *, couplings: int = 6, hidden: int = 128, epochs: int = 4, seed: int = 0
) -> FittedFlow:
    """Train a flow on unlabelled vectors; a few thousand take seconds. The same seed gives the same flow."""
    torch = _torch()
    for name, value, least in (("couplings", couplings, 1), ("hidden", hidden, 1), ("epochs", epochs, 0)):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    start = first_flow(vectors, couplings, hidden, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small are slower on more; and sums come out the same everywhere
    try:
        return _train(torch, start, checked(vectors, "vectors"), epochs, seed)
    finally:
        torch.set_num_threads(threads)


def first_flow(vectors: ArrayLike, couplings: int, hidden: int, seed: int) -> Flow:
    """A flow that only turns the vectors onto their principal axes, at unit variance on the average.

    One scale for all axes: scaling each on its own would make rounding errors of flat ones as wide as the rest.
    """
    axes = principal_axes(vectors)
    dim = len(axes.mean)
    if dim < 2:
        raise InputError(f"a flow needs at least 2 dimensions, got {dim}")
    variance = float(axes.spread.mean())
    if variance <= 1e-30:
        raise InputError("all vectors are equal: there is no spread to learn. Give different texts")
    weight = axes.directions / np.sqrt(variance)
    random = np.random.default_rng(seed)
    steps = tuple(_first_coupling(dim, hidden, random) for _ in range(couplings))
    return Flow(
        np.ascontiguousarray(weight, np.float32), (-weight @ axes.mean).astype(np.float32), "flow", steps
    )


def _first_coupling(dim: int, hidden: int, random: np.random.Generator) -> Coupling:
    """A coupling that changes nothing yet but the order: its second layer is zero."""
    half = dim // 2
    bound = half**-0.5
    out = 2 * (dim - half)
    return Coupling(
        random.permutation(dim),
        random.uniform(-bound, bound, (hidden, half)).astype(np.float32),
        random.uniform(-bound, bound, hidden).astype(np.float32),
        np.zeros((out, hidden), np.float32),
        np.zeros(out, np.float32),
    )


# Any below: torch and its tensors; torch is an extra.


def _train(torch: Any, start: Flow, vectors: Vectors, epochs: int, seed: int) -> FittedFlow:  # noqa: ANN401
    turned = torch.from_numpy(
        finish(vectors, [Flow(start.weight, start.bias, "flow", ())], unit=False, dim=None)
    )
    steps = torch_steps(torch, start.couplings)
    optimizer = torch.optim.Adam([weight for step in steps for weight in step[1:]], lr=RATE)
    random = torch.Generator().manual_seed(seed)
    # The linear start is a rotation times a number; its volume counts in the likelihood.
    volume = float(np.linalg.slogdet(start.weight.astype(np.float64))[1])
    history = [_likelihood(torch, steps, turned, volume)]
    for _ in range(epochs):
        for rows in torch.randperm(len(turned), generator=random).split(BATCH):
            z, log_scale = torch_forward(torch, steps, turned[rows])
            loss = (0.5 * (z * z).sum(1) - log_scale).mean() / z.shape[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(_likelihood(torch, steps, turned, volume))
    couplings = tuple(
        Coupling(old.order, *(weight.detach().numpy().copy() for weight in step[1:]))
        for old, step in zip(start.couplings, steps, strict=True)
    )
    return FittedFlow(Flow(start.weight, start.bias, "flow", couplings), tuple(history))


def torch_steps(torch: Any, couplings: Sequence[Coupling]) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """(order, w1, b1, w2, b2) of each coupling as tensors; all but the order can be trained."""
    return [
        (
            torch.from_numpy(step.order),
            *(torch.tensor(w, requires_grad=True) for w in (step.w1, step.b1, step.w2, step.b2)),
        )
        for step in couplings
    ]


def torch_forward(torch: Any, steps: Sequence[tuple[Any, ...]], x: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """What `encoder/head.py` does with the couplings, and the log of how much it stretches space: (n, d), (n,)."""
    log_scale = torch.zeros(len(x))
    for order, w1, b1, w2, b2 in steps:
        x = x[:, order]
        half = x.shape[1] // 2
        scale, move = (torch.relu(x[:, :half] @ w1.T + b1) @ w2.T + b2).chunk(2, dim=1)
        scale = torch.tanh(scale)
        x = torch.cat([x[:, :half], x[:, half:] * torch.exp(scale) + move], dim=1)
        log_scale = log_scale + scale.sum(1)
    return x, log_scale


def _likelihood(torch: Any, steps: Sequence[tuple[Any, ...]], x: Any, volume: float) -> float:  # noqa: ANN401
    with torch.no_grad():
        z, log_scale = torch_forward(torch, steps, x)
        mean = float((log_scale - 0.5 * (z * z).sum(1)).double().mean())
    return (mean + volume) / int(x.shape[1]) - 0.5 * float(np.log(2 * np.pi))


def _torch() -> Any:  # noqa: ANN401 - the module
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("training a flow", "torch", "train") from error
    return torch
