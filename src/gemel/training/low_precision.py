"""Whether this processor can compute in bf16 or fp16, decided by trying it in a child process.

Some virtual machines announce AMX but leave CPUID leaf 0x1D empty. oneDNN, which torch uses, then dies with an illegal
instruction at the first bf16 product, and takes the whole process with it. A child dies instead; with
ONEDNN_MAX_CPU_ISA set, oneDNN does not use AMX and works.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

from gemel.errors import WorkError
from gemel.files.isolation import run_python

SAFE_SETTING = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
_TIMEOUT_S = 300.0  # a cold start of torch on a slow disk

# Forward and backward of a layer, under autocast as accelerate does it.
_PROGRAM = """
import sys, torch
with torch.autocast("cpu", dtype=getattr(torch, sys.argv[1])):
    layer = torch.nn.Linear(64, 64)
    layer(torch.ones(32, 64, requires_grad=True)).float().sum().backward()
"""

Probe = Callable[[str, bool], bool]
"""Whether products of a precision survive on this processor, as torch starts or with `SAFE_SETTING`."""


def prepare_low_precision(precision: str, *, device: str | None = None, probe: Probe | None = None) -> None:
    """Make bf16 or fp16 arithmetic safe in this process, or raise a WorkError that says how to start it.

    Call it before torch is imported: the setting that avoids the fault is read when torch loads. Only products on the
    processor are concerned, so a GPU that is there or requested is never refused.
    """
    probe = probe or _child_survives
    if precision not in _TYPES or probe(precision, False):
        return
    setting = "".join(f"{name}={value}" for name, value in SAFE_SETTING.items())
    safe = probe(precision, True)
    if safe and "torch" not in sys.modules:
        os.environ.update(SAFE_SETTING)
    elif not _on_gpu(device):
        fault = f"mixed_precision={precision!r} ends torch on this processor with an illegal instruction"
        if not safe:
            raise WorkError(f"{fault}, also with {setting}. Train with mixed_precision='no'")
        raise WorkError(
            f"{fault} unless {setting} is set before torch is imported, and this program has imported it already. "
            "Set that environment variable and start the program again, or train with mixed_precision='no'"
        )


@cache
def _child_survives(precision: str, safe: bool) -> bool:
    done = run_python(
        ["-c", _PROGRAM, _TYPES[precision]], environment=SAFE_SETTING if safe else {}, timeout_s=_TIMEOUT_S
    )
    # A signal is negative, or above a byte on Windows. A Python exception (torch is missing) is reported elsewhere.
    return 0 <= done.returncode <= 255


def _on_gpu(device: str | None) -> bool:
    if device is not None:
        return not device.startswith("cpu")
    import torch

    return bool(torch.cuda.is_available())
