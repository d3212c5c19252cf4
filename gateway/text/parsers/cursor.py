"""Text that comes in pieces, read as if it were whole: parsers are generators that yield where they need more. No I/O.

What a parser decides depends on the text alone and never on where it was cut: it waits wherever the next characters
could still change what it does.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Parsing that yields where it needs more text, and returns what it found."""

CONTROL = "\udc00"
"""Stands before the text of a control token, so that the same letters as ordinary text are not taken for it.

No text can hold it: it is half of a surrogate pair."""

MOST_NAME = 512
"""No function has a longer name; what goes on for longer is no call."""

_BETWEEN = re.compile(r"[\w\s+\-.,:]*")
_IN_STRING = re.compile(r'[^"\\]*')
_BLANKS = re.compile(r"\s*")


class Cursor:
    """The text so far, and where it is read. ``ended``: no more comes."""

    __slots__ = ("at", "ended", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def drop(self, end: int) -> None:
        """Forget the text before ``end``, and read on there."""
        self.text = self.text[end:]
        self.at = 0


class Marks:
    """Some literal texts to look for; none is the beginning of another one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._whole = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._begun = re.compile("|".join(map(_spell_begun, texts)) or r"\Z")
        self._longest = max(map(len, texts), default=0)

    def find(self, text: str, at: int) -> re.Match[str] | None:
        return self._whole.search(text, at)

    def end_of_certain(self, text: str, at: int) -> int:
        """Return where the text ends that can be no beginning of a mark."""
        tail = max(at, len(text) - self._longest + 1)
        match = self._begun.search(text, tail)
        return len(text) if match is None else match.start()


def _spell_begun(text: str) -> str:
    """Return an expression for any beginning of the text at a text's end."""
    pattern = ""
    for letter in reversed(text[:-1]):
        pattern = f"{re.escape(letter)}(?:{pattern})?" if pattern else re.escape(letter)
    return rf"(?:{pattern})\Z" if pattern else r"(?!)"


def pass_until(cursor: Cursor, marks: Marks, show: Callable[[str], None]) -> Steps[str | None]:
    """Pass text on until one of the marks, and return that; None: the text ended before."""
    while True:
        match = marks.find(cursor.text, cursor.at)
        if match is not None:
            show(cursor.text[cursor.at : match.start()])
            cursor.at = match.end()
            return match[0]
        end = len(cursor.text) if cursor.ended else marks.end_of_certain(cursor.text, cursor.at)
        show(cursor.text[cursor.at : end])
        cursor.drop(end)
        if cursor.ended:
            return None
        yield


def skip_blanks(cursor: Cursor) -> Steps[bool]:
    """Go past white space; False: there is nothing after it."""
    while True:
        match = _BLANKS.match(cursor.text, cursor.at)
        cursor.at = match.end() if match else cursor.at
        if cursor.at < len(cursor.text):
            return True
        if cursor.ended:
            return False
        yield


def take(cursor: Cursor, *texts: str) -> Steps[str | None]:
    """Go past the one of the texts that comes next, and return it; None: none of them does."""
    while True:
        for text in texts:
            if cursor.text.startswith(text, cursor.at):
                cursor.at += len(text)
                return text
        rest = cursor.text[cursor.at : cursor.at + max(map(len, texts))]
        if cursor.ended or not any(text.startswith(rest) for text in texts):
            return None
        yield


def pass_over(cursor: Cursor, *texts: str) -> Steps[None]:
    """Go past white space and one of the texts, where that comes next."""
    at = cursor.at
    if not (yield from skip_blanks(cursor)) or (yield from take(cursor, *texts)) is None:
        cursor.at = at


def follows(cursor: Cursor, at: int, *texts: str, or_end: bool = False) -> Steps[bool]:
    """Say whether one of the texts comes after white space from ``at`` on, or nothing more; reads nothing."""
    was, cursor.at = cursor.at, at
    more = yield from skip_blanks(cursor)
    found = (yield from take(cursor, *texts)) is not None if more else or_end
    cursor.at = was
    return found


def take_until(cursor: Cursor, marks: Marks) -> Steps[tuple[str, str] | None]:
    """Go past the first of the marks, and return (what comes before it, the mark); None: the text ended before."""
    at = cursor.at
    while True:
        match = marks.find(cursor.text, at)
        if match is not None:
            before = cursor.text[cursor.at : match.start()]
            cursor.at = match.end()
            return before, match[0]
        if cursor.ended:
            cursor.at = len(cursor.text)
            return None
        at = marks.end_of_certain(cursor.text, at)
        yield


def take_name(cursor: Cursor, pattern: re.Pattern[str]) -> Steps[str]:
    """Go past what the pattern takes of single characters, MOST_NAME of them at most, and return it."""
    while True:
        most = cursor.at + MOST_NAME
        match = pattern.match(cursor.text, cursor.at, most)
        end = match.end() if match else cursor.at
        if end < len(cursor.text) or end == most or cursor.ended:
            name = cursor.text[cursor.at : end]
            cursor.at = end
            return name
        yield


def take_json(cursor: Cursor) -> Steps[str | None]:
    """Go past a JSON object or array, and return its text; None: it is none, and the cursor is where that shows.

    Only its outline is looked at: brackets count outside strings, and nothing else may stand there than JSON has.
    """
    at, depth, in_string = cursor.at, 0, False
    while True:
        text = cursor.text
        while at < len(text):
            match = (_IN_STRING if in_string else _BETWEEN).match(text, at)
            at = match.end() if match else at
            letter = text[at : at + 1]
            if not letter or (letter == "\\" and in_string and at + 1 == len(text)):
                break
            if in_string:
                at += 2 if letter == "\\" else 1
                in_string = letter == "\\"
                continue
            if letter not in '"{}[]' or (not depth and letter not in "{["):
                cursor.at = at
                return None
            at += 1
            in_string = letter == '"'
            depth += (letter in "{[") - (letter in "}]")
            if not depth:
                value = text[cursor.at : at]
                cursor.at = at
                return value
        if cursor.ended:
            cursor.at = len(text)
            return None
        yield
