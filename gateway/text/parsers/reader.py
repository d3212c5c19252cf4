"""Reads one answer's text with a model's parsers, whatever the pieces it comes in. No I/O."""

from collections.abc import Callable
from typing import Protocol

from gateway.text.parsers.cursor import Cursor, Steps
from gateway.text.parsers.output import MessageParts, Parts

Begin = Callable[[Cursor], tuple[MessageParts, Steps[None]]]
"""Starts the reading of one answer."""


class AnswerReader(Protocol):
    """Reads one answer's text in pieces."""

    @property
    def called(self) -> bool:
        """Say whether a tool was called."""
        ...

    def push(self, text: str) -> Parts:
        """Return what the text adds to the message."""
        ...

    def flush(self) -> Parts:
        """Return what was held back."""
        ...


class MessageReader:
    """Tells reasoning and tool calls from content. A call comes out when it is complete, and not before.

    So no client gets half a call, and what turns out to be none is text like any other.
    """

    def __init__(self, begin: Begin) -> None:
        self._cursor = Cursor()
        self._output, self._steps = begin(self._cursor)

    @property
    def called(self) -> bool:
        return self._output.calls > 0

    def push(self, text: str) -> Parts:
        self._cursor.text += text
        next(self._steps, None)
        return self._output.take()

    def flush(self) -> Parts:
        self._cursor.ended = True
        next(self._steps, None)
        return self._output.take()
