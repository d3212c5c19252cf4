"""KV events on ZeroMQ in vLLM 0.32's wire format, with replay.

PUB frames: topic, sequence (8 bytes, big-endian), msgpack ``[timestamp, [event, ...], dp_rank]``; each event is a map
with its ``type``. Replay: a DEALER sends ``["", first sequence]`` to the ROUTER and gets ``["", topic, sequence,
payload]`` for each batch that is still kept, then one with sequence -1 and an empty payload.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from zmq.asyncio import Context as AsyncContext
from zmq.constants import SocketOption, SocketType
from zmq.sugar.context import Context

from backends.engines.reference.blocks import Cleared, PoolEvent, Removed, Stored, external_hash

MEDIUM = "GPU"
"""What vLLM calls the engine's own block pool, whatever the device."""

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, tag="BlockStored", gc=False):
    """Blocks that became findable, each the child of the one before; ``extra_keys`` names the salt of a first block."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None]
    group_idx: int


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks that were evicted."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The whole prefix cache was dropped."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


class PublishedBatch(msgspec.Struct, array_like=True, gc=False):
    """One PUB message."""

    ts: float
    events: list[WireEvent]
    data_parallel_rank: int | None


class SourceCard(msgspec.Struct):
    """One entry of ``GET /kv_event_sources``."""

    endpoint: str
    replay_endpoint: str
    topic: str
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"


def to_wire(events: Sequence[PoolEvent], block_size_tokens: int) -> list[WireEvent]:
    """Wire form of pool events; a run of stored blocks that follow each other is one event."""
    wire: list[WireEvent] = []
    last: Stored | None = None
    for event in events:
        current = wire[-1] if wire else None
        match event:
            case Stored():
                extra = [event.cache_salt] if event.cache_salt else None
                if last is not None and event.parent == last.hash and isinstance(current, BlockStored):
                    current.block_hashes.append(external_hash(event.hash))
                    current.token_ids.extend(event.token_ids)
                    current.extra_keys.append(extra)
                else:
                    parent = None if event.parent is None else external_hash(event.parent)
                    hashes, tokens = [external_hash(event.hash)], list(event.token_ids)
                    wire.append(BlockStored(hashes, parent, tokens, block_size_tokens, None, MEDIUM, None, [extra], 0))
                last = event
                continue
            case Removed():
                if isinstance(current, BlockRemoved):
                    current.block_hashes.append(external_hash(event.hash))
                else:
                    wire.append(BlockRemoved([external_hash(event.hash)], MEDIUM, 0))
            case Cleared():
                wire.append(AllBlocksCleared())
        last = None
    return wire


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Where to publish; port 0: any free one. ``replay_batches``: how many past batches are kept."""

    host: str = "127.0.0.1"
    port: int = 0
    replay_port: int = 0
    topic: str = ""
    replay_batches: int = 10_000


class EventPublisher:
    """Binds a PUB and a ROUTER socket. All methods belong on the event loop's thread."""

    def __init__(self, settings: EventSettings, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._topic = settings.topic
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=settings.replay_batches)
        self._sequence = 0
        self._context = Context()
        self._pub = self._context.socket(SocketType.PUB)
        self._pub.set_hwm(100_000)
        self._replay = AsyncContext.shadow(self._context.underlying).socket(SocketType.ROUTER)
        ports = [
            _bind(self._pub, settings.host, settings.port),
            _bind(self._replay, settings.host, settings.replay_port),
        ]
        endpoint, replay_endpoint = (f"tcp://{settings.host}:{port}" for port in ports)
        self.source = SourceCard(endpoint, replay_endpoint, self._topic)
        self._replay_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to answer replay requests."""
        self._replay_task = asyncio.create_task(self._serve_replay())

    def publish(self, events: Sequence[PoolEvent]) -> None:
        """Send one batch; never blocks."""
        wire = to_wire(events, self._block_size_tokens)
        if not wire:
            return
        payload = msgspec.msgpack.encode(PublishedBatch(time.time(), wire, 0))
        self._kept.append((self._sequence, payload))
        self._pub.send_multipart((self._topic.encode(), self._sequence.to_bytes(8, "big"), payload))
        self._sequence += 1

    async def aclose(self) -> None:
        """Close the sockets; batches that were not sent yet are dropped."""
        if self._replay_task is not None:
            self._replay_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replay_task
        self._replay.close(linger=0)
        self._pub.close(linger=0)
        self._context.term()

    async def _serve_replay(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, _, start = frames
            first = int.from_bytes(start, "big")
            topic = self._topic.encode()
            for sequence, payload in list(self._kept):
                if sequence >= first:
                    await self._replay.send_multipart([client, b"", topic, sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([client, b"", topic, END_OF_REPLAY, b""])


def _bind(socket: Any, host: str, port: int) -> int:
    socket.bind(f"tcp://{host}:{port or '*'}")
    endpoint = socket.getsockopt_string(SocketOption.LAST_ENDPOINT)
    return int(endpoint.rsplit(":", 1)[1])
