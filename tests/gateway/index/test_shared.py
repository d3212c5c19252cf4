"""The index over Redis: the common behaviour on a real server, and what several processes share."""

import asyncio
import os
import shutil
import signal
import sys
from array import array
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import redis.asyncio

from backends.kv.subscriber import EventSource
from backends.transport.valkey import EmbeddedValkey
from gateway.index.engine_blocks import Change, EventMark
from gateway.index.hashing import chain_seed, hash_blocks
from gateway.index.mirror import CacheDelta
from gateway.index.shared import RedisIndex
from gateway.index.store import ModelStore, StoreLimits
from gateway.index.types import CacheHit, CacheSpec
from gateway.redis.client import SharedRedis
from tests.conformance.index_suite import HASHES, MODEL, PROMPT, TIMES, Changes, Clock, IndexSuite, Rig
from tests.gateway.index.publisher import Publisher, removed, run_publisher, stored

LIMITS = StoreLimits(lease_s=0.6)
REDIS = shutil.which("redis-server")
LONG_LEASE = StoreLimits(lease_s=60.0)
Rigs = Callable[[], Awaitable[Rig]]

pytestmark = pytest.mark.slow


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.skipif(not REDIS, reason="no redis-server"))])
async def server(request: pytest.FixtureRequest) -> AsyncGenerator[EmbeddedValkey, None]:
    """Run a server: Valkey, and Redis where it is installed."""
    async with EmbeddedValkey(binary=REDIS if request.param == "redis" else None) as valkey:
        yield valkey


@pytest.fixture
async def rigs(server: EmbeddedValkey) -> AsyncGenerator[Rigs, None]:
    """Start indexes over the same state, each as another gateway process would."""
    async with AsyncExitStack() as stack:

        async def start() -> Rig:
            changes, clock = Changes(), Clock()
            shared = await stack.enter_async_context(SharedRedis(server.url))
            index = RedisIndex(
                shared,
                key=b"secret",
                predicted_ttl_s=100.0,
                times=TIMES,
                limits=LIMITS,
                now=clock,
                on_change=changes,
            )
            rig = Rig(index, changes, clock)
            stack.push_async_callback(index.aclose)
            await stack.enter_async_context(rig.resources)
            await index.start()
            return rig

        yield start


@pytest.fixture
async def client(server: EmbeddedValkey) -> AsyncGenerator["redis.asyncio.Redis", None]:
    """Talk to the server directly."""
    async with redis.asyncio.Redis.from_url(server.url) as connection:
        yield connection


@pytest.fixture
async def shared(server: EmbeddedValkey) -> AsyncGenerator[SharedRedis, None]:
    """One more process's way to the server."""
    async with SharedRedis(server.url) as opened:
        yield opened


def open_store(shared: SharedRedis, limits: StoreLimits) -> ModelStore:
    """Return a hand on the state of the model."""
    return ModelStore(shared.client("index", limits.reply_s), "pdd", MODEL, limits)


async def follow(rig: Rig, publisher: Publisher) -> None:
    """Track the publisher's engine in one more index."""
    rig.index.add_instance(CacheSpec("md1", MODEL, 16, (publisher.source,)))


class TestRedisIndex(IndexSuite):
    """The common behaviour."""

    @pytest.fixture
    async def rig(self, rigs: Rigs) -> Rig:
        """Start an index."""
        return await rigs()


async def test_processes_converge(rigs: Rigs) -> None:
    """What one process ingests the others show within a second, also those that come later."""
    first, second = await rigs(), await rigs()
    engine = await first.publisher()
    await follow(second, engine)
    await engine.publish(stored(HASHES, PROMPT[:160]))
    async with asyncio.timeout(1):
        await first.until_tokens(160)
        await second.until_tokens(160)
    await engine.publish(removed(HASHES[5:]))
    async with asyncio.timeout(1):
        await second.until_tokens(80)
    third = await rigs()
    await follow(third, engine)
    async with asyncio.timeout(1):
        await third.until_tokens(80)
    taken = sum(rig.count("leases_taken") for rig in (first, second, third))
    assert taken == 1


