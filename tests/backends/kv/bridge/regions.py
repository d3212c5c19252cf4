"""Two regions for tests: a store each, a link between them, and a bridge over it in this process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import redis.asyncio

from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.transfer import BridgeTransfer
from backends.kv.bridge.types import BridgeLimits, ChunkId
from backends.transport.valkey import EmbeddedValkey
from backends.transport.wan.link import WanLink
from backends.transport.wan.route import WanRoute
from tests.backends.kv.bridge.chunks import CHUNK_BYTES

PATIENCE_S = 15
QUICK = BridgeLimits(silence_s=0.4)


@dataclass(frozen=True, slots=True)
class Regions:
    """A running pair of regions."""

    store_a: EmbeddedValkey
    store_b: EmbeddedValkey
    a: redis.asyncio.Redis
    b: redis.asyncio.Redis
    wan: WanLink
    mover: Mover

    def crossed_chunks(self) -> float:
        """What came over the link so far, in chunks."""
        return self.wan.stats().from_target_bytes / CHUNK_BYTES

    async def move(self, chunks: Sequence[ChunkId], transfer_id: str = "t", deadline_s: float = 60) -> BridgeTransfer:
        """Run a transfer to its end."""
        transfer = self.mover.open(transfer_id, chunks, deadline_s)
        await until(transfer, lambda: transfer.ended)
        return transfer

    async def holds(self, chunks: Sequence[ChunkId]) -> bool:
        """Whether B has each chunk exactly as A has it."""
        for chunk in chunks:
            for suffix in ("kv_bytes", "metadata"):
                value = await self.b.get(chunk.key + suffix)
                if value is None or value != await self.a.get(chunk.key + suffix):
                    return False
        return True


@asynccontextmanager
async def two_regions(
    *,
    rate_mbit: float = 400,
    delay_ms: float = 2,
    limits: BridgeLimits = QUICK,
    max_memory_bytes: int | None = None,
    policy: str = "noeviction",
) -> AsyncGenerator[Regions, None]:
    """Start both regions; ``max_memory_bytes`` and ``policy`` are those of B's store."""
    async with AsyncExitStack() as stack:
        store_a = await stack.enter_async_context(EmbeddedValkey())
        store_b = EmbeddedValkey(max_memory_bytes=max_memory_bytes, policy=policy)
        await store_b.start()
        stack.push_async_callback(store_b.stop)
        a = await stack.enter_async_context(redis.asyncio.Redis.from_url(store_a.url))
        b = await stack.enter_async_context(redis.asyncio.Redis.from_url(store_b.url))
        wan = await stack.enter_async_context(
            WanLink([WanRoute("127.0.0.1", store_a.port)], rate_mbit=rate_mbit, delay_ms=delay_ms)
        )
        mover = Mover(StoreAddress("127.0.0.1", wan.ports[0]), StoreAddress.parse(store_b.url), limits)
        moving = asyncio.create_task(mover.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await mover.source.servers.one.control.ready()
            yield Regions(store_a, store_b, a, b, wan, mover)
        finally:
            moving.cancel()
            with suppress(asyncio.CancelledError):
                await moving


async def until(transfer: BridgeTransfer, condition: Callable[[], bool]) -> None:
    """Wait until a transfer's changes have made ``condition`` true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await transfer.changed.wait()
            transfer.changed.clear()
