"""Targets with planted faults, for the tests of the fuzz runner itself; GEMEL_FUZZ_TARGETS names this module."""

import os
import time

from fuzz.target import Job, target

SEEDS = [b"good", b"GOOD"]


@target("planted-error", "bytes", "gemel.errors")
def error(folder):
    def run(data):
        if data not in SEEDS:
            raise KeyError("planted")

    return Job(SEEDS, run)


@target("planted-crash", "bytes", "gemel.errors")
def crash(folder):
    return Job(SEEDS, lambda data: None if data in SEEDS else os.abort())


@target("planted-hang", "bytes", "gemel.errors", limit_seconds=1.0)
def hang(folder):
    return Job(SEEDS, lambda data: None if data in SEEDS else time.sleep(60))


@target("planted-memory", "bytes", "gemel.errors", limit_mb=100)
def memory(folder):
    return Job(SEEDS, lambda data: None if data in SEEDS else b"x" * 300_000_000)
