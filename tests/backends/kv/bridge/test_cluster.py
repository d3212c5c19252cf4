"""Stores that are Valkey Clusters: chunks lie on several servers, and slots move while KV crosses."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import redis.asyncio
from redis.crc import key_slot

from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.cluster import Hint, read_hint, read_nodes
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.types import TransferRequest
from tests.backends.kv.bridge.chunks import CHUNK_BYTES, CHUNK_TOKENS, METADATA, prompt
from tests.backends.kv.bridge.commands import run_command
from tests.cluster import SLOTS, StoreCluster, command, run_store_cluster

CHUNKS = 24
PROMPT = prompt(CHUNKS)
NODES = """\
07c3 127.0.0.1:30004@31004,host-4 slave e7d1 0 1426238317239 4 connected
67ed :30002@31002 myself,master - 0 0 2 connected 5461-10922 [93->-e7d1]
e7d1 [::1]:30001@31001 master - 0 1426238316232 1 connected 0-5460 10923
"""


def test_a_clusters_words_are_read() -> None:
    """Masters have slots, one without an address is where it was asked, and slots on their way belong to neither."""
    found = list(read_nodes(NODES, "asked"))
    assert found == [
        (range(5461, 10923), ("asked", 30002)),
        (range(5461), ("::1", 30001)),
        (range(10923, 10924), ("::1", 30001)),
    ]
    with pytest.raises(ValueError, match="cannot be read"):
        list(read_nodes("not a list\n", "asked"))


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("MOVED 3999 127.0.0.1:6381", Hint("127.0.0.1", 6381, is_asking=False)),
        ("ASK 3999 [::1]:6381", Hint("::1", 6381, is_asking=True)),
        ("MOVED 3999 :6381", Hint("", 6381, is_asking=False)),
        ("MOVED 3999 nowhere", None),
        ("CLUSTERDOWN The cluster is down", None),
        ("ERR unknown command", None),
    ],
)
def test_hints_are_read(error: str, hint: Hint | None) -> None:
    """Only the two that say where a key is are hints."""
    assert read_hint(error) == hint


@dataclass
class Bridged:
    """Two clusters with a bridge between them."""

    source: StoreCluster
    dest: StoreCluster
    path: BridgePath

    async def store(self, dialect: str, keys: list[str]) -> dict[bytes, bytes]:
        """Have redis-py's cluster client, which LMCache uses, write chunks to the source."""
        entries = {}
        for number, key in enumerate(keys):
            value = number.to_bytes() * CHUNK_BYTES
            entries[DIALECTS[dialect].value_key(key)] = value
            guard_key = DIALECTS[dialect].guard_key(key)
            if guard_key is not None:
                entries[guard_key] = METADATA
        async with self.source.client() as client:
            for name, value in entries.items():
                await client.set(name, value)
        return entries

    async def moved(self, request: TransferRequest) -> tuple[str, int, int]:
        """Run a transfer to its end: its state, its chunks that were there, and its bytes."""
        async for progress in self.path.transfer(request):
            last = progress
        return last.state, last.chunks_present, last.wan_bytes


