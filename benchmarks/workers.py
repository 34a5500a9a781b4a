"""Processes with one system each. All but the one being measured are stopped by a signal.

A stopped process takes no core, so no peer pays for the threads that another leaves spinning.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from environments import InstallError

PEERS = Path(__file__).parent / "peers"


class WorkerError(Exception):
    """A worker answered with an error, was silent too long, or died."""


def attempt(entry: dict[str, Any], do: Callable[[], None]) -> None:
    """A peer that cannot be installed or fails becomes a line of the report; the run continues."""
    try:
        do()
    except (InstallError, WorkerError) as error:
        entry["failed"] = str(error)
        say(f"  {entry['title']}: {error}")


class Worker:
    """One process; `ask` wakes it, waits for its answer and stops it again."""

    def __init__(self, name: str, python: Path, script: str, environment: dict[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(PEERS / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._buffer = b""

    def ask(self, verb: str, *, timeout_s: float = 600, **fields: Any) -> dict[str, Any]:
        """The answer to one request."""
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": verb, **fields}).encode() + b"\n")
            self._process.stdin.flush()
            reply: dict[str, Any] = json.loads(self._line(verb, timeout_s))
        except (BrokenPipeError, json.JSONDecodeError) as error:
            raise WorkerError(f"{verb}: {self._last_output()}") from error
        finally:
            self._signal(signal.SIGSTOP)
        if not reply.pop("ok"):
            raise WorkerError(f"{verb}: {reply['error']}")
        return reply

    def _line(self, verb: str, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(end - time.monotonic(), 0)):
                    raise WorkerError(f"{verb}: no answer in {timeout_s:.0f} s")
                block = os.read(self._process.stdout.fileno(), 1 << 20)
                if not block:
                    raise WorkerError(f"{verb}: {self._last_output()}")
                self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_output(self) -> str:
        try:
            ended = f"exit {self._process.wait(timeout=5)}"  # -11 and the like: killed by that signal
        except subprocess.TimeoutExpired:
            ended = "its pipe is closed"
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"the process ended ({ended}): {lines[-1][:300] if lines else 'no message'}"

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()  # works on a stopped process too
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def surroundings(threads: int, *, ours: bool) -> dict[str, str]:
    """Environment variables of a worker: the number of threads for every library, and no network."""
    keep = {key: value for key, value in os.environ.items() if ours or not key.startswith("PYTHON")}
    # An installed package brings its bytecode; without this, ours would be compiled at every start.
    keep.pop("PYTHONDONTWRITEBYTECODE", None)
    names = ("OMP", "MKL", "OPENBLAS", "RAYON", "NUMEXPR")
    return keep | {
        **{f"{name}_NUM_THREADS": str(threads) for name in names},
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def say(text: str) -> None:
    """Progress on standard error."""
    print(text, file=sys.stderr, flush=True)
