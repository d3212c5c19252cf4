"""Legs as tests read them: whole, or chunk by chunk at the test's own pace."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from backends.base import Engine
from backends.types import LegChunk, LegRequest


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Room for the next chunk once the last one was read; a ``Room``."""

    queue: asyncio.Queue[LegChunk | None]

    def is_set(self) -> bool:
        """See ``Room``."""
        return self.queue.empty()

    async def wait(self) -> object:
        """See ``Room``."""
        await self.queue.join()
        return None


async def open_leg(engine: Engine, leg: LegRequest) -> AsyncGenerator[LegChunk, None]:
    """Yield a leg's chunks; the engine is not read on before the next one is asked for. ``aclose()`` aborts it."""
    queue: asyncio.Queue[LegChunk | None] = asyncio.Queue()
    room = OneByOne(queue)

    def take(chunk: LegChunk) -> OneByOne:
        queue.put_nowait(chunk)
        return room

    running = asyncio.create_task(engine.generate(leg, take))
    running.add_done_callback(lambda done: queue.put_nowait(None))
    try:
        while (chunk := await queue.get()) is not None:
            yield chunk
            queue.task_done()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def collect(engine: Engine, leg: LegRequest) -> list[LegChunk]:
    """Run a leg to its end and return its chunks."""
    chunks: list[LegChunk] = []
    await engine.generate(leg, chunks.append)
    return chunks
