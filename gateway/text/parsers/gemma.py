"""Tool calls as Gemma writes them: ``call:NAME{key:value}``, with bare keys and strings between marks. No I/O."""

import re

from gateway.text.parsers.cursor import Cursor, Marks, Steps, pass_over, skip_blanks, take, take_name
from gateway.text.parsers.output import Call
from gateway.text.parsers.schema import Tools, join_object, read_json, spell_value
from gateway.text.parsers.tagged import ToolDialect

NAME = re.compile(r"[^\s<>{}:\"]*")
STRING = frozenset({"string"})
DEEPEST = 64


class Unreadable(Exception):
    """The notation is broken."""


class Notation:
    """Reads values of the notation in one text. ``quote`` stands on either side of a string."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self.at = 0

    def read(self, depth: int = 0) -> str:
        """Return the value that comes next as JSON. Raises Unreadable."""
        self._skip()
        if depth > DEEPEST:
            raise Unreadable
        if self._takes(self._quote):
            return spell_value(self._until(self._quote), STRING)
        if self._takes("{"):
            return self._read_object(depth)
        if self._takes("["):
            return self._read_array(depth)
        match = re.compile(r"[^,{}\[\]]*").match(self._text, self.at)
        plain = match[0].strip() if match else ""
        self.at += len(match[0]) if match else 0
        if not plain:
            raise Unreadable
        return plain if read_json(plain) is not None else spell_value(plain, STRING)

    def _read_object(self, depth: int) -> str:
        members: dict[str, str] = {}
        while not self._closes("}", bool(members)):
            key = self._until(self._quote) if self._takes(self._quote) else None
            key = self._until(":").strip() if key is None else key + self._until(":").strip()
            members[key] = self.read(depth + 1)
        return join_object(members)

    def _read_array(self, depth: int) -> str:
        values: list[str] = []
        while not self._closes("]", bool(values)):
            values.append(self.read(depth + 1))
        return f"[{', '.join(values)}]"

    def _closes(self, bracket: str, further: bool) -> bool:
        """Say whether the object or array ends here; else go past the comma before a further value."""
        self._skip()
        if self._takes(bracket):
            return True
        if further and not self._takes(","):
            raise Unreadable
        self._skip()
        return False

    def _skip(self) -> None:
        while self._text[self.at : self.at + 1].isspace():
            self.at += 1

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _until(self, text: str) -> str:
        end = self._text.find(text, self.at)
        if end < 0:
            raise Unreadable
        found = self._text[self.at : end]
        self.at = end + len(text)
        return found


def take_braces(cursor: Cursor, quote: str) -> Steps[str | None]:
    """Go past what is between braces, and return it with them; strings may hold any."""
    marks = Marks((quote, "{", "}"))
    at, depth, in_string = cursor.at, 0, False
    while True:
        match = marks.find(cursor.text, at)
        if match is None:
            if cursor.ended:
                cursor.at = len(cursor.text)
                return None
            at = marks.end_of_certain(cursor.text, at)
            yield
            continue
        at = match.end()
        if match[0] == quote:
            in_string = not in_string
        elif not in_string:
            depth += 1 if match[0] == "{" else -1
        if not depth and not in_string:
            found = cursor.text[cursor.at : at]
            cursor.at = at
            return found


def gemma(opening: str, closing: str, quote: str) -> ToolDialect:
    def read(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
        if not (yield from skip_blanks(cursor)) or not (yield from take(cursor, "call:")):
            return None
        name = yield from take_name(cursor, NAME)
        while cursor.at == len(cursor.text) and not cursor.ended:
            yield
        if not name or not cursor.text.startswith("{", cursor.at):
            return None
        text = yield from take_braces(cursor, quote)
        if text is None:
            return None
        notation = Notation(text, quote)
        try:
            arguments = notation.read()
        except Unreadable:
            return None
        yield from pass_over(cursor, closing)
        return [Call(name, arguments)]

    return ToolDialect({opening: read}, inner=(closing, quote))


GEMMA4 = gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTIONGEMMA = gemma("<start_function_call>", "<end_function_call>", "<escape>")
