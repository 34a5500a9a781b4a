"""Compiles the native kernels once per processor level; an install without a compiler still works.

The encoder then runs on ONNX Runtime, pairs and search on numpy. The kernels are plain shared libraries that ctypes
loads: they do not depend on the version of Python, so one wheel per platform serves all versions.

To compile for another processor, GEMEL_MACHINE names it (x86_64, aarch64) and CC, CXX and LDSHARED the compiler.
"""

import os
import platform

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = {  # module: its source, the headers next to it, and its compiler flags
    # Multiply and add are fused only where the source does so explicitly: the bits of a row depend on it.
    "gemel.encoder.native": (
        "kernel.cpp",
        (
            *("vector", "matmul", "amx", "int8", "bfloat16", "network", "attention"),
            *("team", "head", "processor", "wordpiece"),
        ),
        ["-ffp-contract=off"],
    ),
    # Sums here are bounds that allow for rounding, or exact: fusing does not change results.
    "gemel.vectors.scan.native": (
        "scan.cpp",
        (
            *("exact", "rows", "tile", "block", "inverted", "maxsim", "parts"),
            *("../../../encoder/native/vector", "../../../encoder/native/processor"),
        ),
        [],
    ),
}
FLAGS = [
    "-O3",
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-g0",
    "-Wno-maybe-uninitialized",
]
AVX512 = [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq")] + ["-mfma", "-mprefer-vector-width=512"]
LEVELS = {"baseline": []}
match os.environ.get("GEMEL_MACHINE", platform.machine()).lower():
    case "x86_64" | "amd64":
        LEVELS |= {"avx2": ["-mavx2", "-mfma"], "avx512": AVX512, "avx512vnni": [*AVX512, "-mavx512vnni"]}
        LEVELS["avxvnni"] = [*LEVELS["avx2"], "-mavxvnni"]
        LEVELS["avx512bf16"] = [*LEVELS["avx512vnni"], "-mavx512bf16"]
        LEVELS["amx"] = [*LEVELS["avx512bf16"], "-mamx-tile", "-mamx-int8", "-mamx-bf16"]
    case "aarch64" | "arm64":
        LEVELS["neon-dotprod"] = ["-march=armv8.2-a+dotprod"]
        LEVELS["neon-i8mm"] = ["-march=armv8.6-a+i8mm+bf16"]
ENCODER_ONLY = ("avxvnni", "avx512bf16", "amx", "neon-dotprod", "neon-i8mm")  # the scan would not be faster


def extension(module: str, level: str) -> Extension:
    folder = f"src/{module.replace('.', '/')}"
    source, headers, flags = KERNELS[module]
    return Extension(
        f"{module}._{level}",
        sources=[f"{folder}/{source}"],
        depends=[f"{folder}/{name}.h" for name in headers],
        extra_compile_args=FLAGS + flags + LEVELS[level],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


class BuildLibraries(build_ext):
    """Libraries named `_LEVEL.so`, without the tag of a Python version, and with their own exports only."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', os.sep)}.so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols


class PlatformWheel(bdist_wheel):
    """A wheel of one platform for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
    ext_modules=[
        extension(module, level)
        for module in KERNELS
        for level in LEVELS
        if module == "gemel.encoder.native" or level not in ENCODER_ONLY
    ],
)
