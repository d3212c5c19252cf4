"""One connection, driven by hand over a transport that only takes notes."""

import asyncio
from typing import Any

import pytest

from backends.errors import EngineBroken, EngineTimeout, EngineUnavailable
from backends.transport.connection import DRAIN_S, HIGH_WATER_BYTES, MAX_HEAD_BYTES, HttpConnection

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class NotingTransport(asyncio.Transport):
    """Notes what the connection does with it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False
        self._is_paused = False
        self.unsent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def is_reading(self) -> bool:
        return not self._is_paused

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


class Wire:
    """A connection with its transport and what it told its pool."""

    def __init__(self) -> None:
        self.freed: list[HttpConnection] = []
        self.lost: list[HttpConnection] = []
        self.transport = NotingTransport()
        self.connection = HttpConnection(self.freed.append, self.lost.append)
        self.connection.connection_made(self.transport)

    def begin(self, limit_s: float = 5.0) -> HttpConnection:
        """Start an exchange."""
        self.connection.begin(b"request", asyncio.get_running_loop().time() + limit_s)
        return self.connection

    def feed(self, data: bytes) -> None:
        """Bytes come from the engine."""
        self.connection.data_received(data)

    def lose(self, error: Exception | None = None) -> None:
        """The socket closes."""
        self.connection.connection_lost(error)


@pytest.fixture
async def wire() -> Wire:
    """A connection that is open."""
    return Wire()


def piece(body: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(body), body)


async def test_reads_what_came_in_one_piece(wire: Wire) -> None:
    """What came since the last read is returned together."""
    connection = wire.begin()
    wire.feed(HEAD + piece(b"a"))
    wire.feed(piece(b"b"))
    await connection.head()
    assert (connection.status, connection.headers) == (200, {b"transfer-encoding": b"chunked"})
    assert await connection.read() == b"ab"
    wire.feed(b"0\r\n\r\n")
    assert await connection.read() == b""
    assert await connection.read() == b""


async def test_back_pressure(wire: Wire) -> None:
    """Reading stops at the high-water mark and goes on once the consumer has taken what is there."""
    connection = wire.begin()
    wire.feed(HEAD + piece(b"x" * HIGH_WATER_BYTES))
    assert wire.transport.is_reading()
    wire.feed(piece(b"y"))
    assert not wire.transport.is_reading()
    wire.feed(piece(b"z"))
    assert len(await connection.read()) == HIGH_WATER_BYTES + 2
    assert wire.transport.is_reading()


async def test_finish_resumes_and_frees(wire: Wire) -> None:
    """A finished exchange lets the rest of its framing in, whatever was buffered, and frees the connection."""
    connection = wire.begin()
    wire.feed(HEAD + piece(b"x" * (HIGH_WATER_BYTES + 1)))
    connection.finish()
    assert wire.transport.is_reading()
    assert wire.freed == []
    wire.feed(b"0\r\nTrailer: x\r\n\r\n")
    assert wire.freed == [connection]
    assert connection.headers == {b"transfer-encoding": b"chunked"}
    assert not wire.transport.is_aborted


async def test_drain_is_bounded_in_bytes(wire: Wire) -> None:
    """An answer that goes on for long after it was finished is cut."""
    connection = wire.begin()
    wire.feed(HEAD)
    connection.finish()
    wire.feed(piece(b"x" * (HIGH_WATER_BYTES + 1)))
    assert wire.transport.is_aborted


async def test_drain_is_bounded_in_time(wire: Wire) -> None:
    """An answer that does not end after it was finished is cut."""
    connection = wire.begin()
    wire.feed(HEAD)
    connection.finish()
    loop = asyncio.get_running_loop()
    due = loop.create_future()
    loop.call_later(DRAIN_S + 0.05, due.set_result, None)
    await due
    assert wire.transport.is_aborted
    assert wire.freed == []


async def test_finish_of_a_lost_connection(wire: Wire) -> None:
    """A connection that broke before it was finished is not freed."""
    connection = wire.begin()
    wire.feed(HEAD + piece(b"x"))
    wire.lose()
    connection.finish()
    assert (wire.freed, wire.lost) == ([], [connection])


async def test_unsent_request_bytes_keep_a_connection_out_of_the_pool(wire: Wire) -> None:
    """An answer that came before the request was sent whole leaves a connection that nobody can use."""
    connection = wire.begin()
    wire.transport.unsent_bytes = 1
    wire.feed(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    await connection.head()
    connection.finish()
    assert wire.freed == []
    assert wire.transport.is_aborted


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_no_keep_alive(wire: Wire, head: bytes) -> None:
    """A connection that the engine will not keep is closed after its answer."""
    connection = wire.begin()
    wire.feed(head + b"Content-Length: 1\r\n\r\nx")
    assert await connection.read() == b"x"
    connection.finish()
    assert wire.freed == []
    assert wire.transport.is_aborted


async def test_bytes_out_of_turn_close_an_idle_connection(wire: Wire) -> None:
    """Bytes that nobody asked for never become part of the next answer."""
    wire.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert wire.transport.is_aborted


async def test_second_answer(wire: Wire) -> None:
    """A second answer to one request is dropped with its connection; the first stays good."""
    connection = wire.begin()
    wire.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny")
    assert await connection.read() == b"x"
    assert await connection.read() == b""
    connection.finish()
    assert wire.freed == []
    assert wire.transport.is_aborted


async def test_informational_answers_are_skipped(wire: Wire) -> None:
    """The head that counts is the one that follows 1xx."""
    connection = wire.begin()
    wire.feed(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
    await connection.head()
    assert (connection.status, connection.headers) == (200, {b"content-length": b"1"})
    assert await connection.read() == b"x"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
        b"".join(b"HTTP/1.1 103 Early Hints\r\n\r\n" for _ in range(MAX_HEAD_BYTES // 20)),
    ],
)
async def test_what_is_not_http_breaks(wire: Wire, answer: bytes) -> None:
    """Garbage, a changed protocol and an endless head end the exchange at once."""
    connection = wire.begin()
    wire.feed(answer)
    with pytest.raises(EngineBroken):
        await connection.head()
        await connection.read()
    assert wire.transport.is_aborted


@pytest.mark.parametrize(
    ("before", "cause", "error"),
    [
        (b"", None, EngineUnavailable),
        (b"", ConnectionResetError(), EngineUnavailable),
        (b"HTTP/1.1 20", None, EngineBroken),
        (HEAD, None, EngineBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", None, EngineBroken),
        (b"HTTP/1.1 200 OK\r\n\r\n", ConnectionResetError(), EngineBroken),
    ],
)
async def test_loss(wire: Wire, before: bytes, cause: Exception | None, error: type[Exception]) -> None:
    """A loss before the first byte means that nothing was accepted; after it, that the answer is cut."""
    connection = wire.begin()
    wire.feed(before) if before else None
    wire.lose(cause)
    with pytest.raises(error):
        await connection.head()
        await connection.read()
    assert wire.lost == [connection]
    await connection.closed()


async def test_data_before_a_loss_is_read_first(wire: Wire) -> None:
    """A cut loses nothing that came before it."""
    connection = wire.begin()
    wire.feed(HEAD + piece(b"x"))
    wire.lose()
    assert await connection.read() == b"x"
    with pytest.raises(EngineBroken):
        await connection.read()


async def test_body_that_ends_at_close(wire: Wire) -> None:
    """Without a length, the end of the connection is the end of the body."""
    connection = wire.begin()
    wire.feed(b"HTTP/1.0 200 OK\r\n\r\nab")
    wire.lose()
    assert [await connection.read(), await connection.read()] == [b"ab", b""]


async def test_begin_on_a_dying_connection(wire: Wire) -> None:
    """A connection that closed between exchanges says so at once, without waiting for the deadline."""
    wire.transport.abort()
    wire.lose()
    connection = wire.begin()
    assert wire.transport.written == b""
    with pytest.raises(EngineUnavailable):
        await connection.head()


async def test_deadline_may_move_both_ways(wire: Wire) -> None:
    """The limit that counts is the one set last, sooner or later than those before."""
    connection = wire.begin(limit_s=60)
    loop = asyncio.get_running_loop()
    reading = loop.create_task(connection.head())
    await asyncio.sleep(0)
    wire.feed(HEAD)
    await reading
    connection.deadline_s = loop.time() + 0.2
    body = loop.create_task(connection.read())
    await asyncio.sleep(0)
    connection.deadline_s = loop.time() + 0.4
    started = loop.time()
    with pytest.raises(EngineTimeout):
        await body
    assert 0.39 <= loop.time() - started < 5
    assert wire.transport.is_aborted


async def test_deadline_does_not_count_while_nobody_waits(wire: Wire) -> None:
    """A limit that passes between two reads ends nothing; the next read sets its own."""
    connection = wire.begin(limit_s=0.2)
    loop = asyncio.get_running_loop()
    reading: asyncio.Task[Any] = loop.create_task(connection.head())
    await asyncio.sleep(0)
    wire.feed(HEAD)
    await reading
    due = loop.create_future()
    loop.call_later(0.3, due.set_result, None)
    await due
    assert not wire.transport.is_aborted
    connection.deadline_s = loop.time() + 5
    wire.feed(piece(b"x"))
    assert await connection.read() == b"x"
