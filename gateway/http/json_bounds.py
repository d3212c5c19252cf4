"""Bounds of every JSON text that is parsed: a body, and what a body or a model's answer holds as text.

Parsing keeps the whole process waiting for as long as it takes to make the values, and ten million empty lists fit in
the bytes of one long prompt. A parser knows no bound for them, so they are counted first, in steps between which others
may run.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MOST_DEPTH = 100
"""Templates and serialisers give up at depths of their own."""
MOST_VALUES = 1_500_000
"""Room for a prompt of a million token ids."""
MOST_ENTRIES = 100_000
MOST_PARSED_VALUES = 100_000
"""Room for what a request's texts hold, all together: nobody spells a prompt of token ids there."""
STEP_BYTES = 256 << 10
NO_MARKS = bytes(set(range(256)) - set(b",:[{"))


@dataclass(frozen=True, slots=True)
class Structure:
    """``values``: commas, so one less than the values of every list and object. ``entries``: keys, lists, objects."""

    values: int = 0
    entries: int = 0

    @property
    def is_large(self) -> bool:
        """Say whether making all of it would take too long."""
        return self.is_over(MOST_VALUES)

    def is_over(self, most_values: int) -> bool:
        """Say the same with another bound for plain values."""
        return self.values > most_values or self.entries > MOST_ENTRIES

    def plus(self, other: "Structure") -> "Structure":
        """Return both together."""
        return Structure(self.values + other.values, self.entries + other.entries)


class BoundedJson:
    """Parses texts that came inside one request or answer; the bounds hold for all of them together."""

    def __init__(self) -> None:
        self._seen = Structure()

    def parse(self, text: str) -> Any:
        """Return a text's value. Raises ValueError: it is no JSON, or too much of it."""
        body = text.encode("utf-8", "surrogatepass")
        self._count(body)
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deep") from None
        if body.count(b"{") + body.count(b"[") > MOST_DEPTH and is_deep(value):
            raise ValueError("nested too deep")
        return value

    def _count(self, body: bytes) -> None:
        before = self._seen
        for found in count_structure(body):
            self._seen = before.plus(found)
            if self._seen.is_over(MOST_PARSED_VALUES):
                raise ValueError("too many values")


def is_deep(value: Any) -> bool:
    """Say whether a value is nested beyond the bound."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        inner = (entry for node in level for entry in (node.values() if isinstance(node, dict) else node))
        level = [entry for entry in inner if isinstance(entry, dict | list)]
        if not level:
            return False
    return True


def is_large(body: bytes, marks: Structure) -> bool:
    """Say whether a JSON text, in which there are so many ``marks``, holds too much to be parsed."""
    # What is in strings counts there, so most bodies need no closer look.
    return marks.is_large and any(found.is_large for found in count_structure(body))


def count_marks(text: bytes) -> Structure:
    """Count the marks in a text, in strings or not."""
    marks = text.translate(None, NO_MARKS)
    commas = marks.count(b",")
    return Structure(commas, len(marks) - commas)


def count_structure(body: bytes, step_bytes: int = STEP_BYTES) -> Iterator[Structure]:
    """Yield what is outside strings up to the end of each step. What is no JSON is counted well up to its flaw."""
    values = entries = start = 0
    inside = False
    while start < len(body):
        end = start + step_bytes
        piece = body[start:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # An escape is never cut in two.
            piece = body[start : end + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found = count_marks(b"".join(parts[inside::2]))
        values, entries = values + found.values, entries + found.entries
        inside ^= len(parts) % 2 == 0
        yield Structure(values, entries)
