"""Tests of the link between two regions: its rate, delay, fairness, counts, stalls and cuts."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from backends.transport.wan.control import make_control
from backends.transport.wan.link import WanLink, WanStats
from backends.transport.wan.route import WanRoute
from tests.backends.kv.bridge.commands import run_command

PATIENCE_S = 10
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve(handler: Handler) -> AsyncGenerator[int, None]:
    """A TCP server; gives its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except ConnectionError:
            writer.transport.abort()
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a count, and send as many bytes."""
    count = int(await reader.readline())
    while count:
        step = min(count, 65536)
        writer.write(bytes(step))
        await writer.drain()
        count -= step


@asynccontextmanager
async def connect(
    wan: WanLink, route: int = 0
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """A connection through the link."""
    reader, writer = await asyncio.open_connection("127.0.0.1", wan.ports[route])
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reader, writer
    finally:
        writer.transport.abort()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes = b"ping") -> float:
    """Have ``text`` echoed; the seconds it took."""
    start_s = time.monotonic()
    writer.write(text)
    assert await reader.readexactly(len(text)) == text
    return time.monotonic() - start_s


async def test_delay_adds_to_the_round_trip() -> None:
    """A small message takes the delay once each way, and not much more."""
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=100, delay_ms=25) as wan:
        async with connect(wan) as (reader, writer):
            times_s = [await ask(reader, writer) for _ in range(5)]
    assert 0.05 <= min(times_s) < 0.1


@pytest.mark.parametrize("delay_ms", [0, 40])
async def test_rate_holds_whatever_the_delay(delay_ms: float) -> None:
    """Bulk takes size over rate, plus one delay each way."""
    async with serve(pour) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=40, delay_ms=delay_ms) as wan:
        async with connect(wan) as (reader, writer):
            start_s = time.monotonic()
            writer.write(b"2500000\n")
            await reader.readexactly(2_500_000)
            elapsed_s = time.monotonic() - start_s
    ideal_s = 0.5 + 2 * delay_ms / 1000
    assert ideal_s <= elapsed_s < ideal_s + 0.4


async def test_connections_share_one_rate() -> None:
    """Two routes together get the link's rate once, and about half each."""
    async with serve(pour) as port:
        routes = [WanRoute("127.0.0.1", port), WanRoute("127.0.0.1", port)]
        async with WanLink(routes, rate_mbit=40, delay_ms=1) as wan:
            async with connect(wan, 0) as (one, ask_one), connect(wan, 1) as (two, ask_two):
                start_s = time.monotonic()
                ask_one.write(b"1250000\n")
                ask_two.write(b"1250000\n")
                await asyncio.gather(one.readexactly(1_250_000), two.readexactly(1_250_000))
                elapsed_s = time.monotonic() - start_s
                stats = wan.stats()
    assert 0.5 <= elapsed_s < 0.9
    assert [route.from_target_bytes for route in stats.routes] == [1_250_000, 1_250_000]
    assert stats.from_target_bytes == 2_500_000
    assert stats.to_target_bytes == 16


async def test_a_small_message_is_not_stuck_behind_bulk() -> None:
    """While another connection keeps the link full, a small message takes a few milliseconds more than alone."""
    async with serve(pour) as bulk, serve(echo) as small:
        routes = [WanRoute("127.0.0.1", bulk), WanRoute("127.0.0.1", small)]
        async with WanLink(routes, rate_mbit=20, delay_ms=5) as wan:
            async with connect(wan, 0) as (reader, writer), connect(wan, 1) as (pong, ping):
                writer.write(b"50000000\n")
                await reader.readexactly(100_000)
                times_s = [await ask(pong, ping) for _ in range(5)]
    assert min(times_s) < 0.04


async def test_the_directions_do_not_share() -> None:
    """Bulk one way does not slow bulk the other way."""
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=40, delay_ms=1) as wan:
        async with connect(wan) as (reader, writer):
            start_s = time.monotonic()
            writer.write(bytes(2_500_000))
            await reader.readexactly(2_500_000)
            elapsed_s = time.monotonic() - start_s
    assert 0.5 <= elapsed_s < 0.9


async def test_bytes_arrive_as_they_were() -> None:
    """What crosses is what was sent, in order, to the last byte, and then the end."""
    payload = bytes(range(256)) * 2000
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=400, delay_ms=1) as wan:
        async with connect(wan) as (reader, writer):
            writer.write(payload)
            writer.write_eof()
            assert await reader.read(-1) == payload


async def test_a_stall_keeps_connections() -> None:
    """During a stall nothing crosses and nothing breaks; afterwards all arrives."""
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=100, delay_ms=1) as wan:
        async with connect(wan) as (reader, writer):
            await ask(reader, writer)
            wan.stall(True)
            writer.write(b"held")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
            assert wan.stats().to_target_bytes == 4
            wan.stall(False)
            assert await reader.readexactly(4) == b"held"


async def test_a_cut_breaks_and_refuses_until_healed() -> None:
    """A cut ends every connection at once and takes no new one; healed, it does."""
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=100, delay_ms=1) as wan:
        async with connect(wan) as (reader, writer):
            await ask(reader, writer)
            wan.cut()
            with pytest.raises(ConnectionError):
                await reader.readexactly(1)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with connect(wan) as (reader, writer):
                await ask(reader, writer)
        assert wan.stats().connections == 0
        wan.heal()
        async with connect(wan) as (reader, writer):
            await ask(reader, writer)


