"""What a score is worth among these texts: calibrations that are made once and kept for the next question."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from gemel.calibration import Calibration, calibrate
from gemel.errors import InputError
from gemel.types import Vectors

_KEPT = 32
_SAMPLE = 200_000  # random pairs: enough for a percentile, a few milliseconds


class Calibrations:
    """The last few, by what they were made of. Safe to use from several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, Calibration | None] = OrderedDict()
        self._lock = threading.Lock()

    def between(self, client: str, left: Vectors, right: Vectors | None = None) -> Calibration | None:
        """Of pairs within `left`, or of left and right; None where they are too few, or too much alike, to show how
        high chance gets. Kept for this client only: another would learn by the time which texts it sent."""
        sides = [np.ascontiguousarray(side) for side in (left, right) if side is not None]
        key = [(side.shape, hashlib.blake2b(side.data, digest_size=16).digest()) for side in sides]
        return self.kept((client, *key), lambda: (left, right))

    def kept(self, key: object, sample: Callable[[], tuple[Vectors, Vectors | None]]) -> Calibration | None:
        """As `between`, for vectors that are fetched only when the key is new."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        found = _calibrated(*sample())
        with self._lock:
            self._known[key] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found


def _calibrated(left: Vectors, right: Vectors | None) -> Calibration | None:
    try:
        return calibrate(left, other=right, sample=_SAMPLE)
    except InputError:
        return None
