"""A model without a network for tests of the server: counts computations, waits and fails on demand."""

from __future__ import annotations

import threading
import zlib
from types import SimpleNamespace

import numpy as np

from gemel.encoder.tokenizer import PreparedTexts, Windows
from gemel.errors import InputError

DIM = 4


class FakeModel:
    """One token per word and two special tokens; a vector is a hash of the words. A cleared `gate` pauses computing."""

    name, dim, kernel, max_length = "fake", DIM, "fake", 64
    engine = SimpleNamespace(batch_tokens=64)
    checkpoint = SimpleNamespace(normalize=True, prompts={}, default_prompt_name=None)

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Semaphore(0)
        self.batches = []
        self.fails = set()

    def prepare(self, texts, options):
        if (options.dim or 0) > DIM:
            raise InputError(f"dim must be at most {DIM}, the model's own, got {options.dim}")
        return PreparedTexts(tuple(_windows(text) for text in texts), options)

    def run(self, prepared):
        self.batches.append([window.pieces[0] for window in prepared.windows])
        self.began.release()
        assert self.gate.wait(10), "the test forgot to open the gate"
        rows = [window.pieces[0] for window in prepared.windows]
        if self.fails.intersection(rows):
            raise ArithmeticError("the words of this error are nobody's business")
        return np.stack([vector_of(text) for text in rows])[:, : prepared.options.dim or DIM]

    @property
    def computed(self):
        """All texts, in the order in which they were started."""
        return [text for batch in self.batches for text in batch]


def vector_of(text):
    return np.random.default_rng(zlib.crc32(text.encode())).random(DIM, dtype=np.float32)


def _windows(text):
    tokens = len(text.split()) + 2
    return Windows((text,), (1,), tokens, min(tokens, FakeModel.max_length))
