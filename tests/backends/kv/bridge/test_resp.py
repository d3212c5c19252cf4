"""Tests of the thin Redis client, against a server whose bytes and their cuts are the test's."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kv.bridge.resp import CommandRefused, ConnectionLost, StoreAddress, StoreConnection, StoreReply, WrongSize
from tests.valkey import run_valkey

PATIENCE_S = 5
LARGE_BYTES = 200_000


@asynccontextmanager
async def served(
    answers: list[bytes], *, silence_s: float = PATIENCE_S, on_bytes: Callable[[int], None] | None = None
) -> AsyncGenerator[StoreConnection, None]:
    """A connection to a server that sends ``answers``, one piece after the other, to whatever follows the PING."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"PING\r\n")
            writer.write(b"+PONG\r\n")
            await reader.read(1)
            for piece in answers:
                writer.write(piece)
                await writer.drain()
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        address = StoreAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        connection = await StoreConnection.open(address, silence_s=silence_s, on_bytes=on_bytes)
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield connection
        finally:
            connection.abort()
            await connection.closed


async def close_all(writers: list[asyncio.StreamWriter]) -> None:
    """Close a server's connections to their end, whatever the other side did."""
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def bulk(value: bytes) -> bytes:
    """A bulk string on the wire."""
    return b"$%d\r\n%s\r\n" % (len(value), value)


async def test_replies_of_each_kind() -> None:
    """Strings, numbers, values, nulls and errors come back in the order of their commands."""
    wire = b"+OK\r\n:42\r\n" + bulk(b"value") + b"$-1\r\n-ERR no\r\n" + bulk(b"")
    async with served([wire]) as connection:
        futures = [connection.send(b"X") for _ in range(6)]
        assert [await future for future in futures[:4]] == [b"OK", 42, b"value", None]
        with pytest.raises(CommandRefused, match="ERR no"):
            await futures[4]
        assert await futures[5] == b""


REPLY = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6),
    st.binary(max_size=300),
    st.integers(60_000, 140_000).map(bytes),
)


@settings(deadline=None, max_examples=25)
@given(replies=st.lists(REPLY, min_size=1, max_size=6), cut_bytes=st.integers(1, 70_000))
def test_any_cut_of_the_bytes_gives_the_same_replies(replies: list[StoreReply], cut_bytes: int) -> None:
    """However the stream is cut into pieces, the replies are the same, large values included."""
    wire = b"".join(_spell(reply) for reply in replies)
    pieces = [wire[start : start + cut_bytes] for start in range(0, len(wire), cut_bytes)][:2000]
    if sum(map(len, pieces)) < len(wire):
        pieces.append(wire[sum(map(len, pieces)) :])

    async def check() -> None:
        async with served(pieces) as connection:
            futures = [connection.send(b"X", limit_bytes=1 << 20) for _ in replies]
            assert [await future for future in futures] == replies

    asyncio.run(check())


def _spell(reply: StoreReply) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    return b":%d\r\n" % reply if isinstance(reply, int) else bulk(bytes(reply))


async def test_counts_every_byte() -> None:
    """The byte count covers values and the protocol around them."""
    counted: list[int] = []
    wire = bulk(bytes(LARGE_BYTES)) + b"+OK\r\n"
    async with served([wire], on_bytes=counted.append) as connection:
        first = connection.send(b"X", size_bytes=LARGE_BYTES)
        second = connection.send(b"X")
        assert connection.due_bytes == LARGE_BYTES
        value = await first
        assert isinstance(value, bytearray)
        assert len(value) == LARGE_BYTES
        assert await second == b"OK"
        assert connection.due_bytes == 0
    assert sum(counted) == len(wire) + len(b"+PONG\r\n")


@pytest.mark.parametrize("actual_bytes", [0, 99, 101, LARGE_BYTES])
async def test_a_wrong_size_is_refused_unread(actual_bytes: int) -> None:
    """A value of another size than expected is not taken in; the connection is given up with it."""
    async with served([bulk(bytes(actual_bytes))]) as connection:
        wanted = connection.send(b"X", size_bytes=100)
        behind = connection.send(b"X")
        with pytest.raises(WrongSize):
            await wanted
        with pytest.raises(ConnectionLost):
            await behind
        assert not connection.usable


