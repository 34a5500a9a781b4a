"""Writing a wheel: a zip with METADATA, WHEEL and a RECORD of hashes, the same bytes for the same content.

Nothing is compressed: weights hardly shrink, and bytes would depend on the version of zlib.
"""

from __future__ import annotations

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import IO

_BLOCK = 2**20
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip can say
_MODE = 0o100644 << 16
_WHEEL = "Wheel-Version: 1.0\nGenerator: gemel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class WheelWriter:
    """Adds files one after the other; leaving the `with` block without an error writes the RECORD."""

    def __init__(self, sink: IO[bytes], info: str) -> None:
        """`info` is the name of the .dist-info folder."""
        self._archive = zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._info = info
        self._record: list[str] = []

    def add(self, name: str, source: Path) -> None:
        """The file `source` under this name, a block at a time."""
        digest, size = hashlib.sha256(), source.stat().st_size
        with source.open("rb") as stream, self._archive.open(_entry(name, size), "w") as target:
            written = 0
            while block := stream.read(_BLOCK):
                digest.update(block)
                target.write(block)
                written += len(block)
        self._note(name, digest.digest(), written)

    def add_text(self, name: str, text: str) -> None:
        """A small file with this text."""
        content = text.encode()
        self._archive.writestr(_entry(name, len(content)), content)
        self._note(name, hashlib.sha256(content).digest(), len(content))

    def __enter__(self) -> WheelWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._archive:
            if kind is None:
                self.add_text(f"{self._info}/WHEEL", _WHEEL)
                lines = [*self._record, f"{self._info}/RECORD,,"]
                text = "".join(f"{line}\n" for line in lines)
                self._archive.writestr(_entry(f"{self._info}/RECORD", len(text)), text)

    def _note(self, name: str, digest: bytes, size: int) -> None:
        quoted = f'"{name}"' if "," in name else name
        hashed = urlsafe_b64encode(digest).rstrip(b"=").decode()
        self._record.append(f"{quoted},sha256={hashed},{size}")


def _entry(name: str, size: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = _MODE
    entry.create_system = 3  # Unix, wherever it is written
    entry.file_size = size
    return entry
