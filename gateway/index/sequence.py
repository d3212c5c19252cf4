"""Order of event messages: which are next, seen already, ahead of a gap, or from a restarted engine.

Sequence numbers are counted per rank and start at 0 with the engine. A number that was seen before with the same bytes
is a duplicate; with other bytes, or too old to remember, it comes from a publisher that started anew.
"""

from enum import Enum

from xxhash import xxh3_64_intdigest

_REMEMBERED = 16_384


class Verdict(Enum):
    """What to do with a message."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTART = "restart"


class Watermark:
    """Where one rank's messages stand. ``last`` -1: none was taken yet."""

    def __init__(self, last: int = -1) -> None:
        self.last = last
        self._seen: dict[int, int] = {}

    def judge(self, sequence: int, payload: bytes) -> Verdict:
        """Place a message; this changes nothing."""
        if sequence == self.last + 1:
            return Verdict.NEXT
        if sequence > self.last:
            return Verdict.GAP
        if self._seen.get(sequence) == xxh3_64_intdigest(payload):
            return Verdict.DUPLICATE
        return Verdict.RESTART

    def take(self, sequence: int, payload: bytes) -> None:
        """Record that a message was applied: the next one expected follows it."""
        self.last = sequence
        self._seen[sequence] = xxh3_64_intdigest(payload)
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
