"""Isolation from the network and the working folder: offline mode, telemetry of packages, safe child processes.

Some packages report their use unless an environment variable, read at import, disables it: `disable_usage_reports` is
called before such an import. `python -m x` and `python -c` put the working folder first on `sys.path`, so a `typing.py`
beside a data file would be executed: child processes start with `-P`, in an empty folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

_YES = {"1", "on", "yes", "true"}

_OFF = {
    "haystack": ("HAYSTACK_TELEMETRY_ENABLED", "false"),
    "huggingface_hub": ("HF_HUB_DISABLE_TELEMETRY", "1"),
    "onnxruntime": ("ORT_DISABLE_TELEMETRY", "1"),
    "ray": ("RAY_USAGE_STATS_ENABLED", "0"),
}
"""Package to the variable and the value that disables its reports."""


def is_offline() -> bool:
    """True if GEMEL_OFFLINE forbids the network."""
    return os.environ.get("GEMEL_OFFLINE", "").lower() in _YES


def disable_usage_reports(package: str) -> bool:
    """Disable the reports of `package` before it is imported; returns whether they are disabled.

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


# Each of these makes an interpreter load or run something besides the requested program.
_UNSAFE = ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONWARNINGS", "PYTHONEXECUTABLE")


def run_python(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with `arguments` (`["-m", "pip", ...]`) and return its output as text.

    `environment` is added to the variables of this process. The child may use the installed packages and the absolute
    folders of PYTHONPATH; relative folders would depend on the working folder and are dropped.
    """
    with tempfile.TemporaryDirectory(prefix="gemel-child-") as folder:
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            env={**child_environment(), **(environment or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )


def is_pool_process() -> bool:
    """Whether a pool of multiprocessing started this process."""
    module = sys.modules.get("multiprocessing.process")  # loaded in every process of a pool
    return module is not None and module.parent_process() is not None


def child_environment() -> dict[str, str]:
    """The variables of this process without those that would run other code in a child interpreter."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNSAFE}
    folders = [each for each in kept.pop("PYTHONPATH", "").split(os.pathsep) if Path(each).is_absolute()]
    if folders:
        kept["PYTHONPATH"] = os.pathsep.join(folders)
    kept["PYTHONSAFEPATH"] = "1"  # the same as -P, for interpreters that the child starts itself
    return kept
