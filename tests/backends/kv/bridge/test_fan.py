"""One transfer over several bridge processes, and lines with TLS."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis.asyncio

from backends.errors import TransferFailed
from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.fan import FannedPath
from backends.kv.bridge.orders import find_chunks
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.types import ChunkId, TransferOrder, TransferShare
from backends.transport.wan.link import WanLink
from backends.transport.wan.route import WanRoute
from backends.types import TransferRequest
from tests.backends.kv.bridge.chunks import CHUNK_BYTES, CHUNK_TOKENS, chunks_of, prompt, store
from tests.backends.kv.bridge.commands import Running, run_command, through
from tests.certificates import Certificates, make_certificates
from tests.valkey import run_valkey

COMMAND = "backends.kv.bridge.command"
PATIENCE_S = 20
CHUNKS = 24


def request(transfer_id: str = "t") -> TransferRequest:
    """A transfer of many chunks."""
    return TransferRequest(transfer_id, "lmcache", "demo", prompt(CHUNKS), CHUNK_TOKENS)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_are_disjoint_and_whole(count: int) -> None:
    """Each chunk is in one share, in its place in the prompt's order, and in the same for a longer prompt."""
    order = TransferOrder("t", "lmcache-mp", "m", list(range(200)), chunk_tokens=4, world_size=2)
    parts: list[list[ChunkId]] = []
    for number in range(count):
        longer = TransferOrder(
            "u", "lmcache-mp", "m", list(range(240)), chunk_tokens=4, world_size=2, part=TransferShare(number, count)
        )
        mine = TransferOrder(
            "t", "lmcache-mp", "m", list(range(200)), chunk_tokens=4, world_size=2, part=TransferShare(number, count)
        )
        parts.append(find_chunks(mine))
        assert find_chunks(longer)[: len(parts[-1])] == parts[-1]
    whole = find_chunks(order)
    assert sorted(chunk for part in parts for chunk in part) == sorted(whole)
    for part in parts:
        assert part == [chunk for chunk in whole if chunk in set(part)]


@dataclass(frozen=True, slots=True)
class Fanned:
    """Two stores with a line between them, a command with two workers, and the path over both."""

    a: redis.asyncio.Redis
    b: redis.asyncio.Redis
    wan: WanLink
    running: Running
    path: FannedPath


@asynccontextmanager
async def two_workers(rate_mbit: float = 400) -> AsyncGenerator[Fanned, None]:
    """Run everything for the length of the block."""
    async with run_valkey() as url_a, run_valkey() as url_b:
        route = WanRoute("127.0.0.1", StoreAddress.parse(url_a).port)
        async with (
            redis.asyncio.Redis.from_url(url_a) as a,
            redis.asyncio.Redis.from_url(url_b) as b,
            WanLink([route], rate_mbit=rate_mbit, delay_ms=2) as wan,
            run_command(
                COMMAND, "--source", through(url_a, wan.ports[0]), "--dest", url_b, "--workers=2", listeners=2
            ) as running,
        ):
            path = FannedPath([BridgePath(url, part=(number, 2)) for number, url in enumerate(running.urls)])
            try:
                async with asyncio.timeout(PATIENCE_S):
                    yield Fanned(a, b, wan, running, path)
            finally:
                await path.aclose()


