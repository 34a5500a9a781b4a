"""Vectors on other processors: a child process in which NumPy, BLAS and the kernel use older instructions."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gemel
from gemel.encoder.engines import native
from tiny import tiny_bert, tiny_checkpoint

TEXTS = ["a man is playing guitar", "a woman", "the stock market fell today " * 5, "the flute"]
PROGRAM = """
import sys, gemel, numpy as np
texts = sys.argv[3:]
np.save(sys.argv[2], [gemel.load(sys.argv[1], precision=p).encode(texts, prompt="") for p in ("float32", "int8")])
"""

pytestmark = pytest.mark.skipif(
    "avx2" not in native.levels()[1:], reason="needs a level above avx2 to compare"
)


def older_processor():
    """The environment of a process that uses AVX2 at most, and NumPy's baseline."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    used = [feature for feature in __cpu_dispatch__ if __cpu_features__.get(feature)]
    forced = {"GEMEL_KERNEL": "avx2", "OPENBLAS_CORETYPE": "Haswell", "GEMEL_CANARIES": "0"}
    return {**os.environ, **forced, "NPY_DISABLE_CPU_FEATURES": " ".join(used)}


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "qwen3"])
def test_vectors_in_float32_and_int8_have_the_same_bits(architecture, tmp_path):
    """Rotary positions, which NumPy computes, included; the child also computes its own int8 weights."""
    if architecture == "bert":
        folder = tiny_bert(tmp_path / "model")
    else:
        pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
        folder = tiny_checkpoint(tmp_path / "model", architecture)
    result = tmp_path / "vectors.npy"
    command = [sys.executable, "-c", PROGRAM, str(folder), str(result), *TEXTS]
    subprocess.run(command, check=True, env=older_processor())
    for path in (folder / ".gemel").glob("int8-*"):
        path.unlink()
    for precision, other in zip(("float32", "int8"), np.load(result), strict=True):
        vectors = gemel.load(folder, precision=precision).encode(TEXTS, prompt="")
        np.testing.assert_array_equal(vectors, other)