async def test_a_cut_for_a_time_heals_by_itself() -> None:
    """A cut of a given length ends when it is over."""
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=100, delay_ms=1) as wan:
        wan.cut(for_s=0.05)
        assert wan.stats().cut
        async with asyncio.timeout(PATIENCE_S):
            while wan.stats().cut:
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    async with connect(wan) as (reader, writer):
                        await ask(reader, writer)
        async with connect(wan) as (reader, writer):
            await ask(reader, writer)


async def test_a_client_that_leaves_ends_the_targets_connection() -> None:
    """A connection that breaks on one side breaks on the other, and what was queued no longer crosses."""
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        finally:
            ended.set()

    async with serve(endless) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=20, delay_ms=5) as wan:
        async with connect(wan) as (reader, _):
            await reader.readexactly(100_000)
            before = wan.stats().from_target_bytes
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        assert wan.stats().from_target_bytes - before < 200_000
        assert wan.stats().connections == 0


async def test_a_target_that_is_away() -> None:
    """When the target cannot be reached the client's connection breaks."""
    async with serve(echo) as port:
        pass
    async with WanLink([WanRoute("127.0.0.1", port)], rate_mbit=100, delay_ms=1) as wan:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with connect(wan) as (reader, writer):
                await ask(reader, writer)


async def test_a_receiver_that_does_not_read_holds_back_its_sender() -> None:
    """Bytes that nobody takes stay with the sender rather than in the relay, and do not hinder others."""
    async with serve(pour) as bulk, serve(echo) as other:
        routes = [WanRoute("127.0.0.1", bulk), WanRoute("127.0.0.1", other)]
        async with WanLink(routes, rate_mbit=1000, delay_ms=0) as wan:
            async with connect(wan, 0) as (reader, writer), connect(wan, 1) as (pong, ping):
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(b"100000000\n")
                await ask(pong, ping)
                await ask(pong, ping, bytes(1_000_000))
                assert wan.stats().routes[0].from_target_bytes < 50_000_000


async def test_rate_and_delay_can_be_changed() -> None:
    """Changes hold at once for connections that exist; nonsense is refused."""
    async with serve(echo) as port, WanLink([WanRoute("127.0.0.1", port)], rate_mbit=100, delay_ms=60) as wan:
        async with connect(wan) as (reader, writer):
            assert await ask(reader, writer) >= 0.12
            wan.set(delay_ms=1)
            assert min([await ask(reader, writer) for _ in range(5)]) < 0.06
            wan.set(rate_mbit=4)
            assert await ask(reader, writer, bytes(50_000)) >= 0.1
    for wrong in ({"rate_mbit": 0.0}, {"rate_mbit": -1.0}, {"delay_ms": -1.0}):
        with pytest.raises(ValueError, match="positive"):
            wan.set(**wrong)


async def test_control() -> None:
    """The HTTP control tells the state and changes it; malformed orders are refused and change nothing."""
    async with WanLink([WanRoute("127.0.0.1", 9)], rate_mbit=40, delay_ms=15) as wan:
        transport = httpx.ASGITransport(make_control(wan))
        async with httpx.AsyncClient(transport=transport, base_url="http://wan") as client:

            async def order(path: str, **body: object) -> WanStats:
                answer = await client.post(path, json=body)
                assert answer.status_code == 200
                return WanStats(**answer.json())

            stats = (await client.get("/stats")).json()
            assert (stats["rate_mbit"], stats["delay_ms"], stats["cut"], stats["stalled"]) == (40, 15, False, False)
            assert stats["routes"][0]["listen"] == f"127.0.0.1:{wan.ports[0]}"
            assert (await order("/set", rate_mbit=80)).rate_mbit == 80
            assert (await order("/set", delay_ms=3)).delay_ms == 3
            assert (await order("/stall", on=True)).stalled
            assert not (await order("/stall", on=False)).stalled
            assert (await order("/cut")).cut
            assert not (await order("/heal")).cut
            assert (await order("/cut", for_s=60)).cut
            for path, text in (("/set", '{"rate_mbit": 0}'), ("/set", "{"), ("/stall", '{"on": 1}'), ("/cut", "[]")):
                assert (await client.post(path, content=text)).status_code == 400
            assert wan.stats().rate_mbit == 80


@pytest.mark.slow
async def test_command() -> None:
    """``pdd wan`` tells its routes and where its control listens, relays, and ends cleanly."""
    async with serve(echo) as port:
        arguments = (f"--route=127.0.0.1:0=127.0.0.1:{port}", "--rate-mbit=100", "--delay-ms=5")
        async with run_command("backends.transport.wan.command", *arguments) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.routes[0])
            assert await ask(reader, writer) >= 0.01
            async with httpx.AsyncClient(base_url=running.url) as client:
                stats = (await client.get("/stats")).json()
            writer.close()
            running.process.terminate()
            assert await running.process.wait() == 0
    assert (stats["to_target_bytes"], stats["from_target_bytes"], stats["connections"]) == (4, 4, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--route=nonsense", "--rate-mbit=1"),
        ("--route=127.0.0.1:0=127.0.0.1:1", "--rate-mbit=0"),
        ("--route=127.0.0.1:0=127.0.0.1:1", "--rate-mbit=1", "--control=1"),
    ],
)
async def test_command_refuses_nonsense(arguments: tuple[str, ...]) -> None:
    """Arguments that mean nothing end the command before it listens."""
    with pytest.raises(AssertionError, match="ended before"):
        async with run_command("backends.transport.wan.command", *arguments):
            pass
