"""Receiving events over real sockets."""

import asyncio
from collections.abc import Generator

import pytest
from zmq.asyncio import Context, Socket
from zmq.constants import SocketOption, SocketType
from zmq.error import ZMQError

from backends.kv.events import BadFrame
from backends.kv.subscriber import EventSource, EventSubscriber, Frame, ReplayUnavailable


@pytest.fixture
def context() -> Generator[Context, None, None]:
    """Give a ZMQ context that ends with the test."""
    context = Context()
    yield context
    context.term()


@pytest.fixture
def engine(context: Context) -> Generator[Socket, None, None]:
    """Give an engine's publishing socket, which tells of subscriptions."""
    with context.socket(SocketType.XPUB) as socket:
        socket.setsockopt(SocketOption.LINGER, 0)
        yield socket


@pytest.fixture
def router(context: Context) -> Generator[Socket, None, None]:
    """Give an engine's replay socket."""
    with context.socket(SocketType.ROUTER) as socket:
        socket.setsockopt(SocketOption.LINGER, 0)
        yield socket


@pytest.mark.parametrize(
    ("endpoint", "second"),
    [
        ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5559"),
        ("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5559"),
        ("inproc://cache", "inproc://cache_dp2"),
    ],
)
def test_source_of_a_rank(endpoint: str, second: str) -> None:
    """As vLLM has it: ports count up with the rank, and what has no port gets the rank as its end."""
    source = EventSource(endpoint, endpoint, topic="kv")
    assert source.of_rank(0) == source
    assert source.of_rank(2) == EventSource(second, second, topic="kv")
    assert EventSource(endpoint).of_rank(2).replay_endpoint is None


def sequence(number: int) -> bytes:
    """Encode a sequence number."""
    return number.to_bytes(8, "big")


async def test_subscriber_listens_for_an_engine_that_connects(context: Context, engine: Socket) -> None:
    """With ``bind`` the subscriber takes a port, and engines come to it; only the agreed topic is let in."""
    source = EventSource("tcp://127.0.0.1:*", topic="kv@md1", bind=True)
    async with EventSubscriber(context, source) as subscriber:
        engine.connect(subscriber.endpoint)
        received = asyncio.ensure_future(subscriber.receive(10.0))
        assert await engine.recv() == b"\x01kv@md1"
        await engine.send_multipart([b"kv@other", sequence(0), b"x"])
        await engine.send_multipart([b"kv@md1-as-prefix", sequence(1), b"x"])
        await engine.send_multipart([b"kv@md1", sequence(2), b"payload"])
        with pytest.raises(BadFrame, match="another topic"):
            await received
        assert await subscriber.receive(5.0) == Frame(2, b"payload")
        assert await subscriber.receive(0.0) is None


@pytest.mark.parametrize("frames", [[b""], [b"", b"1"], [b"", b"\0" * 7, b""], [b"", b"\0" * 8, b"", b""]])
async def test_messages_of_another_shape_are_bad_frames(context: Context, engine: Socket, frames: list[bytes]) -> None:
    """A message is topic, eight bytes of sequence, payload, and nothing else."""
    port = engine.bind_to_random_port("tcp://127.0.0.1")
    async with EventSubscriber(context, EventSource(f"tcp://127.0.0.1:{port}")) as subscriber:
        await engine.recv()
        await engine.send_multipart(frames)
        with pytest.raises(BadFrame):
            await subscriber.receive(5.0)


@pytest.mark.parametrize("topic", [[], [b"topic"]])
async def test_replay_ends_with_its_end_marker(context: Context, router: Socket, topic: list[bytes]) -> None:
    """Replayed messages come with or without a topic, and end at sequence -1."""
    port = router.bind_to_random_port("tcp://127.0.0.1")
    subscriber = EventSubscriber(context, EventSource("tcp://127.0.0.1:1", f"tcp://127.0.0.1:{port}"))
    replay = subscriber.replay(3, 5.0)
    received = asyncio.ensure_future(anext(replay))
    client, empty, start = await router.recv_multipart()
    assert (empty, start) == (b"", sequence(3))
    await router.send_multipart([client, b"", *topic, sequence(3), b"three"])
    await router.send_multipart([client, b"", *topic, sequence(4), b"four"])
    await router.send_multipart([client, b"", *topic, b"\xff" * 8, b""])
    assert await received == Frame(3, b"three")
    assert [frame async for frame in replay] == [Frame(4, b"four")]


async def test_replay_without_answer_is_unavailable(context: Context, router: Socket) -> None:
    """No replay endpoint, or one that is silent, is told apart from an empty replay."""
    port = router.bind_to_random_port("tcp://127.0.0.1")
    for endpoint in (None, f"tcp://127.0.0.1:{port}"):
        subscriber = EventSubscriber(context, EventSource("tcp://127.0.0.1:1", endpoint))
        with pytest.raises(ReplayUnavailable):
            assert not [frame async for frame in subscriber.replay(0, 0.05)]


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://127.0.0.1"])
async def test_malformed_endpoints_are_refused(context: Context, endpoint: str) -> None:
    """An endpoint that cannot be used raises at once and leaves no socket."""
    for bind in (False, True):
        with pytest.raises(ZMQError):
            async with EventSubscriber(context, EventSource(endpoint, bind=bind)):
                pass
