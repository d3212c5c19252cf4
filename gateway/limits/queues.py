"""Lets no more answers run in this process than its engines batch; the rest wait, fairly and for a bounded time."""

import asyncio
from collections.abc import Callable
from functools import partial

from gateway.limits.fair_queue import FairQueue, Ticket

_Turn = asyncio.Future[bool]
"""True: its turn has come; False: it has to go."""


class Overloaded(Exception):
    """There was no room in time, or none in the queue."""


class Admission:
    """``most_running``: answers that may run now; None: any number. Nobody waits longer than ``deadline_s``."""

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
        return most is None or self.running < most


class AdmissionQueues:
    """An ``Admission`` for each model, so that a model that is full holds up nobody who asks for another.

    ``most_running``: by model. Models must be configured ones: a queue is never forgotten.
    """

    def __init__(self, most_running: Callable[[str], int | None], most_waiting: int, deadline_s: float) -> None:
        self._most_running = most_running
        self._most_waiting = most_waiting
        self._deadline_s = deadline_s
        self._queues: dict[str, Admission] = {}

    @property
    def running(self) -> int:
        """Answers that were let in, of all models."""
        return sum(queue.running for queue in self._queues.values())

    @property
    def waiting(self) -> int:
        """How many wait, for any model."""
        return sum(queue.waiting for queue in self._queues.values())

    def of(self, model: str) -> Admission:
        """Return a model's queue."""
        queue = self._queues.get(model)
        if queue is None:
            most_running = partial(self._most_running, model)
            queue = self._queues[model] = Admission(most_running, self._most_waiting, self._deadline_s)
        return queue
