"""An engine whose legs must not be aborted before their first token.

vLLM 0.32 with LMCache's MP connector as ``kv_both`` reports a request that is aborted while its KV is being loaded as
received and as sent; its scheduler frees it at the first report and fails at the second, and the whole engine is gone
(https://github.com/vllm-project/vllm/issues/46240).
"""

import asyncio
import contextlib

import msgspec

from backends.base import Engine, Room, Take
from backends.errors import EngineTimeout
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest


class PatientEngine:
    """``Engine`` around another one. A leg that is let go goes on until its first chunk, for ``grace_s`` at most."""

    def __init__(self, engine: Engine, grace_s: float) -> None:
        self.wrapped = engine
        self._grace_s = grace_s
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self.wrapped.id

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Run one leg, see ``Engine.generate``; but an abort before the first chunk returns before it is done.

        So does the end of the time that its first token may take.
        """
        wait_s = leg.first_token_timeout_s
        begun = asyncio.Event()
        is_wanted = True

        def take_first(chunk: LegChunk) -> Room | None:
            begun.set()
            return take(chunk) if is_wanted else None

        patient = msgspec.structs.replace(leg, first_token_timeout_s=wait_s + self._grace_s)
        running = asyncio.create_task(self.wrapped.generate(patient, take_first))
        running.add_done_callback(lambda done: begun.set())
        try:
            async with asyncio.timeout(wait_s):
                await begun.wait()
            await running
        except TimeoutError:
            raise EngineTimeout("no answer in time") from None
        finally:
            is_wanted = False
            await self._leave(running, begun)

    async def probe(self) -> Capabilities:
        """See ``Engine.probe``."""
        return await self.wrapped.probe()

    async def load(self) -> EngineLoad:
        """See ``Engine.load``."""
        return await self.wrapped.load()

    async def aclose(self) -> None:
        """Close the engine's connections, once what was let go has had its time: an abort may end the engine."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self.wrapped.aclose()

    async def _leave(self, running: asyncio.Task[None], begun: asyncio.Event) -> None:
        """Abort what runs once it has begun."""
        if not begun.is_set():
            task = asyncio.create_task(self._let_go(running, begun))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        elif not running.done():
            await end_task(running)

    async def _let_go(self, running: asyncio.Task[None], begun: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await begun.wait()
        await end_task(running)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, however it ends."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
