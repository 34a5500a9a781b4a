"""A process whose children encode to a folder and are killed meanwhile; run by test_encode_folder.py.

One JSON request per line on standard input, one answer per line on standard output. Each request runs in a fork
of this small process, so that hundreds of real kills take seconds. Nothing here starts threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from gemel.errors import GemelError
from gemel.files.rows import Row
from gemel.texts.encode_folder import encode_to_folder

DIM = 6
STEPS = (
    "fsync",
    "replace",
    "unlink",
    "mkdir",
)  # of the module os: every step that changes what is on the disk


def rows(count):
    return [Row(f"id-{n}", f"text {n} é\n{'x' * (n % 11)}") for n in range(count)]


def vector(text):
    """Numbers that depend on the whole text and on nothing else."""
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[:DIM], np.uint8).astype(np.float32) / 7


class Encoder:
    """Writes every text it is given to a log, by a system call, so that the log survives a kill."""

    def __init__(self, log, kill_at=None, watcher=None):
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.kill_at = kill_at
        self.watcher = watcher
        self.seen = 0

    def encode(self, texts):
        for text in texts:
            if self.seen == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(self.log, b"%d\n" % int(text.split()[1]))
            self.seen += 1
            if self.watcher is not None:  # the process that kills this one counts these bytes
                os.write(self.watcher, b".")
        return np.array([vector(text) for text in texts], np.float32).reshape(len(texts), DIM)


def count_steps(kill_at=None, after=False, tear=0):
    """Count the calls of `STEPS`; die before or after the given one, with `tear` unsynced bytes lost."""
    calls = [0]

    def wrap(name):
        real = getattr(os, name)

        def step(*arguments, **options):
            calls[0] += 1
            if calls[0] == kill_at and not after:
                if name == "fsync" and tear:
                    lose(arguments[0], tear)
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                # Real syncing is slow and matters only in a power cut, which `tear` simulates.
                return None if name == "fsync" else real(*arguments, **options)
            finally:
                if calls[0] == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, step)

    for name in STEPS:
        wrap(name)
    return calls


def lose(handle, count):
    """Simulates a power cut during an append that was not synced: its last bytes are lost."""
    size = os.fstat(handle).st_size
    if size and os.lseek(handle, 0, os.SEEK_CUR) == size:
        os.ftruncate(handle, size - count)


def job(request, watcher=None):
    calls = count_steps(request.get("step"), request.get("after", False), request.get("tear", 0))
    encoder = Encoder(request["log"], request.get("text"), watcher)
    try:
        result = encode_to_folder(
            encoder,
            rows(request["rows"]),
            Path(request["out"]),
            fingerprint={"model": "fake"},
            format=request["format"],
            keep_texts=request.get("keep_texts", False),
            shard_rows=20,
            checkpoint_rows=7,
            overwrite=request.get("overwrite", False),
        )
    except GemelError as error:
        return {"error": str(error)}
    return {"encoded": result.encoded_now, "resumed": result.resumed, "steps": calls[0]}


def answer(request):
    reader, writer = os.pipe()
    dots, watcher = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(dots)
        content = job(request, watcher if request.get("dots") else None)
        os.write(writer, json.dumps(content).encode())
        os._exit(0)
    os.close(writer)
    os.close(watcher)
    if request.get("dots"):
        left = request["dots"]
        while left and (got := os.read(dots, left)):
            left -= len(got)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.close(dots)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"killed": status == -signal.SIGKILL, "status": status, **json.loads(content or b"{}")}


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # once here, not in every child
        import pyarrow.parquet  # noqa: F401
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
