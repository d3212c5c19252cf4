"""How a test learns that something has happened in a fake, and lets it go on: no sleeps."""

import asyncio
from collections import deque
from collections.abc import Callable


class Watch:
    """Wakes tests that wait for a condition over a fake's records."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def changed(self) -> None:
        """Look at the conditions again; whoever changes a record calls this."""
        for condition, waiter in self._waiters:
            if not waiter.done() and condition():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until ``condition()`` is true. Raises TimeoutError."""
        if condition():
            return
        entry = (condition, asyncio.get_running_loop().create_future())
        self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await entry[1]
        finally:
            self._waiters.remove(entry)


class HoldGate:
    """Holds whoever comes until the test releases one, some or all; the test learns how many have come."""

    def __init__(self) -> None:
        self.arrived = 0
        self._permits = 0
        self._is_open = False
        self._held: deque[asyncio.Future[None]] = deque()
        self._watch = Watch()

    @property
    def held(self) -> int:
        """How many are being held now."""
        return sum(not waiter.done() for waiter in self._held)

    async def hold(self) -> None:
        """Called by the fake: return once released."""
        self.arrived += 1
        self._watch.changed()
        if self._is_open:
            return
        if self._permits:
            self._permits -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._held:
                self._held.remove(waiter)

    async def arrivals(self, count: int = 1, within_s: float = 10.0) -> None:
        """Wait until ``count`` have come in all, held or not. Raises TimeoutError."""
        await self._watch.until(lambda: self.arrived >= count, within_s)

    def release(self, count: int = 1) -> None:
        """Let ``count`` go, those held first, in order; what is left lets later ones through."""
        while count and self._held:
            waiter = self._held.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        self._permits += count

    def open(self) -> None:
        """Let everybody go from here on."""
        self._is_open = True
        self.release(len(self._held))
