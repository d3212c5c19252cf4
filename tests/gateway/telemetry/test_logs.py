"""The log cannot be forged and tells nothing that clients sent."""

import io
import logging
from collections.abc import Iterator

import pytest

from gateway.telemetry.logs import start_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The log, written to memory at debug level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    start_logging("debug", written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("gateway", "backends", "policies"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_one_line_an_event(stream: io.StringIO) -> None:
    """Line ends, escapes and other controls in a message are spelled out."""
    logging.getLogger("gateway.x").info("name %s", "a\r\n2026 ERROR forged\x1b[31m\x00\u2028")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "a\\x0d\\x0a2026 ERROR forged\\x1b[31m\\x00\\x2028" in text


def test_tracebacks_without_words(stream: io.StringIO) -> None:
    """A traceback tells where and what kind of error, for all that led to it, and none of their words."""
    try:
        try:
            raise KeyError("the prompt")
        except KeyError as error:
            raise ValueError("the prompt again") from error
    except ValueError:
        logging.getLogger("gateway.x").exception("it failed")
    text = stream.getvalue()
    assert "it failed" in text and "builtins.KeyError" in text and "builtins.ValueError" in text
    assert "test_tracebacks_without_words" in text
    assert "prompt again\n" not in text and "'the prompt'\n" not in text


def test_libraries_are_quiet(stream: io.StringIO) -> None:
    """Libraries tell warnings only, also when the gateway tells all."""
    logging.getLogger("httpcore.connection").debug("headers")
    logging.getLogger("gateway.x").debug("own")
    assert "headers" not in stream.getvalue()
    assert "own" in stream.getvalue()
