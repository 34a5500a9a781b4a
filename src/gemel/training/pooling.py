"""The poolings of inference, written for packed token vectors with a gradient. Tested against the originals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gemel.training.packing import Pack

if TYPE_CHECKING:
    from torch import Tensor


def _total(hidden: Tensor, pack: Pack) -> Tensor:
    return hidden.new_zeros(pack.texts, hidden.shape[1]).index_add(0, pack.owners, hidden)


def _mean(hidden: Tensor, pack: Pack) -> Tensor:
    return _total(hidden, pack) / pack.lengths[:, None].clamp(min=1)


def _mean_sqrt_len(hidden: Tensor, pack: Pack) -> Tensor:
    return _total(hidden, pack) / pack.lengths[:, None].clamp(min=1).sqrt()


def _weighted_mean(hidden: Tensor, pack: Pack) -> Tensor:
    weights = (pack.places + 1).to(hidden.dtype)[:, None]
    return _total(hidden * weights, pack) / _total(weights, pack)


def _max(hidden: Tensor, pack: Pack) -> Tensor:
    import torch

    largest = []
    for bucket in pack.buckets:
        states = bucket.spread(hidden)
        if bucket.absent is not None:
            states = states.masked_fill(bucket.absent[..., None], float("-inf"))
        largest.append(states.amax(1))
    return torch.cat(largest)


def _cls(hidden: Tensor, pack: Pack) -> Tensor:
    return hidden[pack.lengths.cumsum(0) - pack.lengths]


def _last(hidden: Tensor, pack: Pack) -> Tensor:
    return hidden[pack.lengths.cumsum(0) - 1]


_POOLINGS: dict[str, Callable[[Tensor, Pack], Tensor]] = {
    "cls": _cls,
    "last": _last,
    "max": _max,
    "mean": _mean,
    "mean-sqrt-len": _mean_sqrt_len,
    "weighted-mean": _weighted_mean,
}


def pool_packed(hidden: Tensor, pack: Pack, modes: tuple[str, ...]) -> Tensor:
    """(T, d) token vectors -> (n, modes * d), all modes side by side, texts in the order in which they were given."""
    import torch

    return torch.cat([_POOLINGS[mode](hidden, pack) for mode in modes], dim=1)[pack.back]
