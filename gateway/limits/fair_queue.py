"""Who of those that wait is next: strict classes, fair shares between the tenants of a class, a bounded length.

Within a class each tenant has a line of its own and a tag, the amount of work up to which it was served. Whoever has
the smallest tag is next, and its tag grows by the cost of what is served. A tenant that was not waiting begins where
the others are: it saves nothing up, and a tenant that asks for much waits for itself, not for the others.
When the queue is full, the newest in the longest line of the lowest class has to go. No I/O and no clock.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """One that waits. ``rank``: its class, the smallest is served first. ``cost``: its share of work, above 0."""

    tenant: str
    rank: int
    cost: float
    holder: T


@dataclass(slots=True)
class _Line(Generic[T]):
    tag: float
    tickets: deque[Ticket[T]] = field(default_factory=deque)


@dataclass(slots=True)
class _Class(Generic[T]):
    lines: dict[str, _Line[T]] = field(default_factory=dict)
    """Tenants that wait."""
    tags: dict[str, float] = field(default_factory=dict)
    """Of tenants that were served ahead of the others and do not wait."""
    now: float = 0.0
    """Tag of the one served last."""

    def add(self, ticket: Ticket[T]) -> None:
        line = self.lines.get(ticket.tenant)
        if line is None:
            tag = max(self.now, self.tags.pop(ticket.tenant, 0.0))
            line = self.lines[ticket.tenant] = _Line(tag)
        line.tickets.append(ticket)

    def take(self) -> Ticket[T]:
        tenant, line = min(self.lines.items(), key=lambda entry: entry[1].tag)
        ticket = line.tickets.popleft()
        self.now = line.tag
        line.tag += ticket.cost
        self._drop_if_empty(tenant, line)
        return ticket

    def remove(self, ticket: Ticket[T]) -> bool:
        line = self.lines.get(ticket.tenant)
        if line is None or ticket not in line.tickets:
            return False
        line.tickets.remove(ticket)
        self._drop_if_empty(ticket.tenant, line)
        return True

    def longest(self) -> Ticket[T]:
        """The newest ticket of the longest line."""
        return max(self.lines.values(), key=lambda line: len(line.tickets)).tickets[-1]

    def _drop_if_empty(self, tenant: str, line: _Line[T]) -> None:
        if line.tickets:
            return
        del self.lines[tenant]
        self.tags = {name: tag for name, tag in self.tags.items() if tag > self.now} if self.lines else {}
        if self.lines and line.tag > self.now:
            self.tags[tenant] = line.tag


class FairQueue(Generic[T]):
    """Holds at most ``most`` tickets."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._classes: dict[int, _Class[T]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def offer(self, ticket: Ticket[T]) -> Ticket[T] | None:
        """Add a ticket; the one that has to go for it, perhaps the same, where the queue is full."""
        self._classes.setdefault(ticket.rank, _Class()).add(ticket)
        self._length += 1
        if self._length <= self._most:
            return None
        lowest = self._classes[max(self._classes)]
        victim = lowest.longest()
        # Where lines are equally long, those that came before keep their places.
        own = lowest.lines.get(ticket.tenant) if ticket.rank == victim.rank else None
        if own is not None and len(own.tickets) >= len(lowest.lines[victim.tenant].tickets):
            victim = ticket
        self.remove(victim)
        return victim

    def take(self) -> Ticket[T] | None:
        """Take out who is next; None: nobody waits."""
        if not self._classes:
            return None
        rank = min(self._classes)
        ticket = self._classes[rank].take()
        self._shrink(rank)
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Take out one that does not want to wait any more; nothing happens if it does not wait."""
        waiting = self._classes.get(ticket.rank)
        if waiting is not None and waiting.remove(ticket):
            self._shrink(ticket.rank)

    def _shrink(self, rank: int) -> None:
        self._length -= 1
        if not self._classes[rank].lines:
            del self._classes[rank]
