"""Tests of the gateway's side of a bridge, with the bridge as a process of its own behind a real link."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec
import pytest
import redis.asyncio

from backends.errors import BackendError, KvWrongSize, TransferFailed
from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.types import TransferLine
from backends.transport.wan.link import WanLink
from backends.transport.wan.route import WanRoute
from backends.types import KvShape, TransferProgress, TransferRequest
from tests.backends.kv.bridge.chunks import CHUNK_BYTES, CHUNK_TOKENS, chunks_of, prompt, store
from tests.backends.kv.bridge.commands import Running, run_command, through
from tests.valkey import run_valkey

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

PATIENCE_S = 20


@dataclass(frozen=True, slots=True)
class Bridged:
    """Two stores, the link between them, and how to start a bridge over it."""

    a: redis.asyncio.Redis
    wan: WanLink
    arguments: tuple[str, ...]

    def crossed_chunks(self) -> float:
        """What came over the link so far, in chunks."""
        return self.wan.stats().from_target_bytes / CHUNK_BYTES


@asynccontextmanager
async def bridged(rate_mbit: float = 40) -> AsyncGenerator[Bridged, None]:
    """Everything but the bridge."""
    async with AsyncExitStack() as stack:
        url_a, url_b = await stack.enter_async_context(run_valkey()), await stack.enter_async_context(run_valkey())
        a = await stack.enter_async_context(redis.asyncio.Redis.from_url(url_a))
        route = WanRoute("127.0.0.1", StoreAddress.parse(url_a).port)
        wan = await stack.enter_async_context(WanLink([route], rate_mbit=rate_mbit, delay_ms=5))
        arguments = ("--source", through(url_a, wan.ports[0]), "--dest", url_b, "--silence-s=0.5")
        yield Bridged(a, wan, arguments)


@asynccontextmanager
async def open_path(running: Running) -> AsyncGenerator[BridgePath, None]:
    """A path through a running bridge."""
    path = BridgePath(running.url)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield path
    finally:
        await path.aclose()


def request(count: int, seed: int = 0, transfer_id: str = "t", deadline_s: float = 60) -> TransferRequest:
    """A transfer of ``count`` chunks."""
    return TransferRequest(
        transfer_id, "lmcache", "demo", prompt(count, seed), CHUNK_TOKENS, salt=None, deadline_s=deadline_s
    )


async def read_all(path: BridgePath, wanted: TransferRequest) -> list[TransferProgress]:
    """Run a transfer to its end."""
    return [progress async for progress in path.transfer(wanted)]


async def test_a_transfer_and_the_link() -> None:
    """Progress goes from open to complete; afterwards the link's rate, round trip and bytes are known."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        await store(region.a, chunks_of(prompt(12)))
        async with open_path(running) as path:
            progress = await read_all(path, request(12))
            link = await path.link()
        assert (progress[0].state, progress[-1].state) == ("open", "complete")
        assert (progress[-1].chunks_done, progress[-1].wan_bytes) == (12, 12 * CHUNK_BYTES)
        assert link.up
        assert link.wan_bytes_total == region.wan.stats().from_target_bytes
        assert link.queued_bytes == 0
        assert 0.01 <= link.rtt_s < 0.1
        assert 0.5 * 5_000_000 < link.rate_bytes_per_s < 1.3 * 5_000_000


async def test_the_seed_of_the_engines_hashes() -> None:
    """What vLLM processes with a hash seed stored is found under their keys, and is not what others store."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        await store(region.a, chunks_of(prompt(3), hash_seed=7))
        async with open_path(running) as path:
            progress = await read_all(path, replace(request(3), hash_seed=7))
            assert (progress[-1].state, progress[-1].chunks_done) == ("complete", 3)
        async with open_path(running) as path:
            with pytest.raises(TransferFailed):
                await read_all(path, request(3, transfer_id="without", deadline_s=0.5))


@pytest.mark.parametrize(
    "wrong", [{"dialect": "lmcache-mp"}, {"model": "another"}, {"chunk_tokens": 32}, {"salt": "s"}]
)
async def test_wrong_keys_show_no_chunk(wrong: dict[str, Any]) -> None:
    """POL-102: a transfer under keys that nobody writes says that no chunk was seen; under the right ones, else."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        await store(region.a, chunks_of(prompt(4)))
        async with open_path(running) as path:
            async with aclosing(path.transfer(replace(request(4), **wrong))) as transfer:
                progress = await anext(transfer)
            assert (progress.state, progress.chunks_done, progress.first_seen) == ("open", 0, False)
            assert progress.chunks_total > 0
            right = await read_all(path, request(4, transfer_id="right"))
        assert not right[0].first_seen
        assert right[-1].first_seen and right[-1].chunks_seen == right[-1].chunks_total


