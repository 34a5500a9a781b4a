"""One line for each request on standard error. A line never holds a text, a key or an error's words."""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gemel.serve.options import LogFormat


class RequestLog:
    """Writes lines as the operator wants them."""

    def __init__(self, format: LogFormat) -> None:
        self._format = format

    def line(self, event: str, **fields: Any) -> None:
        if self._format == "none":
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self._format == "json":
            text = orjson.dumps({"time": now, "event": event, **fields}).decode()
        else:
            text = " ".join([now, event, *(f"{name}={value}" for name, value in fields.items())])
        sys.stderr.write(text + "\n")

    def failure(self, error: BaseException, **fields: Any) -> None:
        """Where an error came from, without its words: these may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        self.line("failure", error=type(error).__name__, places=places, **fields)
