"""Writes a model as a pip-installable wheel, so that a closed network can distribute models with its own package index.

`gemel.load(NAME)` finds installed models by their entry point (`sources.py`). A wheel is a zip file with METADATA,
WHEEL and a RECORD of hashes; the same content gives the same bytes. Nothing is compressed: weights hardly shrink, and
the bytes would depend on the version of zlib. Here too: the license that a model card names (`read_license`), from the
front matter of its README.md, of which `key: value` lines of the top level are read.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from gemel.checkpoint.cache import is_name
from gemel.checkpoint.fingerprint import weights_hash
from gemel.checkpoint.folder import Checkpoint, is_cross_encoder, read_checkpoint
from gemel.checkpoint.sources import GROUP, INSIDE
from gemel.errors import InputError, WorkError
from gemel.files.atomic import atomic_file

_VERSION = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")

_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")

_LICENSE = re.compile(r"[A-Za-z0-9.+() -]+")

_SUFFIXES = {".json", ".txt", ".md", ".model", ".spm", ".safetensors"}

_ELSEWHERE = {"onnx", "openvino"}  # sub-folders with the model in other formats

_LICENSE_FILES = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)([._-].*)?", re.IGNORECASE)


@dataclass(frozen=True)
class ModelWheel:
    """A wheel that was written."""

    path: Path
    name: str
    """What pip calls it."""
    version: str
    model: str
    """The name for `gemel.load`."""
    size: int
    weights_hash: str
    licenses: tuple[str, ...]
    """The license's name if it was given, and the files with its text."""


@dataclass(frozen=True)
class _Wheel:
    """The content of the wheel's own files."""

    model: str
    name: str
    version: str
    hash: str
    license: str | None
    texts: dict[str, Path]
    """License texts and notices, by the name they get."""

    @property
    def package(self) -> str:
        return re.sub(r"[-_.]+", "_", self.name).lower()

    @property
    def stem(self) -> str:
        return f"{self.package}-{self.version}"


def build_model_wheel(
    folder: Path,
    out: Path,
    *,
    model: str | None = None,
    name: str | None = None,
    version: str = "1.0",
    license: str | None = None,
    license_files: Sequence[Path] = (),
    overwrite: bool = False,
) -> ModelWheel:
    """Write the wheel into the folder `out`; the same model and arguments give the same bytes.

    `model` is the name for `gemel.load` (default: the folder's), `name` what pip calls it. `license` is an SPDX
    expression; it may be left out where the model's folder or `license_files` hold the text.
    """
    checkpoint = read_checkpoint(folder, cross=is_cross_encoder(folder))
    wheel = _describe(checkpoint, model or checkpoint.name, name, version, license, license_files)
    target = Path(out) / f"{wheel.stem}-py3-none-any.whl"
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists. Give another version, or overwrite it (overwrite=True)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as working, working.open("wb") as sink:
            _write(wheel, model_files(folder), sink)
    except OSError as error:
        raise WorkError(f"cannot write {target}: {error}") from error
    licenses = (() if license is None else (license,)) + tuple(wheel.texts)
    size = target.stat().st_size
    return ModelWheel(target, wheel.name, wheel.version, wheel.model, size, wheel.hash, licenses)


def model_files(folder: Path) -> dict[str, Path]:
    """The files of the model by their path below `folder`, without pickles, hidden files and other formats."""
    files = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or parts[0] in _ELSEWHERE or not path.is_file():
            continue
        if path.suffix in _SUFFIXES or _LICENSE_FILES.fullmatch(path.name):
            files["/".join(parts)] = path
    return files


def _describe(
    checkpoint: Checkpoint,
    model: str,
    name: str | None,
    version: str,
    license: str | None,
    license_files: Sequence[Path],
) -> _Wheel:
    if not is_name(model):
        raise InputError(
            f"{model!r} cannot be the name of a model. Names look like 'my-model' or 'org/my-model'"
        )
    name = name or "gemel-model-" + re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-").lower()
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot be the name of a wheel. Use letters, digits, '-', '_' and '.'")
    if not _VERSION.fullmatch(version):
        raise InputError(f"{version!r} is not a version of a wheel. Versions look like '1.0' or '2.1.post1'")
    if license is not None and not _LICENSE.fullmatch(license):
        raise InputError(f"{license!r} is not the name of a license. Names look like 'Apache-2.0' (spdx.org)")
    texts = _license_texts(checkpoint.folder, license_files)
    if license is None and not any(not text.upper().startswith("NOTICE") for text in texts):
        raise InputError(_no_license(checkpoint.folder))
    return _Wheel(model, name, version, weights_hash(checkpoint), license, texts)


