"""What decides whether this process uses the network: offline mode, and the usage reports of other packages.

Some packages report their use to their makers unless a variable of the environment says otherwise, and read it when
they are imported. Whoever imports one of them in gemel calls `disable_usage_reports` first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast

_YES = {"1", "on", "yes", "true"}
_OFF = {
    "haystack": ("HAYSTACK_TELEMETRY_ENABLED", "false"),
    "huggingface_hub": ("HF_HUB_DISABLE_TELEMETRY", "1"),
    "onnxruntime": ("ORT_DISABLE_TELEMETRY", "1"),
    "ray": ("RAY_USAGE_STATS_ENABLED", "0"),
}
"""Package -> the variable, and the value that switches its reports off."""


def is_offline() -> bool:
    """True if GEMEL_OFFLINE asks for no network at all."""
    return os.environ.get("GEMEL_OFFLINE", "").lower() in _YES


def disable_usage_reports(package: str) -> bool:
    """Switch the reports of `package` off before it is imported; returns whether they are off.

    A value that the user has set stays, except in offline mode.
    """
    name, off = _OFF[package]
    if is_offline():
        os.environ[name] = off
    return os.environ.setdefault(name, off).lower() == off


@contextmanager
def without_module(name: str) -> Iterator[None]:
    """Let imports of `name` fail in the block, unless the program has imported it already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = cast(ModuleType, None)  # the documented way to make an import fail
    try:
        yield
    finally:
        del sys.modules[name]
