"""The message of most models: reasoning between two tags, then text with tool calls in it. No I/O.

A call within reasoning that is not closed is a call where nothing but calls follows it: models that are sure of their
call forget to close. Where text follows, it was only thought of, and stays reasoning.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.text.parsers.cursor import CONTROL, Cursor, Marks, Steps, follows, pass_until, skip_blanks, take
from gateway.text.parsers.output import Call, MessageParts, make_call_id
from gateway.text.parsers.schema import Tools

Block = Callable[[Cursor, Tools], Steps[list[Call] | None]]
"""Reads one block right after its opening: its calls, or None where it is no call.

Then the cursor is where that shows, and the text up to there is content like any other."""


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """How a family of models writes tool calls."""

    blocks: Mapping[str, Block]
    """By the text that opens them."""
    wrappers: tuple[str, ...] = ()
    """Markup around the blocks that says nothing."""
    trims: bool = False
    """Whether templates set calls apart from content by white space."""
    first: Mapping[str, Block] | None = None
    """Blocks that have to come first in the content, as nothing else tells them from text."""
    make_id: Callable[[], str] = make_call_id
    inner: tuple[str, ...] = ()
    """Markup within blocks, as far as it may be control tokens."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All markup that may be control tokens."""
        return (*self.blocks, *self.wrappers, *self.inner)


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a family of models marks its reasoning."""

    tags: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    begins_inside: bool = False
    """Whether an answer begins with reasoning where neither it nor the prompt says so."""
    also_ends: tuple[str, ...] = ()
    """Markup of content, which ends reasoning as well."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All markup that may be control tokens."""
        return (*(tag for tags in self.tags for tag in tags), *self.also_ends)

    def find_place(self, opening: str) -> str | None:
        """Return the closing tag of the reasoning that a prompt's last words leave open."""
        found: list[tuple[int, str | None]] = [(opening.rfind(plain(mark)), None) for mark in self.also_ends]
        for begin, end in self.tags:
            found += [(opening.rfind(plain(begin)), end), (opening.rfind(plain(end)), None)]
        at, close = max(found, key=lambda place: place[0])
        if at < 0:
            return self.tags[0][1] if self.begins_inside else None
        return close


def plain(mark: str) -> str:
    """Return a mark as the text that it looks like."""
    return mark.replace(CONTROL, "")


@dataclass(frozen=True, slots=True)
class Format:
    """How a model writes its answers; None for what it does not have."""

    thinking: Thinking | None = None
    tools: ToolDialect | None = None


NO_TOOLS = ToolDialect({})


class TaggedMessage:
    """Reads one answer. ``opening``: the end of the prompt, which may have begun the reasoning."""

    def __init__(self, cursor: Cursor, output: MessageParts, form: Format, tools: Tools, opening: str) -> None:
        self._cursor = cursor
        self._output = output
        self._thinking = form.thinking
        self._dialect = form.tools or NO_TOOLS
        self._tools = tools
        self._opening = opening

    def read(self) -> Steps[None]:
        """Read the answer to its end."""
        if self._thinking is not None:
            close = self._thinking.find_place(self._opening)
            opened = yield from self._open_reasoning(self._thinking)
            if opened or (close and not (yield from self._begins_with_json())):
                yield from self._read_reasoning(self._thinking, opened or close or "")
        yield from self._read_content()
        self._output.end()

    def _open_reasoning(self, thinking: Thinking) -> Steps[str | None]:
        """Go past an opening tag at the start, and return its closing one."""
        cursor = self._cursor
        if not (yield from skip_blanks(cursor)):
            cursor.at = 0
            return None
        tag = yield from take(cursor, *(opening for opening, _ in thinking.tags))
        if tag is None:
            cursor.at = 0
            return None
        return dict(thinking.tags)[tag]

    def _begins_with_json(self) -> Steps[bool]:
        return self._output.wanted.json and (yield from follows(self._cursor, 0, "{", "["))

    def _read_reasoning(self, thinking: Thinking, close: str) -> Steps[None]:
        cursor, output = self._cursor, self._output
        closing = (close, *thinking.also_ends)
        marks = Marks((*closing, *self._dialect.blocks))
        while True:
            found = yield from pass_until(cursor, marks, output.reason)
            if found is None:
                return
            if found in closing:
                output.end_reasoning()
                return
            start = cursor.at - len(found)
            calls = yield from self._read_draft(found, closing)
            if calls:
                output.end_reasoning()
                for call in calls:
                    output.call(call)
                return
            # Only thought of, or no call: a closing tag that was looked at is read again.
            output.reason(cursor.text[start : cursor.at])

    def _read_draft(self, opening: str, closing: tuple[str, ...]) -> Steps[list[Call]]:
        """Read calls within reasoning, and return them where nothing else follows to the end of the answer."""
        cursor, blocks = self._cursor, self._dialect.blocks
        drafted: list[Call] = []
        found: str | None = opening
        while found is not None:
            calls = yield from blocks[found](cursor, self._tools)
            if calls is None or not all(self._tools.has(call.name) for call in calls):
                return []
            drafted += calls
            found = yield from self._next_opening()
            if cursor.at == len(cursor.text) and cursor.ended:
                return drafted
        at = cursor.at
        if (yield from take(cursor, *closing)) is not None and not (yield from skip_blanks(cursor)):
            return drafted
        cursor.at = at
        return []

    def _next_opening(self) -> Steps[str | None]:
        """Go past the opening that comes next, and return it; None: something else does."""
        while (yield from skip_blanks(self._cursor)):
            found = yield from take(self._cursor, *self._dialect.wrappers, *self._dialect.blocks)
            if found not in self._dialect.wrappers:
                return found
        return None

    def _read_content(self) -> Steps[None]:
        cursor, output, dialect = self._cursor, self._output, self._dialect
        thinking = self._thinking
        opens = tuple(tag for tag, _ in thinking.tags) if thinking else ()
        closes = tuple(tag for _, tag in thinking.tags) if thinking else ()
        ends = thinking.also_ends if thinking else ()
        marks = Marks((*dict.fromkeys((*dialect.blocks, *dialect.wrappers, *opens, *closes, *ends)),))
        if dialect.first is not None:
            yield from self._read_first(dialect.first)
        opened = 0
        while True:
            found = yield from pass_until(cursor, marks, output.add)
            if found is None:
                return
            if found in opens:
                opened += 1
                output.add(found)
            elif found in closes and opened:
                opened -= 1
                output.add(found)
            elif found in dialect.blocks:
                yield from self._read_block(found, dialect.blocks[found])
            else:
                output.mark()

    def _read_first(self, blocks: Mapping[str, Block]) -> Steps[None]:
        """Read the blocks that the content may begin with."""
        cursor = self._cursor
        while True:
            start = cursor.at
            found = None
            if (yield from skip_blanks(cursor)):
                found = yield from take(cursor, *blocks)
            if found is None:
                cursor.at = start
                return
            if not (yield from self._read_block(found, blocks[found])):
                return

    def _read_block(self, opening: str, block: Block) -> Steps[bool]:
        """Read a block, and say whether it was one of calls."""
        cursor, output = self._cursor, self._output
        start = cursor.at - len(opening)
        calls = yield from block(cursor, self._tools)
        if calls is None:
            text = cursor.text[start : cursor.at]
            # An opening that nothing came after says nothing.
            if not (cursor.ended and text.strip() == opening):
                output.add(text)
            else:
                output.mark()
            return False
        for call in calls:
            output.call(call)
        return True
