"""How the process writes its log: one line an event, and nothing of what clients sent.

Errors of libraries may quote what they could not read, so tracebacks are written without any error's own words; a line
cannot be broken or coloured by what stands in it.
"""

import logging
import re
import traceback
from types import TracebackType
from typing import TextIO

OWN_LOGGERS = ("gateway", "backends", "policies")
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class SafeFormatter(logging.Formatter):
    """Writes messages on one line, and tracebacks as places and kinds of errors."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, its control characters spelled out."""
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", super().formatMessage(record))

    def formatException(self, ei: ErrorInfo) -> str:
        """Return the traceback of an error and of those that led to it."""
        lines: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            lines[:0] = [*traceback.format_tb(error.__traceback__), f"{kind}\n"]
            hidden = error.__suppress_context__
            error = error.__cause__ or (None if hidden else error.__context__)
        return "".join(lines).rstrip()


def start_logging(level: str, stream: TextIO) -> None:
    """Log to a stream: the project's own events from ``level`` up, those of libraries from warnings up."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter(FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