async def test_predictions_are_shared(rigs: Rigs) -> None:
    """What one process routed to an engine without events the others predict too, and a late one reads it."""
    first, second = await rigs(), await rigs()
    spec = CacheSpec("p1", MODEL, 16)
    for rig in (first, second):
        rig.index.add_instance(spec)
    first.index.note_routed("p1", MODEL, PROMPT)
    await second.until_tokens(160, "p1")
    third = await rigs()
    third.index.add_instance(spec)
    await third.until_tokens(160, "p1")
    third.clock.now_s += third.predicted_ttl_s + 1
    assert third.hit("p1").tokens == 0


async def test_predictions_of_ranks_are_shared(rigs: Rigs) -> None:
    """What one process routed to a rank the others predict for that rank, and a late one reads it so."""
    first, second = await rigs(), await rigs()
    spec = CacheSpec("p1", MODEL, 16, dp_size=2)
    for rig in (first, second):
        rig.index.add_instance(spec)
    first.index.note_routed("p1", MODEL, PROMPT, rank=1)
    first.index.note_routed("p1", MODEL, PROMPT[:32], rank=0)
    third = await rigs()
    third.index.add_instance(spec)
    for rig in (first, second, third):
        await rig.until_ranks(32, 160, instance_id="p1")


async def test_ranks_are_shared_and_resumed(rigs: Rigs) -> None:
    """Other processes see each rank's blocks, and the next to follow the engine goes on with both ranks."""
    first, second = await rigs(), await rigs()
    ranks = [await first.resources.enter_async_context(run_publisher(rank=rank)) for rank in range(2)]
    spec = CacheSpec("md1", MODEL, 16, tuple(rank.source for rank in ranks), dp_size=2)
    first.index.add_instance(spec)
    for rank in ranks:
        await rank.wait_for_subscriber()
    second.index.add_instance(spec)
    await ranks[0].publish(stored(HASHES[:2], PROMPT[:32]))
    await ranks[1].publish(stored(HASHES[:4], PROMPT[:64]))
    for rig in (first, second):
        await rig.until_tokens(64)
        await rig.until_ranks(32, 64)
    await first.index.aclose()
    await ranks[1].publish(removed(HASHES[:4]))
    await second.until_ranks(32, 0)
    await second.until_tokens(32)
    assert second.count("resumed") == 1


async def test_lease_moves_on_when_a_process_stops(rigs: Rigs) -> None:
    """A process that stops gives its lease up, and the next one goes on without losing what was known."""
    first, second = await rigs(), await rigs()
    engine = await first.publisher()
    await engine.publish(stored(HASHES[:4], PROMPT[:64]))
    await first.until_tokens(64)
    await follow(second, engine)
    await second.until_tokens(64)
    await first.index.aclose()
    await engine.wait_for_subscriber()
    await engine.publish(stored(HASHES[4:], PROMPT[64:160], parent=4), removed([10]))
    await second.until_tokens(144)
    assert second.count("resumed") == 1
    assert second.count("losses") == 0


@pytest.mark.parametrize("buffer_steps", [1000, 1])
async def test_killed_ingester_is_taken_over(rigs: Rigs, server: EmbeddedValkey, buffer_steps: int) -> None:
    """When the process that ingests is killed another goes on from its records, with what came in between."""
    publisher = run_publisher(buffer_steps=buffer_steps)
    async with publisher as engine:
        await engine.publish(stored(HASHES[:2], PROMPT[:32]), lost=True)
        source = engine.source
        module = "tests.gateway.index.lone_ingester"
        arguments = (server.url, "pdd", source.endpoint, source.replay_endpoint or "")
        victim = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, stdout=PIPE)
        assert victim.stdout is not None
        assert await victim.stdout.readline() == b"known\n"
        await engine.wait_for_subscriber()
        rig = await rigs()
        await follow(rig, engine)
        await rig.changes.until(lambda: rig.index.stats().instances["md1"].blocks == 2)
        victim.kill()
        await victim.wait()
        await engine.publish(stored([3], PROMPT[32:48], parent=2), lost=True)
        if buffer_steps == 1:
            await engine.publish(stored([4], PROMPT[48:64], parent=3), lost=True)
        await rig.changes.until(lambda: rig.count("leases_taken") == 1 and rig.count("replayed_frames") > 0)
        await engine.wait_for_subscriber()
        await engine.publish(stored([5], range(16)))
        await rig.changes.until(lambda: rig.hit(prompt=range(17)).at_least_tokens == 16)
        if buffer_steps == 1:
            assert rig.hit().tokens is None


