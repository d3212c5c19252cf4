"""A process that follows one engine into Redis until it is killed; says "known" on stdout once it does."""

import asyncio
import sys

from backends.kv.subscriber import EventSource
from gateway.index.shared import RedisIndex
from gateway.index.store import StoreLimits
from gateway.index.types import CacheSpec
from gateway.redis.client import SharedRedis


async def main(url: str, prefix: str, endpoint: str, replay_endpoint: str) -> None:
    """Run the index of one gateway process."""
    changed = asyncio.Event()
    index = RedisIndex(SharedRedis(url), prefix=prefix, limits=StoreLimits(lease_s=0.6), on_change=changed.set)
    index.add_instance(CacheSpec("md1", "qwen", 16, (EventSource(endpoint, replay_endpoint),)))
    await index.start()
    while not index.stats().instances["md1"].known:
        changed.clear()
        await changed.wait()
    sys.stdout.write("known\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
