"""The client's side of a streamed answer: what is pushed goes out in order, whatever the client does meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from gateway.http.body import ClientDisconnected, ClientStalled
from gateway.http.client import MOST_WAITING_BYTES, Client, EventStream, ShuttingDown
from tests.fakes.gates import HoldGate, Watch

HEAD: Message = {"type": "http.response.start", "status": 200, "headers": []}
FULL = b"x" * (MOST_WAITING_BYTES + 1)


class Reader:
    """Who reads a stream. ``gate``: held before each message, once it is set; ``fault``: what its next send raises."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.gate: HoldGate | None = None
        self.fault: Exception | None = None
        self.leaving = HoldGate()
        self._watch = Watch()

    @property
    def body(self) -> bytes:
        """All that it has read."""
        return b"".join(message["body"] for message in self.messages[1:])

    async def read(self, data: bytes) -> None:
        """Wait until it has read so much."""
        await self._watch.until(lambda: self.body == data)

    async def receive(self) -> Message:
        """Return once it leaves."""
        await self.leaving.hold()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message, when there is no gate."""
        if self.gate is not None:
            await self.gate.hold()
        if self.fault is not None:
            raise self.fault
        self.messages.append(message)
        self._watch.changed()


@pytest.fixture
def reader() -> Reader:
    """A reader that takes everything at once."""
    return Reader()


@asynccontextmanager
async def open_stream(reader: Reader, write_timeout_s: float = 60.0) -> AsyncIterator[EventStream]:
    """Stream to a reader."""
    async with Client(reader.receive, reader.send, write_timeout_s) as client:
        stream = EventStream(client, HEAD)
        try:
            yield stream
        finally:
            await stream.aclose()


async def test_an_empty_push_sends_the_status_line(reader: Reader) -> None:
    """Tokens that are no text yet tell the client that its answer has begun."""
    async with open_stream(reader) as stream:
        stream.push(b"")
        assert stream.has_begun
        await stream.end(b"end")
    assert reader.messages[0] == HEAD and reader.body == b"end"


@given(st.lists(st.tuples(st.binary(max_size=5), st.integers(0, 3)), max_size=20), st.integers(0, 6))
def test_everything_goes_out_once_and_in_order(pushes: list[tuple[bytes, int]], pause: int) -> None:
    """However pushes and a reader that pauses fall together: one head, all bytes in order, one last message."""

    async def check() -> None:
        reader = Reader()
        reader.gate = HoldGate()
        async with open_stream(reader) as stream:
            for data, turns in pushes:
                stream.push(data)
                for _ in range(turns):
                    await asyncio.sleep(0)
                if pause < 3:
                    reader.gate.release(pause)
            ending = asyncio.create_task(stream.end(b"end"))
            reader.gate.open()
            await ending
        assert [message["type"] for message in reader.messages].count("http.response.start") == 1
        assert reader.messages[0] == HEAD
        assert reader.body == b"".join(data for data, _ in pushes) + b"end"
        assert [message["more_body"] for message in reader.messages[1:]] == [True] * (len(reader.messages) - 2) + [
            False
        ]

    asyncio.run(check())


async def test_what_waits_for_a_slow_reader_goes_out_as_one(reader: Reader) -> None:
    """A reader that was behind catches up with one write, and the end waits until it was given everything."""
    async with open_stream(reader) as stream:
        reader.gate = HoldGate()
        stream.push(b"a")
        await reader.gate.arrivals()
        stream.push(b"b")
        stream.push(b"c")
        ending = asyncio.create_task(stream.end(b"d"))
        await asyncio.sleep(0)
        assert not ending.done()
        reader.gate.open()
        await ending
    assert [message.get("body") for message in reader.messages] == [None, b"abcd"]


async def test_there_is_room_once_the_reader_has_read(reader: Reader) -> None:
    """Room ends with too many bytes that were not read, those on their way included, and is there again after them."""
    async with open_stream(reader) as stream:
        reader.gate = HoldGate()
        stream.push(FULL[1:])
        assert stream.room.is_set()
        await reader.gate.arrivals(1)
        reader.gate.release()
        await reader.gate.arrivals(2)
        stream.push(b"x")
        assert not stream.room.is_set()
        reader.gate.open()
        await asyncio.wait_for(stream.room.wait(), 5)
        await reader.read(FULL)


def stop_reading(reader: Reader, stream: EventStream) -> None:
    """The write timeout will tell."""


def leave(reader: Reader, stream: EventStream) -> None:
    """Hang up."""
    reader.leaving.open()


def shut_down(reader: Reader, stream: EventStream) -> None:
    """The gateway ends."""
    stream._client.leave(ShuttingDown())


@pytest.mark.parametrize("is_ending", [False, True])
@pytest.mark.parametrize(
    ("how", "loss"),
    [(stop_reading, ClientStalled), (leave, ClientDisconnected), (shut_down, ShuttingDown)],
)
async def test_a_paused_write_ends_with_its_client(
    reader: Reader, is_ending: bool, how: Callable[[Reader, EventStream], None], loss: type[Exception]
) -> None:
    """A client that stalls, leaves or is cut off ends the block, also while its end is written; no task is left."""
    tasks = len(asyncio.all_tasks())
    reader.gate = HoldGate()
    with pytest.raises(loss):
        async with open_stream(reader, 0.05 if how is stop_reading else 60.0) as stream:
            stream.push(b"a")
            await reader.gate.arrivals()
            how(reader, stream)
            await (stream.end(b"end") if is_ending else HoldGate().hold())
    assert reader.messages == [] and reader.gate.held == 0
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == tasks


@pytest.mark.parametrize("is_ending", [False, True])
async def test_a_send_that_raises_ends_the_block(reader: Reader, is_ending: bool) -> None:
    """What the server raises is raised to whoever streams, while nothing is pushed and at the end alike."""
    reader.fault = RuntimeError("broken pipe")
    with pytest.raises(RuntimeError, match="broken pipe"):
        async with open_stream(reader) as stream:
            stream.push(b"a")
            await (stream.end(b"end") if is_ending else HoldGate().hold())
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_nothing_goes_out_after_the_end(reader: Reader) -> None:
    """What is still pushed while the last bytes wait, or later, is lost."""
    async with open_stream(reader) as stream:
        reader.gate = HoldGate()
        stream.push(b"a")
        await reader.gate.arrivals()
        ending = asyncio.create_task(stream.end(b"end"))
        await asyncio.sleep(0)
        stream.push(b"late")
        reader.gate.open()
        await ending
        stream.push(b"late")
    assert reader.body == b"aend"


async def test_a_stream_that_was_closed_does_not_begin(reader: Reader) -> None:
    """What is pushed after the close cannot get into what the client is answered instead."""
    async with open_stream(reader) as stream:
        await stream.aclose()
        stream.push(b"late")
        await asyncio.sleep(0)
        assert not stream.has_begun
    assert reader.messages == []
