"""Compiles the native kernels once per processor level; an install without a compiler still works.

The encoder then runs on ONNX Runtime, pairs and search on numpy.
"""

import platform

from setuptools import Extension, setup

KERNELS = {  # module: its source, the headers next to it, and its compiler flags
    # Multiply and add are fused only where the source does so explicitly: the bits of a row depend on it.
    "gemel.encoder.native": (
        "kernel.cpp",
        ("vector", "matmul", "amx", "int8", "bfloat16", "network", "attention", "team"),
        ["-ffp-contract=off"],
    ),
    # Sums here are bounds that allow for rounding, or exact: fusing does not change results.
    "gemel.vectors.scan.native": (
        "scan.cpp",
        ("exact", "rows", "tile", "block", "../../../encoder/native/vector"),
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
match platform.machine().lower():
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


setup(
    ext_modules=[
        extension(module, level)
        for module in KERNELS
        for level in LEVELS
        if module == "gemel.encoder.native" or level not in ENCODER_ONLY
    ]
)
