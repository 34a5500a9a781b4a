"""What this process may use: cores and memory of the machine, the network, and child processes.

A process may be pinned to some cores (affinity), and a container or a service has limits in its cgroup: a quota of CPU
time and a number of bytes. Python's `os.cpu_count()` and `os.sysconf` see neither. As many threads as the machine has
cores, within a quota of two of them, use up the quota in a fraction of each period and then stand still until the next
one begins. docs/how-to/run-in-containers.md is the page for users.

A cgroup is a folder in a mounted tree, of version 1 (one tree per controller), version 2 (one tree for all), or both at
once. /proc/self/cgroup names the folder, /proc/self/mountinfo says where the tree is. The limits of all folders above
count as well, so the smallest one holds.

Some packages report their use unless an environment variable, read at import, disables it: `disable_usage_reports` is
called before such an import. `python -m x` and `python -c` put the working folder first on `sys.path`, so a `typing.py`
beside a data file would be executed: child processes start with `-P`, in an empty folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, cast

from gemel.errors import InputError

THREADS_VARIABLE = "GEMEL_THREADS"
"""Cores for this process: for several processes that share a machine. Child processes inherit it."""

_TOKENIZERS_VARIABLE = "RAYON_NUM_THREADS"

_ROOT = Path("/")

_FRESH_S = 10.0  # seconds for which a quota counts as known: it may be changed while the process runs

_NO_LIMIT = 2**60  # version 1 has no word for unlimited memory and reports about 2^63 bytes

_PERIOD = 100_000.0  # microseconds; what the kernel takes where cpu.max states only a quota


@dataclass(frozen=True)
class CoreLimits:
    """Cores, and what limits them."""

    total: int
    """Of the machine."""
    affinity: int
    """That the process may run on."""
    quota: float | None
    """CPU time per time that the cgroup grants, such as 1.5. None: no quota."""
    requested: int | None
    """GEMEL_THREADS. None: it is not set."""

    @property
    def allowed(self) -> int:
        """Affinity or quota, the smaller one. A quota is rounded up: of 1.5 cores, one thread would leave a third."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, ceil(self.quota)))

    @property
    def used(self) -> int:
        """Threads where a call gives no number: GEMEL_THREADS, else `allowed`."""
        return self.allowed if self.requested is None else self.requested

    def line(self) -> str:
        """One line of text."""
        quota = "no quota" if self.quota is None else f"quota {self.quota:g}"
        requested = "" if self.requested is None else f", {THREADS_VARIABLE}={self.requested}"
        return f"{self.used} used of {self.total}: affinity {self.affinity}, {quota}{requested}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "used": self.used}


@dataclass(frozen=True)
class MemoryLimits:
    """Bytes of memory, and what limits them."""

    physical: int | None
    """Of the machine. None: the system does not report it."""
    limit: int | None
    """Of the cgroup. None: no limit below the memory of the machine."""

    @property
    def usable(self) -> int | None:
        """The limit, else the memory of the machine."""
        return self.physical if self.limit is None else self.limit

    def line(self) -> str:
        """One line of text."""
        physical = "unknown size" if self.physical is None else f"{self.physical / 1e9:,.1f} GB"
        return f"{physical}, {'no limit' if self.limit is None else f'limit {self.limit / 1e9:,.3g} GB'}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def usable_cores() -> int:
    """Cores that this process may use; `CoreLimits.used`."""
    return core_limits().used


