"""The one way to Redis: what counts as up, what the log is told, and scripts that a server has lost."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Iterator

import pytest
from redis.exceptions import RedisError

from backends.transport.valkey import EmbeddedValkey
from gateway.redis.client import AWAY, RedisClient, SharedRedis, digest

UNHURRIED_S = 5.0
BACK = "Redis answers"


@pytest.fixture
async def shared(server: EmbeddedValkey) -> AsyncGenerator[SharedRedis, None]:
    """One process's way to a real server."""
    async with SharedRedis(server.url) as opened:
        yield opened


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the log was told of Redis, as it grows."""
    caplog.set_level(logging.INFO, "gateway.redis.client")
    handler = _Kept()
    logging.getLogger("gateway.redis.client").addHandler(handler)
    yield handler.lines
    logging.getLogger("gateway.redis.client").removeHandler(handler)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def ping(client: RedisClient) -> bool:
    """Do a step; whether it was done."""
    try:
        async with client.step():
            await client.commands.echo("here")
    except AWAY:
        return False
    return True


def ups(shared: SharedRedis, *clients: RedisClient) -> list[bool]:
    """Whether Redis is up for the process, then for each client."""
    return [shared.up, *(client.up for client in clients)]


@pytest.mark.slow
async def test_each_change_is_told_once(server: EmbeddedValkey, shared: SharedRedis, told: list[str]) -> None:
    """Up, away and up again make a line each in the log, however many clients find it out, and however often."""
    clients = [shared.client(name, UNHURRIED_S) for name in ("limits", "usage")]
    assert not any(ups(shared, *clients)) and clients[0].trouble == "Redis was not asked yet"
    for _ in range(2):
        assert [await ping(client) for client in clients] == [True, True]
    assert all(ups(shared, *clients)) and told == [BACK]
    await server.stop()
    for _ in range(2):
        assert [await ping(client) for client in clients] == [False, False]
    assert not any(ups(shared, *clients))
    assert len(told) == 2 and told[1].startswith("Redis does not answer (limits): ")
    assert clients[1].trouble.startswith("Redis does not answer: ")
    await server.start()
    assert await ping(clients[0])
    assert ups(shared, *clients) == [False, True, False] and len(told) == 2
    assert await ping(clients[1])
    assert all(ups(shared, *clients)) and told[2:] == [BACK]
    assert clients[1].trouble == ""


@pytest.mark.slow
async def test_away_from_the_start_is_told(server: EmbeddedValkey, shared: SharedRedis, told: list[str]) -> None:
    """A process that starts without Redis says so once."""
    await server.stop()
    client = shared.client("limits", UNHURRIED_S)
    assert not await ping(client) and not await ping(client)
    assert len(told) == 1 and told[0].startswith("Redis does not answer (limits): ")


@pytest.mark.slow
async def test_one_refusal_is_not_everybodys(shared: SharedRedis, told: list[str]) -> None:
    """While Redis refuses one client's steps the process says that it is away, and the other clients go on."""
    refused, other = shared.client("usage", UNHURRIED_S), shared.client("limits", UNHURRIED_S)
    assert await ping(refused) and await ping(other)
    await other.commands.set("key", "no list")
    for _ in range(3):
        with pytest.raises(RedisError, match="WRONGTYPE"):
            async with refused.step():
                await refused.commands.lpush("key", "x")
        assert await ping(other)
        assert ups(shared, refused, other) == [False, False, True]
    assert await ping(refused) and all(ups(shared, refused, other))
    assert [line.split(":")[0] for line in told] == [BACK, "Redis does not answer (usage)", BACK]


@pytest.mark.slow
async def test_a_hung_server_is_away_in_time(server: EmbeddedValkey, shared: SharedRedis, told: list[str]) -> None:
    """A server that hangs is away after the client's own time limit, and up again when it goes on."""
    quick, patient = shared.client("limits", 0.1), shared.client("documents", 60.0)
    assert await ping(quick) and await ping(patient)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        waiting = asyncio.create_task(ping(patient))
        assert not await ping(quick)
        assert quick.trouble == "Redis does not answer: no answer in time"
        assert ups(shared, quick, patient) == [False, False, True] and not waiting.done()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await waiting
    async with quick.step(UNHURRIED_S):
        await quick.commands.echo("here")
    assert all(ups(shared, quick, patient)) and len(told) == 3


async def test_a_silent_listener_is_away_in_time(told: list[str]) -> None:
    """What takes connections and never says anything is away, for a new connection too."""
    conversations: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(lambda _, writer: conversations.append(writer), "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener, SharedRedis(url) as shared:
        client = shared.client("limits", 0.05)
        with pytest.raises(TimeoutError):
            async with client.step():
                await client.commands.echo("here")
        assert not any(ups(shared, client)) and len(told) == 1
        for writer in conversations:
            writer.close()
            await writer.wait_closed()


@pytest.mark.slow
async def test_what_is_only_limited_is_not_noted(server: EmbeddedValkey, shared: SharedRedis, told: list[str]) -> None:
    """What a client only limits, and what is cancelled or fails by itself, changes nothing of what is up."""
    client = shared.client("documents", UNHURRIED_S)
    assert await ping(client)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            async with client.limit(0.05):
                await client.commands.echo("here")
        cancelled = asyncio.create_task(ping(client))
        await asyncio.wait([cancelled], timeout=0.05)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        with pytest.raises(ZeroDivisionError):
            async with client.step():
                raise ZeroDivisionError
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert cancelled.cancelled() and all(ups(shared, client)) and told == [BACK]


@pytest.mark.slow
async def test_scripts_outlive_the_server(server: EmbeddedValkey, shared: SharedRedis) -> None:
    """After its scripts were flushed, and after it was started anew, a server does the same steps, alone and piped."""
    client = shared.client("ledger", UNHURRIED_S)
    beat = client.script("ledger_beat")
    assert beat is client.script("ledger_beat")

    async def count(process: str) -> list[int]:
        async with client.step(), client.commands.pipeline(transaction=False) as pipeline:
            alone = await beat(["processes"], [process, 60_000])
            await beat(["processes"], [process, 60_000], client=pipeline)
            return [alone, *await pipeline.execute()]

    assert await count("one") == [1, 1]
    await client.commands.script_flush()
    assert await count("two") == [2, 2]
    await server.stop()
    assert not await ping(client)
    await server.start()
    assert await count("three") == [1, 1]
    assert shared.up


def test_digests_hold_no_names() -> None:
    """A name's part of a key tells nothing of it and moves no key to another slot."""
    assert digest("a{b}") != digest("a") and set(digest("a{b}")) <= set("0123456789abcdef")


def test_an_address_that_is_none_is_refused() -> None:
    """A URL of another kind is refused before anything is asked."""
    with pytest.raises(ValueError, match="scheme"):
        SharedRedis("http://127.0.0.1")
