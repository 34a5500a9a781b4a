"""Compiles the native kernel once per processor level; an install without a compiler still works (ONNX Runtime)."""

import platform

from setuptools import Extension, setup

FOLDER = "src/gemel/encoder/native"
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
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS |= {"avx2": ["-mavx2", "-mfma"], "avx512": AVX512, "avx512vnni": [*AVX512, "-mavx512vnni"]}

setup(
    ext_modules=[
        Extension(
            f"gemel.encoder.native._{level}",
            sources=[f"{FOLDER}/kernel.cpp"],
            depends=[f"{FOLDER}/{name}.h" for name in ("vector", "matmul", "team")],
            extra_compile_args=FLAGS + flags,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for level, flags in LEVELS.items()
    ]
)
