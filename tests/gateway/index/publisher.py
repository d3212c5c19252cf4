"""A publisher that speaks the engines' event protocol: a PUB socket, and a ROUTER socket that replays."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from zmq.asyncio import Context, Socket
from zmq.constants import SocketOption, SocketType

from backends.kv.subscriber import EventSource

Event = dict[str, Any]


def stored(hashes: Sequence[int], token_ids: Sequence[int], parent: int | None = None, **fields: Any) -> Event:
    """Make a BlockStored event; the block size follows from the lengths."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(token_ids),
        "block_size": len(token_ids) // len(hashes),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(hashes: Sequence[int], **fields: Any) -> Event:
    """Make a BlockRemoved event."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **fields}


CLEARED: Event = {"type": "AllBlocksCleared"}


def encode_batch(events: Sequence[object], rank: int = 0, time_s: float = 1.0) -> bytes:
    """Encode a batch as engines do."""
    return msgspec.msgpack.encode([time_s, list(events), rank])


class Publisher:
    """One rank of an engine process. ``restart()`` begins a new process on the same addresses."""

    def __init__(self, pub: Socket, router: Socket | None, source: EventSource, buffer_steps: int, rank: int) -> None:
        self._pub = pub
        self._router = router
        self.source = source
        self.rank = rank
        self.replays = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._sequence = 0

    async def publish(self, *events: object, lost: bool = False) -> None:
        """Send a batch; ``lost``: it only gets into the replay buffer."""
        payload = encode_batch(events, self.rank)
        sequence = self._sequence
        self._sequence += 1
        self._buffer.append((sequence, payload))
        if not lost:
            await self.send_raw(b"", sequence.to_bytes(8, "big"), payload)

    async def wait_for_subscriber(self) -> None:
        """Wait until one more subscription has arrived, so that the next message reaches it."""
        await self._pub.recv()

    async def send_raw(self, *frames: bytes) -> None:
        """Send any frames at all."""
        await self._pub.send_multipart(list(frames))

    def restart(self) -> None:
        """Forget everything and count from 0 again."""
        self._buffer.clear()
        self._sequence = 0

    async def serve_replays(self) -> None:
        """Answer replay requests until cancelled."""
        assert self._router is not None
        while True:
            client, _, start = await self._router.recv_multipart()
            self.replays += 1
            for sequence, payload in list(self._buffer):
                if sequence >= int.from_bytes(start, "big"):
                    await self._router.send_multipart([client, b"", b"", sequence.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", b"", b"\xff" * 8, b""])


@asynccontextmanager
async def run_publisher(
    *, buffer_steps: int = 10_000, replay: bool = True, rank: int = 0
) -> AsyncGenerator[Publisher, None]:
    """Run a publisher on free loopback ports."""
    context = Context()
    pub = context.socket(SocketType.XPUB)
    pub.setsockopt(SocketOption.XPUB_VERBOSE, 1)
    pub.bind("tcp://127.0.0.1:0")
    router = context.socket(SocketType.ROUTER) if replay else None
    endpoint = pub.getsockopt(SocketOption.LAST_ENDPOINT).rstrip(b"\0").decode()
    replay_endpoint = None
    if router is not None:
        router.bind("tcp://127.0.0.1:0")
        replay_endpoint = router.getsockopt(SocketOption.LAST_ENDPOINT).rstrip(b"\0").decode()
    publisher = Publisher(pub, router, EventSource(endpoint, replay_endpoint), buffer_steps, rank)
    replays = asyncio.create_task(publisher.serve_replays()) if router is not None else None
    try:
        yield publisher
    finally:
        if replays is not None:
            replays.cancel()
            await asyncio.gather(replays, return_exceptions=True)
        context.destroy(linger=0)