async def test_flush_heals(rigs: Rigs, client: "redis.asyncio.Redis") -> None:
    """After FLUSHALL the mirrors go on with what they know, and Redis is filled again."""
    first = await rigs()
    engine = await first.publisher()
    await engine.publish(stored(HASHES, PROMPT[:160]))
    await first.until_tokens(160)
    await client.flushall()
    assert first.hit().tokens == 160
    await first.changes.until(lambda: first.count("republished") == 1 and first.hit().tokens == 160)
    second = await rigs()
    await follow(second, engine)
    await second.until_tokens(160)


async def test_redis_restart_heals() -> None:
    """Redis may be away at the start and go away later: the index works from what it has, and shares it again."""
    async with EmbeddedValkey() as probe:
        port = probe.port
    changes, clock = Changes(), Clock()
    shared = SharedRedis(f"redis://127.0.0.1:{port}")
    index = RedisIndex(shared, times=TIMES, limits=LIMITS, now=clock, on_change=changes)
    rig = Rig(index, changes, clock)
    async with shared, rig.resources, run_publisher() as engine:
        await index.start()
        await follow(rig, engine)
        assert rig.hit().tokens is None
        assert index.stats().redis_up is False
        async with EmbeddedValkey(port=port):
            await engine.wait_for_subscriber()
            await engine.publish(stored(HASHES[:2], PROMPT[:32]))
            await rig.until_tokens(32)
            assert index.stats().redis_up is True
        await engine.publish(stored(HASHES[2:4], PROMPT[32:64], parent=2))
        await rig.until_tokens(64)
        async with EmbeddedValkey(port=port):
            await rig.changes.until(lambda: rig.count("republished") == 1 and rig.hit().tokens == 64)
            await engine.publish(removed([4]))
            await rig.until_tokens(48)
        await index.aclose()


async def test_evicted_set_is_written_again(rigs: Rigs, client: "redis.asyncio.Redis") -> None:
    """When Redis evicts an instance's blocks the mirrors keep theirs and the holder writes them again."""
    first = await rigs()
    engine = await first.publisher()
    await engine.publish(stored(HASHES, PROMPT[:160]))
    await first.until_tokens(160)
    for times in (1, 2):
        keys = [key async for key in client.scan_iter("*:blocks:0:*")]
        assert await client.unlink(*keys) == 1
        await first.until_count("republished", times)
        await first.until_tokens(160)
        first.clock.now_s += 31
    second = await rigs()
    await follow(second, engine)
    await second.until_tokens(160)


async def test_hung_redis_stops_nothing(server: EmbeddedValkey, shared: SharedRedis) -> None:
    """While Redis accepts connections and never answers, events still reach this process's lookups."""
    changes, clock = Changes(), Clock()
    limits = StoreLimits(lease_s=0.6, reply_s=0.3)
    index = RedisIndex(shared, times=TIMES, limits=limits, now=clock, on_change=changes)
    rig = Rig(index, changes, clock)
    async with rig.resources:
        await index.start()
        engine = await rig.publisher()
        await engine.publish(stored(HASHES[:2], PROMPT[:32]))
        await rig.until_tokens(32)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await engine.publish(stored(HASHES[2:4], PROMPT[32:64], parent=2))
            await rig.until_tokens(64)
            assert rig.hit().tokens == 64
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await changes.until(lambda: rig.count("republished") >= 1 and rig.hit().tokens == 64)
        await index.aclose()