async def test_an_unbounded_value_is_refused() -> None:
    """A reply to a command that names no size is bounded."""
    async with served([b"$9999999999\r\n"]) as connection:
        with pytest.raises(WrongSize):
            await connection.send(b"X")


@pytest.mark.parametrize("nonsense", [b"?\r\n", b"$x\r\n", b"*1\r\n", b"HTTP/1.1 400\r\n", b"\r\n", b"x" * 70_000])
async def test_another_protocol_breaks_the_connection(nonsense: bytes) -> None:
    """What is not Redis's protocol ends the connection instead of being guessed at."""
    async with served([nonsense]) as connection:
        with pytest.raises(ConnectionLost):
            await connection.send(b"X")


async def test_an_unasked_reply_breaks_the_connection() -> None:
    """A reply that nobody waits for means that replies can no longer be told apart."""
    async with served([b"+OK\r\n+OK\r\n"]) as connection:
        await connection.send(b"X")
        await connection.closed
        with pytest.raises(ConnectionLost):
            await connection.send(b"X")


async def test_silence_breaks_the_connection() -> None:
    """A reply that is due and does not come within the limit is a broken connection."""
    async with served([b"$10\r\nabc"], silence_s=0.1) as connection:
        with pytest.raises(ConnectionLost, match="silent"):
            await connection.send(b"X")
        await connection.closed


async def test_abort_fails_what_is_due() -> None:
    """Aborting ends every open request at once, says why, and may be done again."""
    async with served([]) as connection:
        future = connection.send(b"X")
        connection.abort("enough")
        connection.abort("again")
        with pytest.raises(ConnectionLost, match="enough"):
            await future


async def test_nobody_there() -> None:
    """An address where nothing listens, or that does not answer, cannot be opened."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    address = StoreAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(ConnectionLost, match="silent"):
        await StoreConnection.open(address, silence_s=0.1)
    server.close()
    await close_all(writers)
    with pytest.raises(ConnectionLost, match="cannot reach"):
        await StoreConnection.open(address, silence_s=1)


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_real_server() -> None:
    """Passwords, databases and values of any size work with a real server; a wrong password is refused."""
    async with run_valkey() as url, redis.asyncio.Redis.from_url(url) as client:
        await client.config_set("requirepass", "s3cret")
        address = StoreAddress.parse(url.replace("redis://", "redis://:s3cret@") + "/3")
        connection = await StoreConnection.open(address, silence_s=PATIENCE_S)
        for size_bytes in (0, 1, 65_535, 65_536, 5_000_000):
            value = bytes(size_bytes)
            assert await connection.send(b"SET", b"key", value) == b"OK"
            assert await connection.send(b"GET", b"key", size_bytes=size_bytes) == value
        connection.abort()
        with pytest.raises(CommandRefused, match="WRONGPASS"):
            await StoreConnection.open(
                StoreAddress.parse(url.replace("redis://", "redis://:no@")), silence_s=PATIENCE_S
            )


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", StoreAddress("h", 6379)),
        ("redis://h:1/2", StoreAddress("h", 1, 2)),
        ("valkey://[::1]:7", StoreAddress("::1", 7)),
        ("rediss://u%40:p%2F@h:1", StoreAddress("h", 1, 0, "u@", "p/", True)),
        ("redis-cluster://h:1,g:2", StoreAddress("h", 1, seeds=(("h", 1), ("g", 2)))),
        (
            "rediss-cluster://u:p%2F@h:1,[::1]:2",
            StoreAddress("h", 1, 0, "u", "p/", True, seeds=(("h", 1), ("::1", 2))),
        ),
    ],
)
def test_addresses(url: str, address: StoreAddress) -> None:
    """URLs name host, port, database, login and TLS; credentials stay out of its text."""
    assert StoreAddress.parse(url) == address
    assert "p/" not in str(address)


@pytest.mark.parametrize(
    "url",
    ["h:1", "http://h", "redis://", "redis://h/x", "redis://h:x", "redis-cluster://h:1/2,g:2", "redis-cluster://"],
)
def test_addresses_that_are_none(url: str) -> None:
    """What is no store's address is refused."""
    with pytest.raises(ValueError, match=r".+"):
        StoreAddress.parse(url)
