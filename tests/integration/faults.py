"""What tests with two regions do to them, and when.

A phase is a block: it begins once the newest answer is in it, and the answer stays in it until the block ends.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.integration.holds import Hold
from tests.integration.regions import Asked, Regions

Phase = Callable[[Regions], AbstractAsyncContextManager[None]]
Fault = Callable[[Regions], Awaitable[None]]
REACHED_WITHIN_S = 60.0


@asynccontextmanager
async def in_prefill(regions: Regions) -> AsyncIterator[None]:
    """P computes the prompt."""
    with regions.holds.hold(Hold("prefill")) as gate:
        await gate.arrivals(within_s=REACHED_WITHIN_S)
        yield


@asynccontextmanager
async def in_eager(regions: Regions) -> AsyncIterator[None]:
    """RLD writes while the KV is on its way."""
    async with regions.narrow_link():
        with regions.holds.hold(Hold("relay", after=1)) as gate:
            await gate.arrivals(within_s=REACHED_WITHIN_S)
            yield


@asynccontextmanager
async def in_catch_up(regions: Regions) -> AsyncIterator[None]:
    """MD extends while RLD writes."""
    with regions.holds.hold(Hold("extend")) as gate:
        await gate.arrivals(within_s=REACHED_WITHIN_S)
        yield


@asynccontextmanager
async def in_main(regions: Regions) -> AsyncIterator[None]:
    """MD writes."""
    with regions.holds.hold(Hold("final", after=1)) as gate:
        await gate.arrivals(within_s=REACHED_WITHIN_S)
        yield


async def ask_and_break(
    regions: Regions, phase: Phase, fault: Fault, words: int, tokens: int, *, main_follows: bool = True
) -> Asked:
    """Ask, and let the fault happen in the phase. Where MD ``main_follows``, RLD writes at most half before it does."""

    async def break_it() -> None:
        async with phase(regions):
            await fault(regions)

    breaking = asyncio.create_task(break_it())
    with regions.relay_kept_to(tokens // 2 if main_follows else tokens, of=tokens):
        async with regions.ask(words=words, tokens=tokens) as asked:
            await asked.read()
    await breaking
    return asked


async def leave_in(regions: Regions, phase: Phase, words: int, tokens: int) -> None:
    """Ask, and let the client leave in the phase."""

    async def read_on() -> None:
        with regions.relay_kept_to(tokens // 2, of=tokens):
            async with regions.ask(words=words, tokens=tokens) as asked:
                await asked.read()

    reading = asyncio.create_task(read_on())
    try:
        async with phase(regions):
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def kill_bridge(regions: Regions) -> None:
    """End the bridge without a word, and let its supervisor start it again."""
    regions.cluster.children["bridge"].kill()
    await regions.restart("bridge")


async def cut_link(regions: Regions) -> None:
    """Break all connections between the regions for a while."""
    await regions.control_wan("cut", for_s=0.5)
