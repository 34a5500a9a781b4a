"""What was measured on this machine: the fastest engine and batch for a network's shape, kept in the cache.

`gemel bench` writes it, `gemel.load` reads it. Nothing here changes a vector of one engine; between engines vectors
agree to about 1e-6.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemel.checkpoint.cache import cache_root
from gemel.encoder.network import Network
from gemel.options import Precision


@dataclass(frozen=True)
class Choice:
    """The winner of one comparison."""

    engine: str
    batch_tokens: int
    threads: int
    texts_per_second: float
    mean_tokens: float | None = None
    """Of the texts that it was measured with; `gemel plan` needs it. None: an older gemel measured."""


def tuning_file() -> Path:
    return cache_root() / "tuning.json"


def recall(network: Network, precision: Precision) -> Choice | None:
    """The choice measured before for this processor, shape and precision; None: nothing was, or it is unreadable."""
    try:
        return Choice(**_read()[_key(network, precision)])
    except (KeyError, TypeError):
        return None


def remember(network: Network, precision: Precision, choice: Choice) -> Path:
    """Keeps the choice; the file is replaced whole."""
    path = tuning_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**_read(), _key(network, precision): asdict(choice)}
    working = path.with_name(f"{path.name}.{os.getpid()}.part")
    working.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    working.replace(path)
    return path


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _read() -> dict[str, Any]:
    try:
        content = json.loads(tuning_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _key(network: Network, precision: Precision) -> str:
    ffn = network.blocks[0].up.weight.shape[0]
    shape = f"{len(network.blocks)} layers, {network.width} wide, {ffn} inner, {network.heads} heads"
    return f"{processor()}; {os.cpu_count()} cores; {shape}; {precision}"
