"""KV through LMCache and a real Valkey server."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.storage_backend.connector.redis_connector import RedisClusterConnector, RedisConnector

from backends.engines.reference.blocks import store_salt
from backends.engines.reference.kv_store import RETRY_AFTER_S, KvStore, StoreFailed
from backends.engines.reference.model import ModelRunner, read_shape
from backends.kv.bridge.client import BridgePath
from backends.types import TransferRequest
from tests.backends.kv.bridge.commands import run_command
from tests.cluster import run_store_cluster
from tests.valkey import run_valkey

# LMCache makes loggers whenever it imports another of its modules.
pytestmark = pytest.mark.filterwarnings("ignore:.LoggingHandler. in:DeprecationWarning")

BLOCKS, BLOCK, CHUNK = 64, 16, 32
TOKENS = [value % 300 for value in range(200)]
HERE, THERE = list(range(3, 16)), list(range(40, 53))


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def valkey_url() -> Iterator[str]:
    """A server for this module, in a thread of its own."""
    stop: asyncio.Event
    loop = asyncio.new_event_loop()
    started: asyncio.Future[str] = loop.create_future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with run_valkey() as url:
            started.set_result(url)
            await stop.wait()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lambda: loop.run_until_complete(serve()))
        try:
            yield asyncio.run_coroutine_threadsafe(asyncio.wait_for(started, 10), loop).result(15)
        finally:
            loop.call_soon_threadsafe(stop.set)
            running.result(15)
            loop.close()


@pytest.fixture(scope="module")
def runners(llama: Path) -> tuple[ModelRunner, ModelRunner]:
    """Two engines' models; the first one's pool holds random KV."""
    shape = read_shape(llama, "float32")
    first, second = (ModelRunner(llama, shape, BLOCKS, BLOCK) for _ in range(2))
    slots = list(range(BLOCKS * BLOCK))
    first.write_kv(slots, torch.randn(2, shape.layers, len(slots), shape.kv_heads * shape.head_dim))
    return first, second


@pytest.fixture(scope="module")
def stores(valkey_url: str, runners: tuple[ModelRunner, ModelRunner]) -> Iterator[tuple[KvStore, KvStore]]:
    """Two engines' stores over one server."""
    made = [
        KvStore(runner, valkey_url, "demo", instance_id=f"test-{index}", chunk_tokens=CHUNK)
        for index, runner in enumerate(runners)
    ]
    yield made[0], made[1]
    for store in made:
        store.close()


@pytest.fixture
def database(valkey_url: str) -> Iterator[redis.Redis]:
    """The server, emptied."""
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        yield client


def kv(runner: ModelRunner, blocks: list[int], start: int, end: int) -> torch.Tensor:
    """KV of some tokens."""
    return runner.read_kv(runner.slots(blocks, start, end))


def never() -> bool:
    """Not cancelled."""
    return False


@pytest.mark.timeout(120)
def test_kv_comes_back_bit_for_bit_in_another_engine(
    stores: tuple[KvStore, KvStore], runners: tuple[ModelRunner, ModelRunner], database: redis.Redis
) -> None:
    """Full chunks only; what the second engine has already is not touched."""
    first, second = stores
    first.store(TOKENS, None, 0, HERE)
    assert second.present(TOKENS, None) == 192
    runners[1].write_kv(list(range(BLOCKS * BLOCK)), torch.zeros(2, 2, BLOCKS * BLOCK, 32))
    assert second.fetch(TOKENS[:192], None, 48, THERE, never) == 192
    assert torch.equal(kv(runners[0], HERE, 48, 192), kv(runners[1], THERE, 48, 192))
    assert not kv(runners[1], THERE, 0, 48).any()


def test_entries_are_spelt_as_documented(stores: tuple[KvStore, KvStore], database: redis.Redis) -> None:
    """Keys, hash chain, salt and the 28 bytes of metadata, pinned: the KV bridge computes the same."""
    stores[0].store(list(range(64)), "tenant-a", 0, HERE)
    hashes = [0]
    for start in (0, 32):
        hashes.append(hash((hashes[-1], tuple(range(start, start + 32)), ())))
    salt = "salt%80a707af7dc77ee1228f9127180f3964"
    keys = {f"demo@1@0@{value:x}@float@{salt}{part}" for value in hashes[1:] for part in ("kv_bytes", "metadata")}
    stored = database.keys()
    assert isinstance(stored, list)
    assert {key.decode() if isinstance(key, bytes) else key for key in stored} == keys
    metadata, values = (database.get(f"demo@1@0@{hashes[1]:x}@float@{salt}{p}") for p in ("metadata", "kv_bytes"))
    assert isinstance(metadata, bytes) and isinstance(values, bytes)
    assert struct.unpack("<7i", metadata) == (len(values), 1, 4, 2, 2, 32, 32)
    assert len(values) == 2 * 2 * 32 * 32 * 4


def test_salts_are_kept_apart(stores: tuple[KvStore, KvStore], database: redis.Redis) -> None:
    """Equal tokens under another salt, or without one, are not found."""
    stores[0].store(TOKENS, "a", 0, HERE)
    assert [stores[1].present(TOKENS, salt) for salt in ("a", "b", None)] == [192, 0, 0]


