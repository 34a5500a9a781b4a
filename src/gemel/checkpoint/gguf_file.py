"""A GGUF file of llama.cpp: its settings and arrays, read where they stand in the file.

The header is read here and not by the `gguf` package: its reader takes seconds for a large vocabulary and runs almost
for ever where a damaged file gives a huge count. Here every count is compared with the bytes that are left. The
arithmetic of the small number formats is that of the package.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import MissingExtra, ModelError

_VERSIONS = (2, 3)

# Types of settings by their number in a file, as NumPy names them.
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9

_MAX_DIMENSIONS = 4
_ALIGNMENT = 32  # where the file does not say


@dataclass(frozen=True)
class _List:
    """A setting with many values: what they are, and where they start."""

    kind: int
    count: int
    start: int


@dataclass(frozen=True)
class _Stored:
    """An array: its shape, the number of its type, and where it starts behind the header."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """Settings and arrays of one file."""

    def __init__(self, path: Path) -> None:
        _package()
        if not path.is_file():
            raise ModelError(f"no file {path}. Give an existing GGUF file")
        self.path = path
        try:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
            header = _Header(self._bytes)
        except (OSError, ValueError, struct.error) as error:
            raise ModelError(
                f"{path} is not a complete GGUF file ({error}). Fetch or copy it again"
            ) from error
        self._header = header
        self._settings, self._arrays = header.settings, header.arrays
        alignment = self.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{path}: 'general.alignment' is {alignment!r:.60}, not a whole number over 0")
        self._data = -(-header.at // alignment) * alignment
        for name in self._arrays:
            self._span(name)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def names(self) -> list[str]:
        """Of the arrays, in the order of the file."""
        return list(self._arrays)

    @property
    def keys(self) -> list[str]:
        """Of the settings, in the order of the file."""
        return list(self._settings)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any value of the file
        """A setting; the default where the file does not have it."""
        value = self._settings.get(key, default)
        if isinstance(value, _List):
            return self._decoded(key, self._header.values(value))
        return self._decoded(key, value) if isinstance(value, bytes) else value

    def texts(self, key: str) -> list[str]:
        """A setting that is a list of texts; empty where the file does not have it."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ModelError(f"{self.path}: {key!r} is not a list of texts. Fetch or copy the file again")
        return value

    def numbers(self, key: str) -> list[Any]:
        """A setting that is a list of numbers; empty where the file does not have it."""
        value = self.get(key, [])
        if not isinstance(value, list) or any(isinstance(each, str) for each in value):
            raise ModelError(f"{self.path}: {key!r} is not a list of numbers. Fetch or copy the file again")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A setting that is true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: {key!r} is {value!r:.60}, not true or false")
        return value

    @property
    def architecture(self) -> str:
        return str(self.get("general.architecture"))

    def own(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any value of the file
        """A setting of the architecture; without a default it must be there."""
        value = self.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelError(
                f"{self.path} does not say {self.architecture}.{key}: it is not complete, or not a model"
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A setting of the architecture that is a whole number over 0."""
        value = self.own(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r:.60}, only one whole number over 0 is supported"
            )
        return value

    def number(self, key: str, default: float | None = None, *, over: float = 0.0) -> float:
        """A setting of the architecture that is a finite number over `over`."""
        value = self.own(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not over < value < math.inf:
            raise ModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r:.60}, not a number over {over:g}"
            )
        return float(value)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def array(self, name: str) -> NDArray[np.float32]:
        """An array as float32, whatever it is stored as."""
        start, rows, row = self._span(name)
        kind = _package().kind(self._arrays[name].kind)
        stored = np.asarray(self._bytes[start : start + rows * row]).reshape(rows, row)
        try:
            with np.errstate(all="ignore"):  # a damaged scale is found as a number that is not finite
                numbers = _package().dequantize(stored, kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: {name!r} is stored as {kind.name}, which the installed gguf package does not read. "
                "Take a file of another quantization, such as Q8_0"
            ) from error
        return np.array(numbers, dtype=np.float32).reshape(self.shape(name))

    def _span(self, name: str) -> tuple[int, int, int]:
        """Where an array starts, its rows, and the bytes of a row; one that is not in the file is refused."""
        stored = self._arrays[name]
        sizes = _package().sizes(stored.kind)
        if sizes is None:
            raise ModelError(
                f"{self.path}: {name!r} has the type {stored.kind}, which the installed gguf package does not know. "
                "Install a newer one, or take a file of another quantization, such as Q8_0"
            )
        block, size = sizes
        width = stored.shape[-1] if stored.shape else 1
        rows, row, start = prod(stored.shape[:-1]), width // block * size, self._data + stored.offset
        if width % block or start + rows * row > len(self._bytes):
            raise ModelError(
                f"{self.path} is not a complete GGUF file (it ends before {name!r}, of shape {stored.shape}). "
                "Fetch or copy it again"
            )
        return start, rows, row

    def _decoded(self, key: str, value: Any) -> Any:  # noqa: ANN401 - any value of the file
        try:
            if isinstance(value, list):
                return [each.decode() if isinstance(each, bytes) else each for each in value]
            return value.decode()
        except ValueError as error:
            raise ModelError(
                f"{self.path}: {key!r} is not UTF-8 ({error}). Fetch or copy the file again"
            ) from error


class _Header:
    """Settings and arrays in front of the numbers; `at` is where it ends."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data.data
        self.at = 0
        self.settings: dict[str, Any] = {}
        self.arrays: dict[str, _Stored] = {}
        if bytes(self._taken(4)) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        version = self._whole("<I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, known are {_VERSIONS[0]} and {_VERSIONS[1]}")
        arrays, settings = self._whole("<Q"), self._whole("<Q")
        for _ in range(settings):
            key = self._name(self.settings)
            self.settings[key] = self._value(self._whole("<I"))
        for _ in range(arrays):
            name = self._name(self.arrays)
            self.arrays[name] = self._array()

    def values(self, listed: _List) -> list[Any]:
        """The values of a list; texts are bytes."""
        if listed.kind != _STRING:
            kind = np.dtype(_SCALARS[listed.kind])
            numbers: list[Any] = np.frombuffer(self._data, kind, listed.count, listed.start).tolist()
            return numbers
        self.at = listed.start
        return [bytes(self._text()) for _ in range(listed.count)]

    def _value(self, kind: int) -> Any:  # noqa: ANN401 - any value of the file
        if kind == _STRING:
            return bytes(self._text())
        if kind == _ARRAY:
            return self._list()
        size = np.dtype(_SCALARS[kind] if kind in _SCALARS else _unknown(kind)).itemsize
        return np.frombuffer(self._taken(size), _SCALARS[kind])[0].item()

    def _list(self) -> _List:
        kind, count = self._whole("<I"), self._whole("<Q")
        listed = _List(kind, count, self.at)
        if kind == _STRING:
            for _ in range(count):
                self._text()
        else:
            self._taken(count * np.dtype(_SCALARS[kind] if kind in _SCALARS else _unknown(kind)).itemsize)
        return listed

    def _array(self) -> _Stored:
        dimensions = self._whole("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"an array has {dimensions} dimensions")
        shape = tuple(reversed([self._whole("<Q") for _ in range(dimensions)]))
        return _Stored(shape, self._whole("<I"), self._whole("<Q"))

    def _name(self, taken: dict[str, Any]) -> str:
        name = bytes(self._text()).decode()
        if name in taken:
            raise ValueError(f"it has {name!r:.100} twice")
        return name

    def _text(self) -> memoryview:
        return self._taken(self._whole("<Q"))

    def _whole(self, form: str) -> int:
        number: int = struct.unpack_from(form, self._data, self.at)[0]
        self.at += struct.calcsize(form)
        return number

    def _taken(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise ValueError("it ends within its header")
        self.at += count
        return self._data[self.at - count : self.at]


def _unknown(kind: int) -> str:
    raise ValueError(f"a setting has the type {kind}, which is not known")


class _Package:
    """What is taken from the gguf package."""

    def __init__(self) -> None:
        try:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise MissingExtra("reading a GGUF file", "gguf", "gguf") from error
        self.kind: Any = GGMLQuantizationType
        self.dequantize: Any = dequantize
        self._sizes = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}

    def sizes(self, kind: int) -> tuple[int, int] | None:
        """Numbers and bytes of a block of this type; None: an unknown type."""
        return self._sizes.get(kind)


@lru_cache(maxsize=1)
def _package() -> _Package:
    return _Package()