@asynccontextmanager
async def bridged() -> AsyncGenerator[Bridged, None]:
    """Run all of it until the block ends."""
    async with run_store_cluster() as source, run_store_cluster() as dest:
        arguments = ["--source", source.url, "--dest", dest.url, "--silence-s=2"]
        async with run_command("backends.kv.bridge.command", *arguments) as running:
            path = BridgePath(running.url)
            try:
                yield Bridged(source, dest, path)
            finally:
                await path.aclose()


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_kv_crosses_between_clusters() -> None:
    """Chunks of both dialects cross whole, whichever servers have them; they are seen at once, and found by name."""
    async with bridged() as regions:
        for dialect in DIALECTS:
            wanted = TransferRequest("t", dialect, "demo", PROMPT, CHUNK_TOKENS)
            keys = DIALECTS[dialect].chunk_keys(KeyRequest("demo", PROMPT, CHUNK_TOKENS))
            entries = await regions.store(dialect, keys)
            state, present, wan_bytes = await regions.moved(wanted)
            assert (state, present, wan_bytes) == ("complete", 0, CHUNKS * CHUNK_BYTES)
            async with regions.dest.client() as client:
                assert {name: await client.get(name) for name in entries} == entries
            assert await regions.moved(wanted) == ("complete", CHUNKS, 0)
        assert all(count > 0 for count in await regions.source.sizes() + await regions.dest.sizes())
        assert sum(await regions.dest.sizes()) == sum(await regions.source.sizes())
        found = await regions.path.find_keys("dest", ["demo@"])
        assert len(found) == sum(await regions.dest.sizes())
        assert (await regions.path.link()).up


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_slots_move_while_kv_crosses() -> None:
    """A key whose slot has moved, and one whose slot is about to, are read and written where they are."""
    async with bridged() as regions:
        keys = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", PROMPT, CHUNK_TOKENS))
        await regions.store("lmcache-mp", keys[:1])
        first = TransferRequest("first", "lmcache-mp", "demo", PROMPT[:CHUNK_TOKENS], CHUNK_TOKENS)
        assert (await regions.moved(first))[0] == "complete"  # so the bridge knows both clusters
        entries = await regions.store("lmcache-mp", keys)
        for number, key in enumerate(keys[1:5]):
            for cluster in (regions.source, regions.dest):
                await move_slot(cluster, key, is_over=number % 2 == 0)
        state, _, wan_bytes = await regions.moved(TransferRequest("t", "lmcache-mp", "demo", PROMPT, CHUNK_TOKENS))
        assert (state, wan_bytes) == ("complete", (CHUNKS - 1) * CHUNK_BYTES)
        assert sum(await regions.dest.sizes()) == len(entries)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_lines_that_break_are_opened_again() -> None:
    """All connections to both clusters are cut: the transfer goes on over new ones."""
    async with bridged() as regions:
        keys = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", PROMPT, CHUNK_TOKENS))
        await regions.store("lmcache-mp", keys[:12])
        transfer = regions.path.transfer(TransferRequest("t", "lmcache-mp", "demo", PROMPT, CHUNK_TOKENS))
        async for progress in transfer:
            if progress.chunks_done == 12:
                break
        for cluster in (regions.source, regions.dest):
            for number in range(3):
                async with cluster.node(number) as client:
                    await client.client_kill_filter(_type="normal", skipme=True)
        await regions.store("lmcache-mp", keys)
        async for progress in transfer:
            last = progress
        assert (last.state, last.chunks_done) == ("complete", CHUNKS)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_a_cluster_that_is_down_is_waited_for() -> None:
    """While no server has some of the slots nothing is given up; once one has them the transfer goes on."""
    async with bridged() as regions:
        keys = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", PROMPT, CHUNK_TOKENS))
        first = TransferRequest("first", "lmcache-mp", "demo", PROMPT[:CHUNK_TOKENS], CHUNK_TOKENS)
        await regions.store("lmcache-mp", keys[:1])
        assert (await regions.moved(first))[0] == "complete"
        async with regions.source.node(0) as client:
            await command(client, "DELSLOTSRANGE", 0, SLOTS // 3 - 1)
            transfer = regions.path.transfer(TransferRequest("t", "lmcache-mp", "demo", PROMPT, CHUNK_TOKENS))
            assert (await anext(transfer)).state == "open"
            await command(client, "ADDSLOTSRANGE", 0, SLOTS // 3 - 1)
        await regions.source.until_whole()
        await regions.store("lmcache-mp", keys)
        async for progress in transfer:
            last = progress
        assert (last.state, last.chunks_done) == ("complete", CHUNKS)


async def move_slot(cluster: StoreCluster, key: str, is_over: bool) -> None:
    """Move a key's slot and what it holds from its server to another; or stop when the keys have moved."""
    slot = key_slot(key.encode())
    holder = next(number for number in range(3) if slot < (number + 1) * SLOTS // 3)
    target = (holder + 1) % 3
    async with cluster.node(holder) as old, cluster.node(target) as new:
        ids = [await name_of(old), await name_of(new)]
        await command(new, "SETSLOT", slot, "IMPORTING", ids[0])
        await command(old, "SETSLOT", slot, "MIGRATING", ids[1])
        held = await command(old, "GETKEYSINSLOT", slot, 100)
        if held:
            await old.migrate("127.0.0.1", cluster.ports[target], held, 0, 5000)
        for client in (new, old) if is_over else ():
            await command(client, "SETSLOT", slot, "NODE", ids[1])


async def name_of(client: redis.asyncio.Redis) -> str:
    """A server's name within its cluster."""
    name = await command(client, "MYID")
    return name.decode() if isinstance(name, bytes) else str(name)