async def test_closing_stops_the_traffic() -> None:
    """Closing the generator ends the transfer at the bridge and its bytes on the link within one chunk."""
    async with bridged(rate_mbit=20) as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        await store(region.a, [*chunks_of(prompt(30)), *chunks_of(prompt(1, seed=1))])
        async with open_path(running) as path:
            async with aclosing(path.transfer(request(30))) as transfer:
                async for progress in transfer:
                    if progress.chunks_done >= 3:
                        break
            before = region.crossed_chunks()
            await read_all(path, request(1, seed=1, transfer_id="u"))
            assert region.crossed_chunks() - before < 2.2


async def test_the_bridge_is_told_who_waits() -> None:
    """The class goes out with the order, and each later one while it runs; the newest one holds in the end."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        async with open_path(running) as path, httpx.AsyncClient(base_url=running.url) as client:

            async def told(priority: str) -> None:
                while [item["priority"] for item in (await client.get("/v1/transfers")).json()] != [priority]:
                    await path.link()

            path.prioritise("t/1", "later")
            async with aclosing(path.transfer(replace(request(2, transfer_id="t/1"), priority="relay"))) as transfer:
                opening = asyncio.ensure_future(anext(transfer))
                await asyncio.sleep(0)
                path.prioritise("t/1", "waiting")
                await told("waiting")
                assert (await opening).state == "open"
                path.prioritise("t/1", "waiting")
                path.prioritise("t/1", "relay")
                path.prioritise("t/1", "later")
                await told("later")
                assert (await path.link()).later_transfers == 1
                await store(region.a, chunks_of(prompt(2)))
                assert [progress async for progress in transfer][-1].state == "complete"
            path.prioritise("t/1", "relay")


async def test_a_bridge_that_cannot_be_told_keeps_its_class() -> None:
    """A bridge that hangs up on a change fails neither the transfer nor who asked for it, and the next one goes out."""
    changes: asyncio.Queue[bytes] = asyncio.Queue()
    over = asyncio.Event()

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"PATCH"):
            changes.put_nowait(await reader.readexactly(len(b'{"priority":"later"}')))
        else:
            line = msgspec.json.encode(TransferLine("open", 1, 0, 0, 0)) + b"\n"
            done = msgspec.json.encode(TransferLine("complete", 1, 1, 0, 9)) + b"\n"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(line + done) + line)
            await over.wait()
            writer.write(done)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        path = BridgePath(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(PATIENCE_S), aclosing(path.transfer(request(1))) as transfer:
            await anext(transfer)
            for priority in ("later", "relay"):
                path.prioritise("t", priority)
                assert msgspec.json.decode(await changes.get()) == {"priority": priority}
            over.set()
            assert (await anext(transfer)).state == "complete"
        await path.aclose()


async def test_a_killed_bridge_fails_and_its_successor_resumes() -> None:
    """A bridge that dies raises TransferFailed; the next one moves only what is missing."""
    async with bridged(rate_mbit=20) as region:
        await store(region.a, chunks_of(prompt(16)))
        done = 0
        async with run_command("backends.kv.bridge.command", *region.arguments) as running, open_path(running) as path:
            with pytest.raises(TransferFailed):
                async for progress in path.transfer(request(16)):
                    done = progress.chunks_done
                    if done >= 5 and running.process.returncode is None:
                        running.process.send_signal(signal.SIGKILL)
                        await running.process.wait()
            with pytest.raises(TransferFailed):
                await read_all(path, request(16))
            with pytest.raises(BackendError):
                await path.link()
        async with run_command("backends.kv.bridge.command", *region.arguments) as running, open_path(running) as path:
            rest = await read_all(path, request(16))
        assert rest[0].chunks_present >= done
        assert rest[-1].state == "complete"
        assert region.crossed_chunks() < 16 + 3


async def test_a_stopped_bridge_ends_its_streams() -> None:
    """SIGTERM fails open transfers at once and the process ends with status 0."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        async with open_path(running) as path:
            with pytest.raises(TransferFailed, match="stopping"):
                async for _ in path.transfer(request(4)):
                    running.process.terminate()
            assert await running.process.wait() == 0


