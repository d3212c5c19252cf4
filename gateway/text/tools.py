"""Tool calls in a model's text, as Hermes and Qwen write them.

That is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number of times.

A call is announced as soon as its name is known, and its arguments are passed on as they come. A block that is no call
comes out as the text that it is.
"""

import json
import re
import uuid
from dataclasses import dataclass
from enum import Enum, auto

from gateway.http.json_bounds import BoundedJson
from gateway.text.reasoning import begun_marker

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
NAME = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u0[0-9a-fA-F]{3})*"'
HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({NAME})\s*,\s*"arguments"\s*:\s*(?=\{{)')


@dataclass(frozen=True, slots=True)
class CallDelta:
    """News of the ``index``-th call: ``id`` and ``name`` once, in its first delta; then more of its arguments' JSON."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


class _Place(Enum):
    """Where in the text the reader is."""

    TEXT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()


class ToolReader:
    """Splits text into content and calls."""

    def __init__(self) -> None:
        self._place = _Place.TEXT
        self._buffer = ""
        self._content = ""
        self._calls: list[CallDelta] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.count = 0
        """Calls so far."""

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Return (content, what is new of calls)."""
        self._buffer += text
        self._content, self._calls = "", []
        while self._step():
            pass
        return self._content, self._calls

    def flush(self) -> str:
        """Return the text that was held back: the beginning of a marker, or of a block that never became a call."""
        held, self._buffer = self._buffer, ""
        match self._place:
            case _Place.TEXT:
                return held
            case _Place.HEAD:
                return OPENING + held
            case _Place.ARGUMENTS | _Place.TAIL:
                return ""

    def _step(self) -> bool:
        match self._place:
            case _Place.TEXT:
                return self._read_text()
            case _Place.HEAD:
                return self._read_head()
            case _Place.ARGUMENTS:
                return self._read_arguments()
            case _Place.TAIL:
                return self._read_tail()

    def _read_text(self) -> bool:
        text, opening, rest = self._buffer.partition(OPENING)
        if opening:
            self._show(text)
            self._buffer = rest
            self._place = _Place.HEAD
            return True
        shown = len(text) - begun_marker(text, OPENING)
        self._show(text[:shown])
        self._buffer = text[shown:]
        return False

    def _show(self, text: str) -> None:
        # Models set calls apart by blank lines, which are no content.
        if not self.count or text.strip():
            self._content += text

    def _read_head(self) -> bool:
        match = HEAD.match(self._buffer)
        if match is not None:
            self._open(json.loads(match[1]), "")
            self._buffer = self._buffer[match.end() :]
            self._place = _Place.ARGUMENTS
            return True
        block, closing, rest = self._buffer.partition(CLOSING)
        if not closing:
            return False
        self._buffer = rest
        self._place = _Place.TEXT
        call = read_call(block)
        if call is None:
            self._content += OPENING + block + CLOSING
        else:
            self._open(*call)
        return True

    def _open(self, name: str, arguments: str) -> None:
        call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._calls.append(CallDelta(self.count, arguments, call_id, name))
        self.count += 1

    def _read_arguments(self) -> bool:
        for at, letter in enumerate(self._buffer):
            if self._in_string:
                self._in_string = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    self._pass_on(at + 1)
                    self._place = _Place.TAIL
                    return True
        self._pass_on(len(self._buffer))
        return False

    def _pass_on(self, length: int) -> None:
        if length:
            self._calls.append(CallDelta(self.count - 1, self._buffer[:length]))
            self._buffer = self._buffer[length:]

    def _read_tail(self) -> bool:
        _, closing, rest = self._buffer.partition(CLOSING)
        if not closing:
            return False
        self._buffer = rest
        self._place = _Place.TEXT
        return True


def read_call(block: str) -> tuple[str, str] | None:
    """Return (name, arguments as JSON) of a block in another order or spelling; None: it is no call."""
    try:
        call = BoundedJson().parse(block)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        f"{call['name']}{text}".encode()
    except UnicodeEncodeError:
        # Escapes of half a character.
        return None
    return call["name"], text
