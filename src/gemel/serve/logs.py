"""The log: one line for each request on standard error, never with a text, a key or the message of an error."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gemel.serve.options import LogFormat

OWN_LOGGERS = ("gemel", "uvicorn", "asyncio")
"""Their messages contain nothing of a request."""
_OS_ERROR = re.compile(r"\(os error (\d{1,4})\)")


class RequestLog:
    """Writes lines in the chosen format."""

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
        """Where an error came from, without its message, which may quote a text."""
        reason = reason_of(error)
        if reason is not None:
            fields["reason"] = reason
        self.line("failure", error=type(error).__name__, frames=frames_of(error), **fields)


def frames_of(error: BaseException) -> list[str]:
    """The innermost lines of code that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def reason_of(error: BaseException) -> str | None:
    """The message of the operating system ("No space left on device") behind an error; None: there is none.

    Of the error or of those it came from. Native libraries write its number into their message.
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, MemoryError):
            return os.strerror(errno.ENOMEM)
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
        number = _OS_ERROR.search(str(each))
        if number is not None:
            return os.strerror(int(number[1]))
        each = each.__cause__ or each.__context__
    return None


class LogHandler(logging.Handler):
    """Writes what libraries log as lines of the same form, without tracebacks between them."""

    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "level": record.levelname.lower()}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.failure(error, **fields)
        elif record.name.split(".")[0] in OWN_LOGGERS:
            self._log.line("log", message=record.getMessage().partition("\n")[0], **fields)
        else:  # its message may quote a request
            self._log.line("log", location=f"{record.filename}:{record.lineno} {record.funcName}", **fields)


@contextmanager
def capture_logging(log: RequestLog) -> Iterator[None]:
    """Meanwhile logging, warnings and errors of threads are written as lines of `log`."""
    root, handler = logging.getLogger(), LogHandler(log)
    hook = threading.excepthook
    root.addHandler(handler)
    logging.captureWarnings(True)
    threading.excepthook = lambda given: (
        log.failure(given.exc_value, thread=getattr(given.thread, "name", None)) if given.exc_value else None
    )
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.captureWarnings(False)
        root.removeHandler(handler)
