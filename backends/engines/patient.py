"""An engine whose legs must not be aborted before their first token.

vLLM 0.32 with LMCache's MP connector as ``kv_both`` reports a request that is aborted while its KV is being loaded as
received and as sent; its scheduler frees it at the first report and fails at the second, and the whole engine is gone
(https://github.com/vllm-project/vllm/issues/46240).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from backends.base import Engine
from backends.errors import BackendError, EngineTimeout
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

    async def generate(self, leg: LegRequest) -> AsyncGenerator[LegChunk, None]:
        """Stream one leg, see ``Engine.generate``; but an abort before the first chunk returns before it is done.

        So does the end of the time that its first token may take.
        """
        wait_s = leg.first_token_timeout_s
        stream = self.wrapped.generate(replace(leg, first_token_timeout_s=wait_s + self._grace_s))
        first = asyncio.create_task(_read_next(stream))
        try:
            async with asyncio.timeout(wait_s):
                chunk = await asyncio.shield(first)
        except TimeoutError:
            self._leave(stream, first)
            raise EngineTimeout("no answer in time") from None
        except asyncio.CancelledError:
            self._leave(stream, first)
            raise
        async with aclosing(stream):
            while chunk is not None:
                yield chunk
                chunk = await _read_next(stream)

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

    def _leave(self, stream: AsyncGenerator[LegChunk, None], first: asyncio.Task[LegChunk | None]) -> None:
        task = asyncio.create_task(self._let_go(stream, first))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _let_go(self, stream: AsyncGenerator[LegChunk, None], first: asyncio.Task[LegChunk | None]) -> None:
        async with aclosing(stream):
            with contextlib.suppress(BackendError, TimeoutError):
                async with asyncio.timeout(self._grace_s):
                    await first


async def _read_next(stream: AsyncGenerator[LegChunk, None]) -> LegChunk | None:
    return await anext(stream, None)