async def test_instance_that_nobody_follows_becomes_unknown(
    rigs: Rigs, client: "redis.asyncio.Redis", shared: SharedRedis
) -> None:
    """When an instance's state is gone from Redis for long, what was known of it is not trusted any more."""
    store = open_store(shared, LONG_LEASE)
    spec = CacheSpec("md1", MODEL, 16, (EventSource("tcp://127.0.0.1:1"),))
    assert await store.hold(spec, "other") == 0
    (lease,) = [key async for key in client.scan_iter("*:lease:*")]
    await client.persist(lease)
    gen = await store.open(spec, "other")
    assert gen is not None
    keys = hash_blocks(PROMPT, chain_seed(MODEL, None, None, b"secret"))
    await store.publish(spec, "other", gen, 0, Change(CacheDelta(held=keys)))
    await store.set_known(spec, "other", gen, True)
    rig = await rigs()
    rig.index.add_instance(spec)
    await rig.until_tokens(160)
    (meta,) = [key async for key in client.scan_iter("*:meta:*")]
    await client.unlink(meta)
    assert rig.hit().tokens == 160
    waiting = asyncio.ensure_future(rig.until_tokens(None))
    while not waiting.done():
        rig.clock.now_s += 6
        await asyncio.wait([waiting], timeout=0.2)
    assert rig.hit() == CacheHit(None, 0, False)


async def test_unusable_endpoint_is_counted(rigs: Rigs) -> None:
    """An endpoint that ZMQ refuses keeps its instance unknown and disturbs no other."""
    rig = await rigs()
    rig.index.add_instance(CacheSpec("bad", MODEL, 16, (EventSource("nonsense"),)))
    engine = await rig.publisher()
    await engine.publish(stored(HASHES[:1], PROMPT[:16]))
    await rig.until_tokens(16)
    await rig.changes.until(lambda: rig.count("endpoint_errors") > 0)
    assert rig.hit("bad").tokens is None


async def test_lost_stream_entries_are_made_good(rigs: Rigs, client: "redis.asyncio.Redis") -> None:
    """A process that missed entries of a trimmed stream reads the instance anew."""
    rig = await rigs()
    engine = await rig.publisher()
    await engine.publish(stored(HASHES[:2], PROMPT[:32]))
    await rig.until_tokens(32)
    (meta,) = [key async for key in client.scan_iter("*:meta:*")]
    (blocks,) = [key.replace(b":meta:", b":blocks:0:") async for key in client.scan_iter("*:meta:*")]
    async with client.pipeline(transaction=True) as pipeline:
        pipeline.hincrby(meta, "seq", 7)
        pipeline.sadd(blocks, b"\1" * 8)
        await pipeline.execute()
    await rig.changes.until(lambda: rig.index.stats().instances["md1"].blocks == 3)
    assert rig.hit().tokens == 32


async def test_redis_holds_hashes_only_and_nothing_for_ever(rigs: Rigs, client: "redis.asyncio.Redis") -> None:
    """Neither token ids nor salts are written, and each key has a time to live."""
    rig = await rigs()
    engine = await rig.publisher()
    rig.index.add_instance(CacheSpec("p1", MODEL, 16))
    rig.index.note_routed("p1", MODEL, PROMPT, salt="tenant-secret")
    await engine.publish(stored(HASHES, PROMPT[:160], extra_keys=[["tenant-secret"], *[None] * 9]))
    await rig.changes.until(lambda: rig.hit(salt="tenant-secret").tokens == 160)
    await rig.changes.until(lambda: rig.hit("p1", salt="tenant-secret").tokens == 160)
    second = await rigs()
    second.index.add_instance(CacheSpec("p1", MODEL, 16))
    await second.changes.until(lambda: second.hit("p1", salt="tenant-secret").tokens == 160)
    await client.config_set("rdbcompression", "no")  # which DUMP heeds
    needles = [b"tenant-secret", *(array(code, PROMPT[:4]).tobytes() for code in "HIQ"), b"1000"]
    keys = [key async for key in client.scan_iter("*")]
    assert len(keys) == 7
    block_key = hash_blocks(PROMPT[:16], chain_seed(MODEL, None, "tenant-secret", b"secret"))
    dumps = []
    for key in keys:
        assert await client.pttl(key) > 0
        dump = await client.dump(key)
        assert isinstance(dump, bytes)
        assert not [needle for needle in needles if needle in dump]
        dumps.append(dump)
    assert sum(array("Q", block_key).tobytes() in dump for dump in dumps) >= 3
    assert len({key.split(b"{")[1].split(b"}")[0] for key in keys}) == 1


