"""How much a JSON text holds, counted without making any of it.

Parsing keeps the whole process waiting for as long as it takes to make the values, and ten million empty lists fit in
the bytes of one long prompt. A parser knows no bound for them, so they are counted first, in steps between which others
may run.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MOST_VALUES = 1_500_000
"""Room for a prompt of a million token ids."""
MOST_ENTRIES = 100_000
STEP_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Structure:
    """``values``: commas, so one less than the values of every list and object. ``entries``: keys, lists, objects."""

    values: int = 0
    entries: int = 0

    @property
    def is_large(self) -> bool:
        """Say whether making all of it would take too long."""
        return self.values > MOST_VALUES or self.entries > MOST_ENTRIES


def is_large(body: bytes) -> bool:
    """Say whether a JSON text holds too much to be parsed."""
    # What is in strings counts here, so most bodies need no closer look.
    return count_marks(body).is_large and any(found.is_large for found in count_structure(body))


def count_marks(text: bytes) -> Structure:
    """Count the marks in a text, in strings or not."""
    return Structure(text.count(b","), text.count(b":") + text.count(b"[") + text.count(b"{"))


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