async def test_failures_are_transfer_failures() -> None:
    """A repeated id, a deadline, a refusal and an unknown dialect all raise TransferFailed, with the reason."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        async with open_path(running) as path:
            async with aclosing(path.transfer(request(4))) as first:
                assert (await anext(first)).state == "open"
                with pytest.raises(TransferFailed, match="in use"):
                    await read_all(path, request(4))
            with pytest.raises(TransferFailed, match="deadline"):
                await read_all(path, request(4, transfer_id="u", deadline_s=0.2))
            wrong = TransferRequest("v", "lmcache", "a@b", prompt(1), CHUNK_TOKENS)
            with pytest.raises(TransferFailed, match="model"):
                await read_all(path, wrong)
            with pytest.raises(TransferFailed, match="dialect"):
                await read_all(path, TransferRequest("w", "other", "demo", [], CHUNK_TOKENS))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nxxx\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000,
        b"garbage\r\n\r\n",
        b"",
    ],
)
async def test_a_peer_that_is_no_bridge(answer: bytes) -> None:
    """Whatever answers instead of a bridge, the caller gets TransferFailed, and a backend error for the link."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        path = BridgePath(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(TransferFailed):
            await read_all(path, request(0))
        with pytest.raises(BackendError):
            await path.link()
        with pytest.raises(BackendError):
            await path.find_keys("source", ["m"])
        await path.aclose()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--source=nonsense", "--dest=redis://127.0.0.1"),
        ("--source=redis://127.0.0.1", "--dest=redis://127.0.0.1", "--listen=nowhere"),
        ("--source=redis://127.0.0.1", "--dest=redis://127.0.0.1", "--listen=203.0.113.1:1"),
    ],
)
async def test_command_refuses_nonsense(arguments: tuple[str, ...]) -> None:
    """Arguments that mean nothing, or an address that is not ours, end the command before it listens."""
    with pytest.raises(AssertionError, match="ended before"):
        async with run_command("backends.kv.bridge.command", *arguments):
            pass


SHAPE = KvShape("packed", 2, 4, 16)
SHARD_BYTES = SHAPE.token_bytes * CHUNK_TOKENS // 2
RANKS = ("02000200", "02010201")


def of_ranks(count: int, seed: int = 0, **fields: Any) -> tuple[TransferRequest, list[str]]:
    """A transfer out of an LMCache server's store, and the keys of two ranks' shards there."""
    wanted = TransferRequest(
        "t", "lmcache-mp", "demo", prompt(count, seed), CHUNK_TOKENS, kv_shape=SHAPE, world_size=2, **fields
    )
    keys = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", wanted.token_ids, CHUNK_TOKENS, world_size=2))
    return wanted, keys