def _license_texts(folder: Path, given: Sequence[Path]) -> dict[str, Path]:
    missing = [path for path in given if not path.is_file()]
    if missing:
        raise InputError(f"no file {missing[0]}: expected the text of a license")
    found = [
        path for path in sorted(folder.iterdir()) if path.is_file() and _LICENSE_FILES.fullmatch(path.name)
    ]
    return {path.name: path for path in (*found, *given)}


def _no_license(folder: Path) -> str:
    """The error of a model without a license; its model card is only a hint."""
    named = read_license(folder)
    hint = f" Its model card says {named.name!r}." if named else ""
    return (
        f"{folder} has no license text, and whoever installs the wheel must know the terms.{hint} "
        "Name the license (--license Apache-2.0) or give its text (--license-file FILE)"
    )


def _write(wheel: _Wheel, files: dict[str, Path], sink: IO[bytes]) -> None:
    info = f"{wheel.stem}.dist-info"
    with WheelWriter(sink, info) as writer:
        writer.add_text(f"{wheel.package}/__init__.py", _INIT.format(model=wheel.model))
        for name, path in files.items():
            writer.add(f"{wheel.package}/{INSIDE}/{name}", path)
        for name, path in wheel.texts.items():
            writer.add(f"{info}/licenses/{name}", path)
        writer.add_text(f"{info}/METADATA", _metadata(wheel))
        writer.add_text(f"{info}/entry_points.txt", f"[{GROUP}]\n{wheel.model} = {wheel.package}\n")


def _metadata(wheel: _Wheel) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {wheel.name}",
        f"Version: {wheel.version}",
        f'Summary: The model {wheel.model} for gemel.load("{wheel.model}").',
        "Description-Content-Type: text/markdown",
        *([f"License-Expression: {wheel.license}"] if wheel.license else []),
        *(f"License-File: {name}" for name in wheel.texts),
    ]
    return "\n".join(lines) + "\n\n" + _DESCRIPTION.format(wheel=wheel)


_INIT = '''"""Carries the model {model}; gemel finds it without importing this."""

from pathlib import Path

FOLDER = Path(__file__).parent / "model"
'''

_DESCRIPTION = """\
# {wheel.model}

A model and nothing else. With gemel installed, and no network:

```python
import gemel

model = gemel.load("{wheel.model}")
```

Other programs find the folder as `{wheel.package}.FOLDER`.

sha256 of what computes: `{wheel.hash}`
"""

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


_LONGEST = 100_000  # characters of a README.md that are looked at

_LINE = re.compile(r"^([A-Za-z_]+):[ \t]*(\S.*?)[ \t]*$", flags=re.MULTILINE)

_NON_COMMERCIAL = re.compile(r"\bnc\b|non[-_ ]?commercial|research[-_ ]only|academic", flags=re.IGNORECASE)


@dataclass(frozen=True)
class License:
    """The license of a model as its card names it."""

    name: str
    """Such as apache-2.0; the license's own name where the card says "other"."""
    link: str | None

    @property
    def non_commercial(self) -> bool:
        """True if the name says that commercial use is not allowed."""
        return _NON_COMMERCIAL.search(self.name.replace("_", "-")) is not None


def read_license(folder: Path) -> License | None:
    """The license in the front matter of README.md or in a GGUF file; None: it names none, or there is no card."""
    if folder.suffix == ".gguf":
        from gemel.checkpoint.gguf_file import GgufFile

        file = GgufFile(folder)
        named, link = (file.get(f"general.license{part}") for part in ("", ".link"))
        return License(str(named), None if link is None else str(link)) if named else None
    card = folder / "README.md"
    try:
        text = card.read_text(encoding="utf-8", errors="replace")[:_LONGEST] if card.is_file() else ""
    except OSError:
        return None
    parts = re.split(r"^---[ \t]*$", text.lstrip("\ufeff"), maxsplit=2, flags=re.MULTILINE)
    if len(parts) < 3 or parts[0].strip():
        return None
    values = {key: value.strip("\"'[] ") for key, value in _LINE.findall(parts[1])}
    named = values.get("license") or values.get("license_name")
    if not named:
        return None
    own = values.get("license_name") if named == "other" else None
    return License(own or named, values.get("license_link"))