@pytest.mark.parametrize("damage", ["metadata gone", "value gone", "value cut", "metadata of another shape"])
def test_a_damaged_chunk_ends_the_prefix(
    stores: tuple[KvStore, KvStore], runners: tuple[ModelRunner, ModelRunner], database: redis.Redis, damage: str
) -> None:
    """What comes before it is taken, nothing after it."""
    stores[0].store(TOKENS, None, 0, HERE)
    value = 0
    for start in (0, 32, 64):
        value = hash((value, tuple(TOKENS[start : start + 32]), ()))
    key = f"demo@1@0@{value:x}@float"
    match damage:
        case "metadata gone":
            database.delete(key + "metadata")
        case "value gone":
            database.delete(key + "kv_bytes")
        case "value cut":
            database.set(key + "kv_bytes", b"short")
        case _:
            database.set(key + "metadata", struct.pack("<7i", 8192, 1, 4, 2, 2, 64, 16))
    assert stores[1].fetch(TOKENS[:192], None, 0, THERE, never) == 64
    assert torch.equal(kv(runners[0], HERE, 0, 64), kv(runners[1], THERE, 0, 64))


def test_a_cancelled_fetch_brings_nothing_more(stores: tuple[KvStore, KvStore], database: redis.Redis) -> None:
    """It is asked before each slice."""
    stores[0].store(TOKENS, None, 0, HERE)
    assert stores[1].fetch(TOKENS[:192], None, 0, THERE, lambda: True) == 0


@pytest.mark.slow
async def test_lmcaches_own_redis_connector_reads_and_writes_the_same_entries(
    stores: tuple[KvStore, KvStore],
    runners: tuple[ModelRunner, ModelRunner],
    database: redis.Redis,
    valkey_url: str,
) -> None:
    """Engines with stock LMCache share a store with ours, both ways."""
    await asyncio.to_thread(stores[0].store, TOKENS, None, 0, HERE)
    engine = LMCacheEngineBuilder.get("test-0")
    ours = CacheEngineKey("demo", 1, 0, hash((0, tuple(TOKENS[:32]), ())), torch.float32, {})
    salted = CacheEngineKey("demo", 1, 0, ours.chunk_hash, torch.float32, {"lmcache.tag.salt": store_salt("x")})
    stock = RedisConnector(valkey_url, asyncio.get_running_loop(), engine.storage_manager.local_cpu_backend)
    try:
        value = await stock.get(ours)
        assert torch.equal(value.tensor, kv(runners[0], HERE, 0, 32))
        await stock.put(salted, value)
    finally:
        await stock.pq_executor.shutdown_async(wait=False)
        await stock.connection.aclose()
    fetched = await asyncio.to_thread(stores[1].fetch, TOKENS[:32], "x", 0, THERE, never)
    assert fetched == 32
    assert torch.equal(kv(runners[0], HERE, 0, 32), kv(runners[1], THERE, 0, 32))


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_what_lmcache_writes_to_a_cluster_crosses_to_another(
    stores: tuple[KvStore, KvStore], runners: tuple[ModelRunner, ModelRunner], valkey_url: str
) -> None:
    """LMCache's own cluster connector finds in the second cluster what it has stored in the first, chunk by chunk."""
    await asyncio.to_thread(stores[0].store, TOKENS, None, 0, HERE)
    backend = LMCacheEngineBuilder.get("test-0").storage_manager.local_cpu_backend
    loop = asyncio.get_running_loop()
    alone = RedisConnector(valkey_url, loop, backend)
    async with run_store_cluster() as first, run_store_cluster() as second:
        clusters = [
            RedisClusterConnector([("127.0.0.1", port) for port in one.ports], "", "", loop, backend)
            for one in (first, second)
        ]
        keys, chained = [], 0
        for start in range(0, 192, CHUNK):
            chained = hash((chained, tuple(TOKENS[start : start + CHUNK]), ()))
            keys.append(CacheEngineKey("demo", 1, 0, chained, torch.float32, {}))
        try:
            for key in keys:
                await clusters[0].put(key, await alone.get(key))
            arguments = ["--source", first.url, "--dest", second.url]
            async with run_command("backends.kv.bridge.command", *arguments) as running:
                path = BridgePath(running.url)
                wanted = TransferRequest("t", "lmcache", "demo", TOKENS, CHUNK)
                async for progress in path.transfer(wanted):
                    last = progress
                await path.aclose()
            assert (last.state, last.chunks_done) == ("complete", len(keys))
            for number, key in enumerate(keys):
                value = await clusters[1].get(key)
                assert torch.equal(value.tensor, kv(runners[0], HERE, number * CHUNK, (number + 1) * CHUNK))
            assert sum(count > 0 for count in await second.sizes()) >= 2
        finally:
            for connector in (alone, *clusters):
                await connector.pq_executor.shutdown_async(wait=False)
            await alone.connection.aclose()
            for connector in clusters:
                await connector.cluster.aclose()


@pytest.mark.timeout(60)
def test_a_dead_or_stalled_store_costs_bounded_time_and_is_left_alone_for_a_while(
    runners: tuple[ModelRunner, ModelRunner],
) -> None:
    """Lookups and fetches find nothing, stores raise; after a while it is tried again."""
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        store = KvStore(
            runners[0], url, "demo", instance_id="test-down", chunk_tokens=CHUNK, timeout_s=0.2, clock=clock
        )
        try:
            assert store.fetch(TOKENS[:192], None, 0, THERE, never) == 0
            assert (store.failures, store.available) == (1, False)
            assert store.present(TOKENS, None) == 0
            with pytest.raises(StoreFailed, match="not available"):
                store.store(TOKENS, None, 0, HERE)
            assert store.failures == 1
            clock.now_s += RETRY_AFTER_S
            silent.close()
            with pytest.raises(StoreFailed):
                store.store(TOKENS, None, 0, HERE)
            assert store.failures == 2
        finally:
            store.close()