def cores_per_process(processes: int) -> int:
    """Cores for each of `processes` that share those of this one. GEMEL_THREADS is not divided: it is per process."""
    limits = core_limits()
    return limits.used if limits.requested is not None else max(1, limits.used // processes)


def environment_of_process(threads: int) -> dict[str, str]:
    """The variables of a child process that uses so many cores. The package tokenizers has threads of its own."""
    return {THREADS_VARIABLE: str(threads), _TOKENIZERS_VARIABLE: str(threads)}


def limit_tokenizers() -> None:
    """Let GEMEL_THREADS hold for the package tokenizers too; to be called before it is used."""
    requested = _requested_threads()
    if requested is not None:
        os.environ.setdefault(_TOKENIZERS_VARIABLE, str(requested))


def core_limits() -> CoreLimits:
    """The cores of the machine and all that limits them now."""
    total = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    quota = _recent_quota(int(monotonic() // _FRESH_S))
    return CoreLimits(total, affinity or 1, quota, _requested_threads())


def memory_limits(root: Path = _ROOT) -> MemoryLimits:
    """The memory of the machine and the limit of the cgroup; `root` replaces /, for tests."""
    physical = _physical_memory()
    limit = memory_limit(root)
    if limit is not None and physical is not None and limit >= physical:
        limit = None
    return MemoryLimits(physical, limit)


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Cores that the cgroup of this process and those above grant, such as 1.5. None: no quota."""
    return _smallest(root, "cpu", _quota_v1, _quota_v2)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Bytes that the cgroup of this process and those above allow. None: no limit."""
    limit = _smallest(root, "memory", _memory_v1, _memory_v2)
    return None if limit is None else int(limit)


@lru_cache(maxsize=1)
def _recent_quota(_: int) -> float | None:
    return cpu_quota()


def _requested_threads() -> int | None:
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"the environment variable {THREADS_VARIABLE} must be a whole number of at least 1, got {text!r}. "
            "Unset it to use all cores that the process may use"
        )
    return int(text)


def _physical_memory() -> int | None:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    return size if size > 0 else None


Read = Callable[[Path], float | None]
"""The limit of one folder; None: it has none, or its files are missing or cannot be understood."""


def _smallest(root: Path, controller: str, v1: Read, v2: Read) -> float | None:
    found = [
        limit
        for unified, read in ((False, v1), (True, v2))
        for folder in _folders(root, None if unified else controller)
        if (limit := read(folder)) is not None
    ]
    return min(found, default=None)


def _folders(root: Path, controller: str | None) -> Iterator[Path]:
    """The cgroup of this process and those above it, up to the mount point; controller None: of version 2.

    Several mounts may show the same tree. In a container the folder that /proc/self/cgroup names may lie outside of
    what is mounted; then the mount point is the cgroup of the container.
    """
    own = _own_cgroup(root, controller)
    mounts = list(_mounts(root, controller)) if own is not None else []
    below = [(mount, inner) for mount in mounts if (inner := _inside(mount, own or "/")) is not None]
    for mount, inner in below or [(mount, ()) for mount in mounts[:1]]:
        for depth in range(len(inner), -1, -1):
            yield root.joinpath(mount.point.lstrip("/"), *inner[:depth])


def _own_cgroup(root: Path, controller: str | None) -> str | None:
    """The path of this process in the tree of the controller: `4:cpu,cpuacct:/path`, or `0::/path` for version 2."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, found, path = rest.partition(":")
        if not found or not path.startswith("/"):
            continue
        if controller in controllers.split(",") if controller else number == "0" and not controllers:
            return path
    return None


@dataclass(frozen=True)
class _Mount:
    root: str
    """The folder of the tree that is visible at `point`."""
    point: str


def _mounts(root: Path, controller: str | None) -> Iterator[_Mount]:
    """From `31 23 0:28 /root /point rw,relatime shared:9 - cgroup2 source rw`; `shared:9` may be missing."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" if controller is None else controller in _v1_controllers(kind):
            yield _Mount(_unescaped(fields[3]), _unescaped(fields[4]))


def _v1_controllers(kind: list[str]) -> list[str]:
    return kind[2].split(",") if kind[0] == "cgroup" else []


def _unescaped(path: str) -> str:
    r"""Spaces and the like are written as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _inside(mount: _Mount, cgroup: str) -> tuple[str, ...] | None:
    """The names of the folders from the mount point to the cgroup. None: it is not below what is mounted."""
    names, above = (tuple(name for name in path.split("/") if name) for path in (cgroup, mount.root))
    if ".." in names or names[: len(above)] != above:
        return None
    return names[len(above) :]


def _quota_v1(folder: Path) -> float | None:
    quota, period = (_number(_text(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return quota / period if quota and period else None


def _quota_v2(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    quota = _number(words[0]) if words else None
    period = _number(words[1]) if len(words) > 1 else _PERIOD
    return quota / period if quota and period else None


def _memory_v1(folder: Path) -> float | None:
    return _number(_text(folder / "memory.limit_in_bytes"))


def _memory_v2(folder: Path) -> float | None:
    # Above memory.high a process is slowed down until it hardly moves, so it is a limit too.
    limits = (_number(_text(folder / name)) for name in ("memory.max", "memory.high"))
    return min((limit for limit in limits if limit is not None), default=None)


def _number(text: str) -> float | None:
    """A number that limits something. None: there is none, as in `max`, `-1` and an empty file."""
    word = text.strip()
    number = float(word) if word.isascii() and word.isdecimal() else 0.0
    return number if 0 < number < _NO_LIMIT else None


def _lines(path: Path) -> list[str]:
    return _text(path).split("\n")


def _text(path: Path) -> str:
    """Empty where the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


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
