"""Which files must and must not be in a wheel and in a source archive, by their names."""

from __future__ import annotations

from collections.abc import Iterable

KERNELS = ("gemel/encoder/native/_", "gemel/vectors/scan/native/_")
LEVELS = {
    "x86_64": ("baseline", "avx2", "avx512", "avx512vnni", "avxvnni", "avx512bf16", "amx"),
    "aarch64": ("baseline", "neon-dotprod", "neon-i8mm"),
}
"""Processor levels that setup.py compiles the encoder for; one elsewhere."""
ENCODER_ONLY = ("avxvnni", "avx512bf16", "amx", "neon-dotprod", "neon-i8mm")
"""Levels without a kernel of the scan."""
IN_WHEEL = (
    "gemel/__init__.py",
    "gemel/py.typed",
    "gemel/texts/sentences.txt",
    "gemel/serve/page/index.html",
)
IN_ARCHIVE = (
    "LICENSE",
    "NOTICE",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "SECURITY.md",
    "pyproject.toml",
    "setup.py",
    "src/gemel/encoder/native/kernel.cpp",
    "src/gemel/encoder/native/matmul.h",
    "src/gemel/vectors/scan/native/scan.cpp",
    "src/gemel/vectors/scan/native/tile.h",
    "src/gemel/serve/page/index.html",
)
NOWHERE = (".pyc", ".so.part", ".gemel/", "__pycache__/", ".part", "tests/", "benchmarks/")


def wrong_in_wheel(names: Iterable[str], machine: str) -> list[str]:
    """Missing and unwanted files of a wheel, one line each."""
    names = list(names)
    wrong = [f"missing: {name}" for name in IN_WHEEL if name not in names]
    for level in LEVELS.get(machine, ("baseline",)):
        for kernel in KERNELS[:1] if level in ENCODER_ONLY else KERNELS:
            if not any(name.startswith(f"{kernel}{level}.") for name in names):
                wrong.append(f"not compiled: {kernel}{level}")
    for text in ("LICENSE", "NOTICE"):
        if not any(name.endswith(f".dist-info/licenses/{text}") for name in names):
            wrong.append(f"missing: {text}")
    outside = {name.split("/")[0] for name in names} - {"gemel"}
    wrong += [f"not gemel's: {name}" for name in sorted(outside) if not name.endswith(".dist-info")]
    return wrong + _unwanted(names)


def wrong_in_archive(names: Iterable[str]) -> list[str]:
    """The same for a source archive, whose names start with one folder."""
    inside = [name.partition("/")[2] for name in names]
    return [f"missing: {name}" for name in IN_ARCHIVE if name not in inside] + _unwanted(inside)


def _unwanted(names: list[str]) -> list[str]:
    return [
        f"unwanted: {name}"
        for name in names
        if any(part in name if part.endswith("/") else name.endswith(part) for part in NOWHERE)
    ]
