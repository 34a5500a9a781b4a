"""Lines of chosen modules that ran, counted by Python's own tracing: no package is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any


class Lines:
    """Collects lines while it is entered; `seen` only grows."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.files = frozenset(_source(module) for module in modules)
        self.seen: set[tuple[str, int]] = set()

    def __enter__(self) -> Lines:
        sys.settrace(self._call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(None)

    def executable(self) -> set[tuple[str, int]]:
        """Lines that could run, of all files."""
        codes = {file: compile(Path(file).read_text(encoding="utf-8"), file, "exec") for file in self.files}
        return {(file, line) for file, code in codes.items() for line in _lines(code)}

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ANN401 - Python's own shape
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ANN401
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _source(module: str) -> str:
    result = find_spec(module)
    if result is None or result.origin is None:
        raise ImportError(f"no module {module} to count the lines of")
    return result.origin


def _lines(code: CodeType) -> set[int]:
    """Lines inside of functions: bodies of modules and classes run at the import, whatever the input."""
    own = {line for _, _, line in code.co_lines() if line} if code.co_flags & CO_OPTIMIZED else set()
    own.discard(code.co_firstlineno)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            own |= _lines(inner)
    return own
