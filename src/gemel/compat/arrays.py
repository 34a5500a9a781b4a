"""Arrays in, arrays out; tensors in, tensors out. torch is needed only by those who use it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import torch


def is_tensor(value: object) -> bool:
    """Without loading torch: who has a tensor has loaded it."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def as_rows(given: Any, name: str = "embeddings") -> NDArray[Any]:  # noqa: ANN401 - array, tensor, or list of them
    """(n, dim) out of an array, a tensor or a list of vectors; one vector is one row."""
    array = _as_array(given)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{name} must be vectors of numbers, (n, dim) or (dim,), got {array.dtype} {array.shape}"
        )
    return array


def is_one(given: Any) -> bool:  # noqa: ANN401 - as above
    """True for a single vector."""
    return _as_array(given).ndim == 1


def like(result: NDArray[Any], *given: object) -> Any:  # noqa: ANN401 - an array or a tensor
    """The result as a tensor where anything that was given is one, on the device of the first."""
    found = next((tensor for tensor in map(_first_tensor, given) if tensor is not None), None)
    return result if found is None else to_tensor(result).to(found.device)


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("a tensor as the answer", "torch", "train") from error
    return torch.from_numpy(np.ascontiguousarray(array))


def _as_array(given: Any) -> NDArray[Any]:  # noqa: ANN401 - as above
    if is_tensor(given):
        return np.asarray(given.detach().cpu().numpy())
    if isinstance(given, list | tuple) and given and not np.isscalar(given[0]):
        return np.stack([_as_array(each) for each in given])
    return np.asarray(given)


def _first_tensor(given: object) -> torch.Tensor | None:
    value = given[0] if isinstance(given, list | tuple) and given else given
    return value if is_tensor(value) else None
