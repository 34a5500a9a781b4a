"""An array that grows on disk while data are read and is memory-mapped afterwards.

The file has no name: it is gone when the process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from array import array
from typing import Any, BinaryIO, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from gemel.errors import WorkError

_FLUSH_BYTES = 2**20


class Spool:
    """Numbers or bytes, appended; `done` gives them as one read-only array."""

    def __init__(self, code: str) -> None:
        """`code`: the type of the module array: "B" bytes, "q" int64, "Q" uint64, "f" float32."""
        self._dtype = np.dtype(code)
        self._waiting = array(code)
        self._limit = _FLUSH_BYTES // self._waiting.itemsize
        self._digest = hashlib.sha256()
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="gemel-"))  # noqa: SIM115
        self._close = finalize(self, self._file.close)  # also when reading ends in an error

    def append(self, value: float) -> None:
        self._waiting.append(cast(Any, value))
        if len(self._waiting) >= self._limit:
            self._flush()

    def extend(self, values: bytes) -> None:
        """Values of the type, as the bytes that they are in memory."""
        self._waiting.frombytes(values)
        if len(self._waiting) >= self._limit:
            self._flush()

    def done(self) -> NDArray[Any]:
        """All that was appended, (n,). Nothing may be appended after it."""
        self._flush()
        size = self._file.tell()
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._close()  # the map keeps the content
        return np.frombuffer(mapped, self._dtype)

    def digest(self) -> bytes:
        """sha256 of all that was flushed; call it after `done`."""
        return self._digest.digest()

    def _flush(self) -> None:
        content = self._waiting.tobytes()
        self._digest.update(content)
        try:
            self._file.write(content)
            self._file.flush()
        except OSError as error:
            raise WorkError(
                f"cannot write training texts to the temporary folder {tempfile.gettempdir()}: {error.strerror}. "
                "Free some space, or set TMPDIR to a folder that has it"
            ) from error
        del self._waiting[:]