def children_of(pid: int) -> list[int]:
    """The processes that one has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def moved_by(url: str) -> int:
    """Chunks that a bridge has moved."""
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"{url}/metrics")).text
    return int(float(page.split('pdd_bridge_chunks_total{result="moved"} ')[1].split()[0]))


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_transfer_is_shared_by_the_workers() -> None:
    """Each moves its share, progress adds up, and the transfer is complete when both are."""
    async with two_workers() as fanned:
        chunks = chunks_of(prompt(CHUNKS))
        await store(fanned.a, chunks)
        told = [progress async for progress in fanned.path.transfer(request())]
        assert told[-1].state == "complete" and {one.state for one in told[:-1]} <= {"open", "moving"}
        assert (told[-1].chunks_total, told[-1].chunks_done) == (CHUNKS, CHUNKS)
        assert told[-1].wan_bytes == CHUNKS * CHUNK_BYTES
        moved = [await moved_by(url) for url in fanned.running.urls]
        assert sum(moved) == CHUNKS and all(moved)
        assert await fanned.b.dbsize() == 2 * CHUNKS
        link = await fanned.path.link()
        assert link.up and link.open_transfers == 0 and link.wan_bytes_total >= CHUNKS * CHUNK_BYTES
        again = [progress async for progress in fanned.path.transfer(request("again"))]
        assert (again[-1].chunks_present, again[-1].wan_bytes) == (CHUNKS, 0)


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_stopping_stops_all_workers() -> None:
    """A transfer that is left is open nowhere; until then its class is changed everywhere."""
    async with two_workers(rate_mbit=20) as fanned, httpx.AsyncClient() as client:
        await store(fanned.a, chunks_of(prompt(CHUNKS)))

        async def listed() -> list[dict[str, object]]:
            pages = [(await client.get(f"{url}/v1/transfers")).json() for url in fanned.running.urls]
            return [transfer for page in pages for transfer in page]

        async with aclosing(fanned.path.transfer(request())) as moving:
            async for progress in moving:
                if progress.chunks_done >= 2:
                    break
            fanned.path.prioritise("t", "later")
            while {item["priority"] for item in await listed()} != {"later"}:
                await asyncio.wait([asyncio.ensure_future(anext(moving))])
            assert len(await listed()) == 2
        while await listed():
            await fanned.path.link()
        assert fanned.wan.stats().from_target_bytes < CHUNKS * CHUNK_BYTES


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_worker_that_dies_ends_the_command() -> None:
    """The transfer fails at once, and the command ends as failed, so that it is started again whole."""
    async with two_workers(rate_mbit=20) as fanned:
        await store(fanned.a, chunks_of(prompt(CHUNKS)))
        pid = fanned.running.process.pid
        (child, *_) = children_of(pid)
        with pytest.raises(TransferFailed):
            async for progress in fanned.path.transfer(request()):
                if progress.chunks_done >= 2:
                    os.kill(child, signal.SIGKILL)
        assert await fanned.running.process.wait() == 1


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what one side says until it ends."""
    with suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def with_tls(url: str, made: Certificates) -> AsyncGenerator[str, None]:
    """A store's address behind TLS, for those alone who show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    context.load_verify_locations(made.authority)
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        away = await asyncio.open_connection("127.0.0.1", StoreAddress.parse(url).port)
        await asyncio.gather(pour(reader, away[1]), pour(away[0], writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_lines_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that want certificates get them, and the gateway asks over https; plain http is not answered."""
    made = make_certificates(tmp_path)
    chunks = chunks_of(prompt(3))
    async with run_valkey() as plain, with_tls(plain, made) as source, run_valkey() as dest:
        async with redis.asyncio.Redis.from_url(plain) as a:
            await store(a, chunks)
        shown = ["--store-ca", made.authority, "--store-cert", made.client, "--store-key", made.client_key]
        served = ["--tls-cert", made.server, "--tls-key", made.server_key]
        arguments = [str(word) for word in ("--source", source, "--dest", dest, *shown, *served)]
        monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
        wanted = TransferRequest("t", "lmcache", "demo", prompt(3), CHUNK_TOKENS)
        async with run_command(COMMAND, *arguments) as running:
            assert running.url.startswith("https://")
            path = BridgePath(running.url)
            async with asyncio.timeout(PATIENCE_S):
                assert [progress.chunks_done async for progress in path.transfer(wanted)][-1] == 3
            await path.aclose()
            unsafe = BridgePath(running.url.replace("https", "http"))
            with pytest.raises(TransferFailed):
                await anext(unsafe.transfer(wanted))
            await unsafe.aclose()
