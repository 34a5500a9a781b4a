"""Layers that make the vectors of a model use their space more evenly, fitted on unlabeled texts.

Whitening gives every direction the same variance (arXiv 2103.15316); centering subtracts the mean; all-but-the-top also
removes the widest directions (arXiv 1702.01417); BERT-flow is an invertible network, trained with torch by maximum
likelihood, that turns the vectors into a Gaussian cloud (arXiv 2011.05864). `isotropy` measures the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.checkpoint.head import Coupling, Dense, Flow
from gemel.checkpoint.write import check_target, write_checkpoint
from gemel.encoder.head import finish
from gemel.errors import InputError, MissingExtra
from gemel.model import Model
from gemel.registry import Registry
from gemel.types import Vectors
from gemel.vectors.similarity import checked, normalize

FLOOR = 1e-8
"""Of the largest variance. What is below is the rounding of float32, not a direction of the texts."""

BATCH = 128  # vectors in a training step of a flow

RATE = 1e-3  # of Adam


@dataclass(frozen=True)
class PostprocessResult:
    """The result of `save_postprocessed`: a model saved with one more layer."""

    folder: Path
    method: str
    fitted: Fitted
    texts: int
    """Distinct texts that the layer was fitted on."""
    before: Isotropy
    after: Isotropy

    @property
    def dim(self) -> int:
        return int(self.fitted.layer.weight.shape[0])

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "method": self.method,
            "texts": self.texts,
            "dim": self.dim,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "note": self.fitted.note,
        }


def save_postprocessed(
    model: Model,
    texts: Iterable[str],
    folder: Path | str,
    *,
    method: str = "whitening",
    settings: Settings | None = None,
    overwrite: bool = False,
) -> PostprocessResult:
    """Fit `method` on the distinct texts, and save the model with it as its last layer.

    The new model normalizes, since its vectors are meant to be compared by cosine.
    """
    fit = METHODS[method]
    check_target(Path(folder), model.checkpoint, overwrite)  # before minutes of work
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        raise InputError(f"a fit needs at least 2 different texts, got {len(distinct)}. Give a few thousand")
    vectors = model.encode(distinct, normalize=False)
    fitted = fit(vectors, settings or Settings())
    layers = (*model.checkpoint.dense, fitted.layer)
    path = write_checkpoint(model.checkpoint, folder, dense=layers, normalize=True, overwrite=overwrite)
    return PostprocessResult(
        folder=path,
        method=method,
        fitted=fitted,
        texts=len(distinct),
        before=isotropy(vectors),
        after=isotropy(fitted.apply(vectors)),
    )


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted layer of a model: a linear map or a flow."""

    layer: Dense
    note: str = ""
    """What to know about the fit."""
    log_likelihood: tuple[float, ...] = ()
    """Of a flow, in nats per dimension: before training, then after each epoch."""

    def apply(self, vectors: ArrayLike) -> Vectors:
        """(n, in) -> (n, out): the same bits as a model with this layer gives before it normalizes."""
        ready, dim = checked(vectors, "vectors"), self.layer.weight.shape[1]
        if ready.shape[1] != dim:
            what = "flow" if isinstance(self.layer, Flow) else "map"
            raise InputError(f"vectors have {ready.shape[1]} dimensions, the {what} takes {dim}")
        return finish(ready, [self.layer], unit=False, dim=None)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of the methods; one that a method does not have must stay None."""

    dim: int | None = None
    """whitening: directions to keep. None: all."""
    remove: int | None = None
    """all-but-the-top: directions to remove. None: a hundredth of the dimensions."""
    epochs: int | None = None
    """flow: passes over the vectors. None: 4."""
    seed: int | None = None
    """flow: seed of the first weights and the order of vectors. None: 0."""


def fit_whitening(vectors: ArrayLike, dim: int | None = None, *, floor: float = FLOOR) -> Fitted:
    """A map after which the vectors have mean 0 and covariance 1; `dim` keeps the widest directions.

    Outputs are ordered by the variance they had, so the first `d` of them are the whitening to `d`. A direction
    whose variance is under `floor` times the largest is set to 0 instead of being amplified; `note` counts them.
    """
    axes = principal_axes(vectors)
    most = len(axes.mean)
    if dim is not None and not 1 <= dim <= most:
        raise InputError(f"dim must be from 1 to {most}, the vectors' own, got {dim}")
    keep = dim or most
    spread = axes.spread[:keep]
    wide = spread > floor * axes.spread[0]
    if not wide.any():
        raise InputError("all vectors are equal: there is no variance to whiten. Give different texts")
    scale = np.where(wide, 1 / np.sqrt(np.where(wide, spread, 1.0)), 0.0)
    flat = int((~wide).sum())
    note = f"{flat} of {keep} directions have no variance and are 0 after the map" if flat else ""
    return _linear_map(axes.directions[:keep] * scale[:, None], axes.mean, note)


def fit_centering(vectors: ArrayLike) -> Fitted:
    """A map that subtracts the mean of `vectors`."""
    ready = checked(vectors, "vectors")
    if not len(ready):
        raise InputError("a mean needs at least 1 vector, got 0")
    return _linear_map(np.eye(ready.shape[1]), ready.mean(axis=0, dtype=np.float64))


def fit_all_but_the_top(vectors: ArrayLike, remove: int | None = None) -> Fitted:
    """A map that subtracts the mean and sets the `remove` widest directions to 0; None: a hundredth of them.

    The vectors keep their dimensions.
    """
    axes = principal_axes(vectors)
    most = len(axes.mean)
    count = max(1, round(most / 100)) if remove is None else remove
    if not 0 <= count < most:
        raise InputError(f"remove must be from 0 to {most - 1}, one less than the dimensions, got {count}")
    top = axes.directions[:count]
    return _linear_map(np.eye(most) - top.T @ top, axes.mean)


@dataclass(frozen=True, eq=False)
class Axes:
    """Mean and principal directions of vectors, in float64."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    """(d,) variances, largest first"""
    directions: NDArray[np.float64]
    """(d, d), a row for each variance"""


def principal_axes(vectors: ArrayLike) -> Axes:
    """Mean and principal directions; the sign of a direction is fixed, so that two runs agree."""
    ready = checked(vectors, "vectors")
    if len(ready) < 2:
        raise InputError(f"a fit needs at least 2 vectors, got {len(ready)}. Give a few thousand")
    exact = ready.astype(np.float64)
    mean = exact.mean(axis=0)
    centered = exact - mean
    spread, columns = np.linalg.eigh(centered.T @ centered / (len(ready) - 1))
    directions = columns.T[::-1]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    return Axes(mean, np.maximum(spread[::-1], 0.0), directions * signs[:, None])


def _linear_map(weight: NDArray[np.float64], mean: NDArray[np.float64], note: str = "") -> Fitted:
    """The map x -> weight @ (x - mean)."""
    bias = (-weight @ mean).astype(np.float32)
    return Fitted(Dense(np.ascontiguousarray(weight, dtype=np.float32), bias, "identity"), note)


def fit_flow(
    vectors: ArrayLike, *, couplings: int = 6, hidden: int = 128, epochs: int = 4, seed: int = 0
) -> Fitted:
    """Train a flow on unlabeled vectors; a few thousand take seconds. The same seed gives the same flow."""
    torch = _torch()
    for name, value, least in (("couplings", couplings, 1), ("hidden", hidden, 1), ("epochs", epochs, 0)):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    start = _initial_flow(vectors, couplings, hidden, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products are slower on more threads, and sums are the same everywhere
    try:
        return _train(torch, start, checked(vectors, "vectors"), epochs, seed)
    finally:
        torch.set_num_threads(threads)


def _initial_flow(vectors: ArrayLike, couplings: int, hidden: int, seed: int) -> Flow:
    """A flow that only rotates the vectors onto their principal axes, at unit variance on average.

    One scale for all axes: scaling each on its own would make the rounding errors of flat ones as wide as the rest.
    """
    axes = principal_axes(vectors)
    dim = len(axes.mean)
    if dim < 2:
        raise InputError(f"a flow needs at least 2 dimensions, got {dim}")
    variance = float(axes.spread.mean())
    if variance <= 1e-30:
        raise InputError("all vectors are equal: there is no variance to learn. Give different texts")
    weight = axes.directions / np.sqrt(variance)
    random = np.random.default_rng(seed)
    steps = tuple(_initial_coupling(dim, hidden, random) for _ in range(couplings))
    return Flow(
        np.ascontiguousarray(weight, np.float32), (-weight @ axes.mean).astype(np.float32), "flow", steps
    )


def _initial_coupling(dim: int, hidden: int, random: np.random.Generator) -> Coupling:
    """A coupling that only permutes: its second layer is zero."""
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


def _train(torch: Any, start: Flow, vectors: Vectors, epochs: int, seed: int) -> Fitted:  # noqa: ANN401
    rotated = torch.from_numpy(
        finish(vectors, [Flow(start.weight, start.bias, "flow", ())], unit=False, dim=None)
    )
    steps = torch_steps(torch, start.couplings)
    optimizer = torch.optim.Adam([weight for step in steps for weight in step[1:]], lr=RATE)
    random = torch.Generator().manual_seed(seed)
    # The linear start is a rotation times a number; its volume is part of the likelihood.
    volume = float(np.linalg.slogdet(start.weight.astype(np.float64))[1])
    history = [_likelihood(torch, steps, rotated, volume)]
    for _ in range(epochs):
        for rows in torch.randperm(len(rotated), generator=random).split(BATCH):
            z, log_scale = torch_forward(torch, steps, rotated[rows])
            loss = (0.5 * (z * z).sum(1) - log_scale).mean() / z.shape[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(_likelihood(torch, steps, rotated, volume))
    couplings = tuple(
        Coupling(old.order, *(weight.detach().numpy().copy() for weight in step[1:]))
        for old, step in zip(start.couplings, steps, strict=True)
    )
    note = f"log-likelihood {history[0]:.3f} before training, {history[-1]:.3f} after {epochs} epochs"
    return Fitted(Flow(start.weight, start.bias, "flow", couplings), note, tuple(history))


def torch_steps(torch: Any, couplings: Sequence[Coupling]) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """(order, w1, b1, w2, b2) of each coupling as tensors; all but the order are trained."""
    return [
        (
            torch.from_numpy(step.order),
            *(torch.tensor(w, requires_grad=True) for w in (step.w1, step.b1, step.w2, step.b2)),
        )
        for step in couplings
    ]


def torch_forward(torch: Any, steps: Sequence[tuple[Any, ...]], x: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """The couplings as in `encoder/head.py`, and the log of their volume change: (n, d), (n,)."""
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


@dataclass(frozen=True)
class Isotropy:
    """How evenly vectors, scaled to length 1, use their space. Perfectly even: 0, 0, 1, dim, dim."""

    vectors: int
    dim: int
    mean_cosine: float
    """Of all pairs of two different rows: what two random texts score."""
    mean_length: float
    """Length of the mean vector, 0 to 1: what all texts have in common."""
    partition: float
    """Smallest over largest sum of exp(c · v), c along the principal directions, both ways (arXiv 1702.01417)."""
    effective_rank: float
    """exp of the entropy of the variances: directions in use."""
    participation_ratio: float
    """(Σ variance)² / Σ variance²: directions in use, less affected by many small ones."""

    def summary(self) -> str:
        """A description in one line."""
        return (
            f"mean cosine {self.mean_cosine:.3f}, mean length {self.mean_length:.3f}, "
            f"partition {self.partition:.3f}, effective rank {self.effective_rank:.1f} "
            f"and participation ratio {self.participation_ratio:.1f} of {self.dim}"
        )

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def isotropy(vectors: ArrayLike) -> Isotropy:
    """The measures of two or more vectors; vectors that are all equal use 0 directions."""
    ready = checked(vectors, "vectors")
    rows, dim = ready.shape
    if rows < 2 or dim < 1:
        raise InputError(
            f"isotropy compares pairs: it needs at least 2 vectors, got {rows} of {dim} dimensions"
        )
    unit = normalize(ready).astype(np.float64)
    total = unit.sum(axis=0)
    own = float((unit * unit).sum())  # the number of rows, without zero vectors
    mean = total / rows
    second = unit.T @ unit / rows
    variances = np.linalg.eigvalsh(second - np.outer(mean, mean))
    wide = variances[variances > 1e-12]  # without what rounding leaves of equal unit vectors
    shares = wide / wide.sum()
    return Isotropy(
        vectors=rows,
        dim=dim,
        mean_cosine=float((total @ total - own) / (rows * (rows - 1))),
        mean_length=float(np.sqrt(mean @ mean)),
        partition=_partition(unit, second),
        effective_rank=float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0,
        participation_ratio=float(1 / (shares * shares).sum()) if len(shares) else 0.0,
    )


def _partition(unit: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    along = unit @ np.linalg.eigh(second)[1]
    # The sign of a principal direction is arbitrary: both count.
    sums = np.concatenate([np.exp(along).sum(axis=0), np.exp(-along).sum(axis=0)])
    return float(sums.min() / sums.max())


METHODS: Registry[Callable[[ArrayLike, Settings], Fitted]] = Registry("method")


def _add_method(name: str, fit: Callable[..., Fitted], *own: str) -> None:
    """`own`: the settings that the method has."""

    def fitted(vectors: ArrayLike, settings: Settings) -> Fitted:
        given = {setting: value for setting, value in vars(settings).items() if value is not None}
        if other := [setting for setting in given if setting not in own]:
            has = f"it has {', '.join(own)}" if own else "it has no settings"
            raise InputError(f"the method {name!r} has no setting {other[0]!r}; {has}")
        return fit(vectors, **given)

    METHODS.add(name)(fitted)


_add_method("whitening", fit_whitening, "dim")
_add_method("centering", fit_centering)
_add_method("all-but-the-top", fit_all_but_the_top, "remove")
_add_method("flow", fit_flow, "epochs", "seed")
