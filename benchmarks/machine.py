"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8", "asimd")


def _field(name: str) -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def processor_flags() -> list[str]:
    """All instruction sets that the system names (x86: flags, ARM: Features)."""
    return (_field("flags") or _field("Features")).split()


def describe() -> dict[str, Any]:
    flags = processor_flags()
    return {
        "processor": _field("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "all_flags": " ".join(flags),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "load_before": round(os.getloadavg()[0], 2),
    }
