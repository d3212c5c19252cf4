"""gpt-oss's messages on channels: reasoning on ``analysis``, text on ``final``, calls to a recipient. No I/O."""

import re
from collections.abc import Callable

from gateway.text.parsers.cursor import Cursor, Marks, Steps, follows, pass_until, take_until
from gateway.text.parsers.json_calls import make_call
from gateway.text.parsers.output import MessageParts
from gateway.text.parsers.schema import Tools

TOKENS = tuple(f"<|{word}|>" for word in ("start", "end", "message", "channel", "constrain", "call", "return"))
_RECIPIENT = re.compile(r"\bto=(\S+)")
_CHANNEL = re.compile(r"\s*(analysis|commentary|final)\b(?![?.!])")
_CONTENT_TYPE = re.compile(r"\s*(?:json|code|text)?\s*\Z")
NAMESPACE = "functions."


class Harmony:
    """Reads one answer, which begins within the header of its first message. ``control``: stands before tokens.

    ``tools`` None: what is said to a function is content."""

    def __init__(self, cursor: Cursor, output: MessageParts, tools: Tools | None, control: str) -> None:
        self._cursor = cursor
        self._output = output
        self._tools = tools
        self._message = f"{control}<|message|>"
        self._channel = f"{control}<|channel|>"
        self._constrain = f"{control}<|constrain|>"
        self._start = f"{control}<|start|>"
        self._stops = (self._start, *(f"{control}<|{word}|>" for word in ("end", "call", "return")))
        self._header_marks = Marks((self._message, *self._stops))
        self._body_marks = Marks((*self._stops, self._channel))

    def read(self) -> Steps[None]:
        """Read the answer to its end."""
        if self._output.wanted.json and (yield from follows(self._cursor, 0, "{", "[")):
            yield from pass_until(self._cursor, Marks(()), self._output.add)
            self._output.end()
            return
        begun = ""
        mark: str | None = self._start
        while mark is not None:
            header, mark = yield from self._take_header()
            if mark == self._message:
                mark = yield from self._read_body(begun + header)
            else:
                self._output.add(self._strange(begun + header))
            begun = mark if mark == self._channel else ""
        self._output.end()

    def _take_header(self) -> Steps[tuple[str, str | None]]:
        start = self._cursor.at
        found = yield from take_until(self._cursor, self._header_marks)
        return (self._cursor.text[start:], None) if found is None else found

    def _strange(self, header: str) -> str:
        """Return the text of a header that is none of a header's."""
        role, *channels = header.split(self._channel)
        rest = ""
        for channel in channels:
            text = channel.replace(self._constrain, " ")
            match = _CHANNEL.match(text)
            text = _RECIPIENT.sub("", text[match.end() :] if match else text)
            rest += "" if _CONTENT_TYPE.match(text) else text
        role = _RECIPIENT.sub("", role).strip()
        return rest if role in ("", "assistant") else role + rest

    def _read_body(self, header: str) -> Steps[str | None]:
        """Read a message's text, and return the mark that ended it."""
        recipients = _RECIPIENT.findall(header.replace(self._channel, " ").replace(self._constrain, " "))
        channel = header.rpartition(self._channel)[2] if self._channel in header else "final"
        known = _CHANNEL.match(channel)
        recipient = next((name for name in reversed(recipients) if self._calls(name)), None)
        if recipient is not None:
            return (yield from self._read_call(recipient))
        strange = known is None and self._channel in header
        show: Callable[[str], None] = self._output.add
        if known is not None and known[1] == "analysis":
            show = self._output.reason
        elif strange:
            self._output.add(self._strange(header))
        mark = yield from pass_until(self._cursor, self._body_marks, show)
        if show == self._output.reason and mark is not None:
            self._output.end_reasoning()
        return mark

    def _calls(self, recipient: str) -> bool:
        return self._tools is not None and (recipient.startswith(NAMESPACE) or self._tools.has(recipient))

    def _read_call(self, recipient: str) -> Steps[str | None]:
        cursor = self._cursor
        start = cursor.at
        found = yield from take_until(cursor, self._body_marks)
        text, mark = (cursor.text[start:], None) if found is None else found
        call = make_call(recipient.removeprefix(NAMESPACE), text.strip() or "{}")
        if call is None or (mark is None and not text.strip()):
            self._output.add(f"{recipient} {text}" if text.strip() else "")
        else:
            self._output.call(call)
        return mark