async def test_restarts_do_not_pile_up(rigs: Rigs, client: "redis.asyncio.Redis") -> None:
    """What was kept of an earlier engine process is dropped when the next one is announced."""
    rig = await rigs()
    engine = await rig.publisher()
    for number in range(5):
        engine.restart()
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, (engine.source,), boot_id=f"boot{number}"))
        await engine.wait_for_subscriber()
        await engine.publish(stored(HASHES[: number + 1], PROMPT[: 16 * number + 16]))
        await rig.until_tokens(16 * number + 16)
    await rig.index.aclose()
    names = {key.split(b":")[-1] async for key in client.scan_iter("*:md1@*")}
    assert names == {b"md1@boot4"}


async def test_zombie_cannot_write(shared: SharedRedis) -> None:
    """Who lost the lease, or works on an earlier generation, changes nothing."""
    store = open_store(shared, LONG_LEASE)
    spec = CacheSpec("md1", MODEL, 16, (EventSource("tcp://127.0.0.1:1"),))
    change = Change(CacheDelta(held=[1]))
    assert await store.hold(spec, "one") == 0
    first = await store.open(spec, "one")
    assert first
    assert await store.hold(spec, "two") is None
    assert await store.open(spec, "two") is None
    assert not await store.publish(spec, "two", first, 0, change)
    assert await store.publish(spec, "one", first, 0, change)
    second = await store.open(spec, "one")
    assert second is not None
    assert second > first
    assert not await store.publish(spec, "one", first, 0, change)
    assert not await store.set_known(spec, "one", first, True)
    await store.release(spec, "two", drop=True)
    assert await store.hold(spec, "one") == second
    await store.release(spec, "one", drop=True)
    assert await store.hold(spec, "two") == 0
    assert await store.states([spec]) == [None]


async def test_large_changes_are_written_in_parts(shared: SharedRedis) -> None:
    """A change of more blocks than one entry holds arrives whole."""
    limits = StoreLimits(lease_s=60.0, delta_blocks=3)
    store = open_store(shared, limits)
    spec = CacheSpec("md1", MODEL, 16, (EventSource("tcp://127.0.0.1:1"),))
    assert await store.hold(spec, "one") == 0
    gen = await store.open(spec, "one")
    assert gen is not None
    await store.publish(spec, "one", gen, 0, Change(CacheDelta(held=[90, 91, 92, 93]), dropped=[b"gone"]))
    saved = {b"%d" % number: b"record" for number in range(8)}
    delta = CacheDelta(True, list(range(1, 9)), list(range(21, 29)))
    await store.publish(spec, "one", gen, 0, Change(delta, saved, [b"a", b"b", b"c", b"7"], EventMark(5, 6)))
    assert await store.scan(spec, 0) == set(range(1, 9))
    records = [record async for page in store.records(spec, 0) for record in page]
    assert {name for name, _ in records} == saved.keys() - {b"7"}
    assert await store.marks(spec) == [EventMark(5, 6)]
    tail = [entry async for _, entry in store.tail("0-0", 0.0, 1000)]
    assert [entry.seq for entry in tail] == list(range(1, len(tail) + 1))
    assert max(len(entry.delta.held) for entry in tail if entry.seq > 3) == 3
