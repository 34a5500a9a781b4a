"""What the results were made on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": sys.version.split()[0],
        "load_before": round(os.getloadavg()[0], 2),
    }