async def test_ranks_are_regrouped_on_the_way() -> None:
    """Two ranks' shards arrive as one, head by head, and count as what crossed; the next transfer finds them there."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        wanted, keys = of_ranks(3, dest_world_size=1)
        for number, key in enumerate(keys):
            await region.a.set(key, bytes([number]) * SHARD_BYTES)
        path = BridgePath(running.url)
        first, second = await read_all(path, wanted), await read_all(path, replace(wanted, transfer_id="u"))
        await path.aclose()
        assert (first[-1].state, first[-1].wan_bytes) == ("complete", 6 * SHARD_BYTES)
        assert (second[-1].chunks_present, second[-1].wan_bytes) == (3, 0)
        async with redis.asyncio.Redis.from_url(region.arguments[3]) as b:
            for number, key in enumerate(keys[::2]):
                head = 2 * SHAPE.head_bytes
                row = bytes([2 * number]) * 2 * head + bytes([2 * number + 1]) * 2 * head
                assert await b.get(key.replace(RANKS[0], "01000100")) == row * (2 * CHUNK_TOKENS)
            assert await b.dbsize() == 3


@pytest.mark.parametrize("dest", [1, 2])
async def test_kv_of_another_size_than_the_model_s_is_refused(dest: int) -> None:
    """KV in two bytes an element where the figures say one does not cross, and both sizes are named."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        wanted, keys = of_ranks(1, dest_world_size=dest)
        for key in keys:
            await region.a.set(key, bytes(2 * SHARD_BYTES))
        path = BridgePath(running.url)
        sizes = f"sending store's chunk has {2 * SHARD_BYTES} bytes, and the model's figures make {SHARD_BYTES}"
        with pytest.raises(KvWrongSize, match=sizes):
            await read_all(path, wanted)
        await path.aclose()


async def test_a_size_that_is_known_better_is_moved() -> None:
    """Where the order names another size, or none at all, that counts."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        wanted, keys = of_ranks(1)
        for key in keys:
            await region.a.set(key, bytes(2 * SHARD_BYTES))
        path = BridgePath(running.url)
        unchecked = await read_all(path, replace(wanted, checks_size=False))
        known = replace(wanted, transfer_id="u", kv_bytes_per_token=2 * SHAPE.token_bytes)
        assert [unchecked[-1].state, (await read_all(path, known))[-1].state] == ["complete", "complete"]
        with pytest.raises(KvWrongSize):
            await read_all(path, replace(wanted, transfer_id="v"))
        await path.aclose()


async def test_kv_that_main_s_own_contradicts_is_refused() -> None:
    """Where the receiving engines have stored the same chunk in another size, no further one is given to them."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        wanted, keys = of_ranks(2)
        async with redis.asyncio.Redis.from_url(region.arguments[3]) as b:
            await b.set(keys[0], bytes(SHARD_BYTES // 2))
        path = BridgePath(running.url)
        with pytest.raises(TransferFailed, match=f"receiving store's chunk has {SHARD_BYTES // 2} bytes"):
            await read_all(path, wanted)
        await path.aclose()


async def test_a_latent_is_one_whatever_the_ranks() -> None:
    """KV of multi-head latent attention is looked for, and written, under one rank's keys."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        wanted = replace(of_ranks(2)[0], kv_shape=KvShape("latent", 1, 1, 64), world_size=8, dest_world_size=4)
        keys = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", wanted.token_ids, CHUNK_TOKENS))
        for key in keys:
            await region.a.set(key, bytes(64 * CHUNK_TOKENS))
        path = BridgePath(running.url)
        assert (await read_all(path, wanted))[-1].wan_bytes == 2 * 64 * CHUNK_TOKENS
        await path.aclose()


async def test_groups_of_layers_cross_each_as_far_as_it_is_needed() -> None:
    """Of a window only the last chunks are waited for; without one of them the transfer is not complete."""
    async with bridged() as region, run_command("backends.kv.bridge.command", *region.arguments) as running:
        wanted = replace(of_ranks(4)[0], world_size=1, separate_groups=True, kv_groups=(2 * CHUNK_TOKENS - 1, None))
        keys = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", wanted.token_ids, CHUNK_TOKENS))
        whole = [key.replace("@0@", "@1@") for key in keys]
        for key in (*whole, keys[2]):
            await region.a.set(key, bytes(100))
        path = BridgePath(running.url)
        async with aclosing(path.transfer(wanted)) as moving:
            async for progress in moving:
                if progress.chunks_done == 5:
                    break
            assert (progress.state, progress.chunks_total) == ("moving", 6)
            await region.a.set(keys[3], bytes(100))
            states = [progress.state async for progress in moving]
        await path.aclose()
        assert states[-1] == "complete"
        async with redis.asyncio.Redis.from_url(region.arguments[3]) as b:
            assert set(await b.keys()) == {key.encode() for key in (*whole, *keys[2:])}
