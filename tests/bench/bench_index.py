"""What the prefix index costs: naming blocks, walking the mirror, taking events in, and warming up from Redis."""

import asyncio
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable
from statistics import median

from backends.kv.events import decode_batch
from backends.kv.subscriber import EventSource
from gateway.index.engine_blocks import Change
from gateway.index.hashing import BLOCK_TOKENS, chain_seed, hash_blocks
from gateway.index.ingest import IngestTimes
from gateway.index.mirror import CacheDelta, Mirror
from gateway.index.residency import Residency
from gateway.index.shared import RedisIndex
from gateway.index.store import ModelStore, StoreLimits
from gateway.index.types import CacheSpec
from gateway.redis.client import SharedRedis
from tests.gateway.index.publisher import encode_batch, stored
from tests.valkey import run_valkey

_PROMPT_TOKENS = 65_536
_INSTANCES = 64
_WARM_BLOCKS = 1_000_000
_EVENT_BLOCKS = 20_000
_MODEL = "bench"
_SEED = chain_seed(_MODEL, None, None)


def run() -> dict[str, float]:
    """Return medians by name; the unit is the name's ending. All but the warm start is CPU time of one core."""
    rng = random.Random(7)
    prompt = array("I", (rng.randrange(150_000) for _ in range(_PROMPT_TOKENS)))
    as_list = prompt.tolist()
    return {
        "hash_64k_us": _median_us(lambda: hash_blocks(prompt, _SEED)),
        "hash_64k_from_list_us": _median_us(lambda: hash_blocks(as_list, _SEED)),
        "lookup_4096_blocks_64_instances_us": _measure_lookup(prompt, rng),
        "ingest_blocks_per_s": _measure_ingest(rng),
        "index_warm_1m_blocks_s": asyncio.run(_measure_warm_start(rng)),
    }


def _median_us(work: Callable[[], object], rounds: int = 50) -> float:
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return median(times) * 1e6


def _measure_lookup(prompt: "array[int]", rng: random.Random) -> float:
    """Walk a 4,096-block prompt over 64 instances that hold between none and all of it, among 16,000 other blocks."""
    mirror = Mirror(time.monotonic, lambda: None)
    keys = hash_blocks(prompt, _SEED)
    for number in range(_INSTANCES):
        spec = CacheSpec(f"i{number}", _MODEL, BLOCK_TOKENS, (EventSource("tcp://127.0.0.1:1"),))
        mirror.admit(spec)
        others = [rng.getrandbits(64) for _ in range(16_000)]
        mirror.apply(spec.id, 0, CacheDelta(held=keys[: rng.randrange(len(keys))] + others))
        mirror.set_known(spec.id, True)
    return _median_us(lambda: mirror.hits(_MODEL, keys, len(prompt)))


def _measure_ingest(rng: random.Random) -> float:
    """Decode, chain and mirror batches of one event with 8 blocks each; blocks per second of one core."""
    mirror = Mirror(time.monotonic, lambda: None)
    mirror.admit(CacheSpec("i0", _MODEL, BLOCK_TOKENS, (EventSource("tcp://127.0.0.1:1"),)))
    residency = Residency(lambda lora, salt: _SEED, Counter())
    payloads = []
    for first in range(0, _EVENT_BLOCKS, 8):
        tokens = [rng.randrange(150_000) for _ in range(8 * BLOCK_TOKENS)]
        payloads.append(
            encode_batch([stored(range(first, first + 8), tokens, None if first % 512 == 0 else first - 1)])
        )
    begin = time.thread_time()
    for payload in payloads:
        residency.apply(decode_batch(payload))
        for change in residency.drain():
            mirror.apply("i0", 0, change.delta)
    return _EVENT_BLOCKS / (time.thread_time() - begin)


async def _measure_warm_start(rng: random.Random) -> float:
    """Time from the construction of an index until its mirror holds the million blocks that Redis has."""
    specs = [CacheSpec(f"i{number}", _MODEL, BLOCK_TOKENS, (EventSource("tcp://127.0.0.1:1"),)) for number in range(8)]
    share = _WARM_BLOCKS // len(specs)
    async with run_valkey() as url, SharedRedis(url) as redis:
        store = ModelStore(redis.client("writer", 5.0), "bench", _MODEL, StoreLimits(lease_s=600.0))
        for spec in specs:
            await store.hold(spec, "writer")
            gen = await store.open(spec, "writer")
            assert gen is not None
            await store.publish(
                spec, "writer", gen, 0, Change(CacheDelta(held=[rng.getrandbits(64) for _ in range(share)]))
            )
            await store.set_known(spec, "writer", gen, True)
        changed = asyncio.Event()
        begin = time.perf_counter()
        index = RedisIndex(redis, prefix="bench", times=IngestTimes(), on_change=changed.set)
        for spec in specs:
            index.add_instance(spec)
        await index.start()
        while not all(instance.known for instance in index.stats().instances.values()):
            changed.clear()
            await changed.wait()
        taken = time.perf_counter() - begin
        held = sum(instance.blocks for instance in index.stats().instances.values())
        assert held == share * len(specs)
        await index.aclose()
        return taken


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:40} {value:14.1f}")
