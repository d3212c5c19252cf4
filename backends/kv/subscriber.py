"""Receives KV cache events over ZMQ, and asks engines for those that were missed.

A message has three frames: topic, 8-byte big-endian sequence number, payload (see ``backends.kv.events``).
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from zmq.asyncio import Context, Socket
from zmq.constants import SocketOption, SocketType
from zmq.error import ZMQError

from backends.kv.events import MAX_FRAME_BYTES, BadFrame

_SEQUENCE_BYTES = 8
_REPLAY_END = b"\xff" * _SEQUENCE_BYTES
_QUEUE_MESSAGES = 100_000


class ReplayUnavailable(Exception):
    """The engine did not answer a replay request."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message as it arrived: its sequence number and its undecoded batch."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where an engine publishes. ``bind``: the engine connects, so the subscriber has to listen at ``endpoint``.

    ``topic`` non-empty: only messages of exactly this topic are taken.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False

    def of_rank(self, rank: int) -> "EventSource":
        """Where another data-parallel rank publishes, if this is where rank 0 does: vLLM counts the ports up."""
        replay_endpoint = self.replay_endpoint and _offset(self.replay_endpoint, rank)
        return replace(self, endpoint=_offset(self.endpoint, rank), replay_endpoint=replay_endpoint)


class EventSubscriber:
    """Receives the messages of one source; an async context manager that owns its sockets.

    ZMQ reconnects by itself, for ever. Messages lost meanwhile show as gaps in the sequence.
    """

    def __init__(self, context: Context, source: EventSource) -> None:
        self._source = source
        self._context = context
        self._socket: Socket | None = None

    async def __aenter__(self) -> Self:
        """Open the socket. Raises ZMQError when the endpoint is malformed or taken."""
        socket = self._context.socket(SocketType.SUB)
        _set_limits(socket)
        socket.setsockopt(SocketOption.SUBSCRIBE, self._source.topic.encode())
        try:
            if self._source.bind:
                socket.bind(self._source.endpoint)
            else:
                socket.connect(self._source.endpoint)
        except ZMQError:
            socket.close(linger=0)
            raise
        self._socket = socket
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    @property
    def endpoint(self) -> str:
        """The address in use; for a bound wildcard port, the one that was chosen."""
        assert self._socket is not None
        last: bytes = self._socket.getsockopt(SocketOption.LAST_ENDPOINT)
        return last.rstrip(b"\0").decode()

    async def receive(self, timeout_s: float) -> Frame | None:
        """Return the next message, or None when none came in time. Raises BadFrame for one that is malformed."""
        assert self._socket is not None
        if not await self._socket.poll(int(timeout_s * 1000)):
            return None
        return _read_frame(await self._socket.recv_multipart(), self._source.topic)

    async def replay(self, start: int, timeout_s: float) -> AsyncGenerator[Frame, None]:
        """Yield the messages that the engine still keeps, from sequence ``start`` on.

        Raises ReplayUnavailable when the source has no replay endpoint or it is silent for ``timeout_s``; malformed
        messages end the replay as BadFrame.
        """
        if self._source.replay_endpoint is None:
            raise ReplayUnavailable("no replay endpoint")
        socket = self._context.socket(SocketType.DEALER)
        _set_limits(socket)
        try:
            socket.connect(self._source.replay_endpoint)
            await socket.send_multipart([b"", start.to_bytes(_SEQUENCE_BYTES, "big")])
            while await socket.poll(int(timeout_s * 1000)):
                parts = await socket.recv_multipart()
                if len(parts) >= 2 and parts[-2] == _REPLAY_END:
                    return
                yield _read_frame([b"", *parts[-2:]], "")
            raise ReplayUnavailable("no answer")
        finally:
            socket.close(linger=0)


def _offset(endpoint: str, rank: int) -> str:
    """As vLLM's ``ZmqEventPublisher.offset_endpoint_port`` does it."""
    address, _, port = endpoint.rpartition(":")
    if rank == 0:
        return endpoint
    if endpoint.startswith("tcp://") and port.isdecimal():
        return f"{address}:{int(port) + rank}"
    return f"{endpoint}_dp{rank}"


def _set_limits(socket: Socket) -> None:
    socket.setsockopt(SocketOption.RCVHWM, _QUEUE_MESSAGES)
    socket.setsockopt(SocketOption.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(SocketOption.TCP_KEEPALIVE, 1)
    socket.setsockopt(SocketOption.TCP_KEEPALIVE_IDLE, 30)


def _read_frame(parts: list[bytes], topic: str) -> Frame:
    if len(parts) != 3 or len(parts[1]) != _SEQUENCE_BYTES:
        raise BadFrame("not topic, sequence and payload")
    if topic and parts[0] != topic.encode():
        raise BadFrame("another topic")
    return Frame(int.from_bytes(parts[1], "big"), parts[2])
