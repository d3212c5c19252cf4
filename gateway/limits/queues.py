"""Lets no more answers run in this process than its engines batch; the rest wait, fairly and for a bounded time.

Who is next: strict classes, and fair shares between the tenants of a class. Within a class each tenant has a line of
its own and a tag, the amount of work up to which it was served. Whoever has the smallest tag is next, and its tag grows
by the cost of what is served. A tenant that was not waiting begins where the others are: it saves nothing up, and a
tenant that asks for much waits for itself, not for the others. When the queue is full, the newest in the longest line
of the lowest class has to go.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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


_Turn = asyncio.Future[bool]
"""True: its turn has come; False: it has to go."""


class Overloaded(Exception):
    """There was no room in time, or none in the queue."""


class AdmissionQueue:
    """``most_running``: answers that may run now; None or 0: any number. Nobody waits longer than ``deadline_s``."""

    def __init__(self, most_running: Callable[[], int | None], most_waiting: int, deadline_s: float) -> None:
        self._most_running = most_running
        self._deadline_s = deadline_s
        self._queue: FairQueue[_Turn] = FairQueue(most_waiting)
        self.running = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    async def enter(self, tenant: str, rank: int, cost_tokens: int, answers: int = 1) -> None:
        """Return once ``answers`` may run; ``leave`` must follow. Raises Overloaded.

        ``rank``: class of the request, the smallest is served first. Whoever is cancelled leaves the queue at once.
        """
        if self._has_room() and not self._queue:
            self.running += answers
            return
        ticket = Ticket(tenant, rank, float(max(1, cost_tokens)), asyncio.get_running_loop().create_future())
        shed = self._queue.offer(ticket)
        if shed is not None and not shed.holder.done():
            shed.holder.set_result(False)
        self._call_next()
        if not await self._wait(ticket):
            raise Overloaded
        self.running += answers - 1
        self._call_next()

    def leave(self, answers: int = 1) -> None:
        """Answers have ended: those that wait take their place."""
        self.running -= answers
        self._call_next()

    async def _wait(self, ticket: Ticket[_Turn]) -> bool:
        may_run = False
        try:
            async with asyncio.timeout(self._deadline_s):
                may_run = await ticket.holder
        except TimeoutError:
            pass
        finally:
            if not may_run:
                self._withdraw(ticket)
        return may_run

    def _withdraw(self, ticket: Ticket[_Turn]) -> None:
        self._queue.remove(ticket)
        turn = ticket.holder
        if turn.done() and not turn.cancelled() and turn.result():
            self.leave()

    def _call_next(self) -> None:
        while self._has_room() and (ticket := self._queue.take()) is not None:
            if not ticket.holder.done():
                self.running += 1
                ticket.holder.set_result(True)

    def _has_room(self) -> bool:
        most = self._most_running()
        return not most or self.running < most


class AdmissionQueues:
    """An ``AdmissionQueue`` for each model, so that a model that is full holds up nobody who asks for another.

    ``most_running``: by model. Models must be configured ones: a queue is never forgotten.
    """

    def __init__(self, most_running: Callable[[str], int | None], most_waiting: int, deadline_s: float) -> None:
        self._most_running = most_running
        self._most_waiting = most_waiting
        self._deadline_s = deadline_s
        self._queues: dict[str, AdmissionQueue] = {}

    @property
    def running(self) -> int:
        """Answers that were let in, of all models."""
        return sum(queue.running for queue in self._queues.values())

    @property
    def waiting(self) -> int:
        """How many wait, for any model."""
        return sum(queue.waiting for queue in self._queues.values())

    def of(self, model: str) -> AdmissionQueue:
        queue = self._queues.get(model)
        if queue is None:
            most_running = partial(self._most_running, model)
            queue = self._queues[model] = AdmissionQueue(most_running, self._most_waiting, self._deadline_s)
        return queue
