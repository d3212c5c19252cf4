"""Order of event messages: which are next, seen already, ahead of a gap, or from a restarted engine.

Sequence numbers are counted per rank and start at 0 with the engine. A number that was seen before with the same bytes
is a duplicate; with other bytes, or too old to remember, it comes from a publisher that started anew.
"""

from enum import Enum

from xxhash import xxh3_64_intdigest

from gateway.index.engine_blocks import EventMark

_REMEMBERED = 16_384


class MessageOrder(Enum):
    """What to do with a message."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTART = "restart"


class Watermark:
    """Where one rank's messages stand; ``mark`` tells the last one that an earlier process took."""

    def __init__(self, mark: EventMark | None = None) -> None:
        self.last = mark.sequence if mark else -1
        """The last sequence number that was taken, -1 for none."""
        self._seen = {mark.sequence: mark.digest} if mark else {}

    def mark(self) -> EventMark | None:
        """Return the last message that was taken."""
        return EventMark(self.last, self._seen[self.last]) if self.last >= 0 else None

    def judge(self, sequence: int, payload: bytes) -> MessageOrder:
        """Place a message; this changes nothing."""
        if sequence == self.last + 1:
            return MessageOrder.NEXT
        if sequence > self.last:
            return MessageOrder.GAP
        if self._seen.get(sequence) == xxh3_64_intdigest(payload):
            return MessageOrder.DUPLICATE
        return MessageOrder.RESTART

    def take(self, sequence: int, payload: bytes) -> None:
        """Record that a message was applied: the next one expected follows it."""
        self.last = sequence
        self._seen[sequence] = xxh3_64_intdigest(payload)
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
