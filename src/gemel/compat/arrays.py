"""Arrays and tensors as arguments and results, without importing torch, and `quantize_embeddings`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import torch


def is_tensor(value: object) -> bool:
    """True for a tensor of torch, which is not imported: a caller with a tensor has imported it."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def as_rows(given: Any, name: str = "embeddings") -> NDArray[Any]:  # noqa: ANN401 - array, tensor, or list of them
    """(n, dim) from an array, a tensor or a list of vectors; one vector is one row."""
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
    """The result as a tensor on the device of the first argument that is one, else as it is."""
    first = next((tensor for tensor in map(_first_tensor, given) if tensor is not None), None)
    return result if first is None else to_tensor(result).to(first.device)


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("a tensor as the result", "torch", "train") from error
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


_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def quantize_embeddings(
    embeddings: Any,  # noqa: ANN401 - an array or a tensor
    precision: str,
    ranges: Any = None,  # noqa: ANN401 - as above
    calibration_embeddings: Any = None,  # noqa: ANN401 - as above
) -> Any:  # noqa: ANN401 - as what came in
    """(n, dim) floats in fewer bytes; binary and ubinary pack 8 dimensions into a byte.

    int8 and uint8 divide the range of each dimension, (2, dim) `ranges` or those of `calibration_embeddings` or of the
    vectors themselves, into 255 steps: unless ranges are given, a result depends on the other vectors.
    `gemel.quantize` has no such ranges.
    """
    if precision not in _PRECISIONS:
        raise InputError(
            f"precision must be one of {', '.join(_PRECISIONS)}, got {precision!r}. "
            "float16: gemel.load(...).encode(texts, output='float16')"
        )
    rows = as_rows(embeddings).astype(np.float32)
    if precision == "float32":
        return like(rows, embeddings)
    if precision.endswith("binary"):
        levels = np.packbits(rows > 0, axis=1)
    else:
        start, step = _steps(rows, ranges, calibration_embeddings)
        levels = np.clip((rows - start) / step, 0, 255).astype(np.uint8)
    if precision.startswith("u"):
        return like(levels, embeddings)
    # The signed form is the byte minus 128, not the same bits.
    return like((levels.astype(np.int16) - 128).astype(np.int8), embeddings)


def _steps(rows: Any, ranges: Any, calibration: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays
    if ranges is not None:
        low, high = as_rows(ranges, "ranges")
    else:
        sample = rows if calibration is None else as_rows(calibration, "calibration_embeddings")
        if len(sample) < 2:
            raise InputError(
                "int8 ranges need more than one vector. Give ranges or calibration_embeddings, or use int8 vectors "
                "without ranges: gemel.load(...).encode(texts, output='int8')"
            )
        low, high = sample.min(axis=0), sample.max(axis=0)
    step = (high - low) / 255
    return low, np.where(step == 0, 1, step)
