"""Their small vectors: int8 and uint8 by ranges of each dimension, bits packed to signed or unsigned bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemel.compat.arrays import as_rows, like
from gemel.errors import InputError

_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def quantize_embeddings(
    embeddings: Any,  # noqa: ANN401 - an array or a tensor
    precision: str,
    ranges: Any = None,  # noqa: ANN401 - as above
    calibration_embeddings: Any = None,  # noqa: ANN401 - as above
) -> Any:  # noqa: ANN401 - as what came in
    """(n, dim) floats in fewer bytes; binary and ubinary hold 8 dimensions a byte.

    int8 and uint8 divide the range of each dimension, (2, dim) `ranges` or those of `calibration_embeddings` or of the
    vectors themselves, into 255 steps: what a text gets depends on its neighbours, unless ranges are given.
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
    # The signed form is the byte less 128, not the same bits.
    return like((levels.astype(np.int16) - 128).astype(np.int8), embeddings)


def _steps(rows: Any, ranges: Any, calibration: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays
    if ranges is not None:
        low, high = as_rows(ranges, "ranges")
    else:
        seen = rows if calibration is None else as_rows(calibration, "calibration_embeddings")
        if len(seen) < 2:
            raise InputError(
                "int8 ranges need more than one vector. Give ranges or calibration_embeddings, or take int8 vectors "
                "that need none: gemel.load(...).encode(texts, output='int8')"
            )
        low, high = seen.min(axis=0), seen.max(axis=0)
    step = (high - low) / 255
    return low, np.where(step == 0, 1, step)
