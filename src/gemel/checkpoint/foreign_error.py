"""The reason in an error of another package, without its advice to switch a safety off."""

from __future__ import annotations

import re

# torch and transformers say how to load a file with the code that is in it.
_UNSAFE = re.compile(
    r"weights_only|trust_remote_code|allow_pickle|trusted source|add_safe_globals|safe_globals", re.I
)
_GLOBAL = re.compile(r"\bGLOBAL ([\w.]+)")


def reason_of(error: Exception) -> str:
    """One line that says why, never how to load the file nevertheless."""
    text = str(error)
    if found := _GLOBAL.search(text):
        return f"it calls {found[1]}, which is code and no tensor"
    lines = [" ".join(_safe_sentences(line)) for line in text.splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def _safe_sentences(line: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?:])\s+", line.strip()) if part and not _UNSAFE.search(part)]
