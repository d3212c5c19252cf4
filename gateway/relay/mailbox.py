"""Where everything that happens to one answer arrives, in order."""

import asyncio

from gateway.relay.splice_events import Event

WAITING_CHUNKS = 64


class Mailbox:
    """Queue of one answer. Token chunks wait for room, so a slow reader slows the engines; the rest never waits."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Event | None, bool]] = asyncio.Queue()
        self._room = asyncio.Semaphore(WAITING_CHUNKS)

    async def put(self, event: Event) -> None:
        """Add a chunk, once there is room."""
        await self._room.acquire()
        self._queue.put_nowait((event, True))

    def post(self, event: Event | None) -> None:
        """Add an event at once; None: only time has passed."""
        self._queue.put_nowait((event, False))

    async def get(self) -> Event | None:
        """Take the oldest event."""
        event, bounded = await self._queue.get()
        if bounded:
            self._room.release()
        return event
