import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from zmq.asyncio import Context
from zmq.constants import SocketType

from backends.engines.reference.blocks import BlockHash, Cleared, PoolEvent, Removed, Stored, external_hash
from backends.engines.reference.events import EventPublisher, EventSettings, to_wire

A, B, C = (BlockHash(bytes([value]) * 16) for value in (1, 2, 3))
EVENTS: list[PoolEvent] = [
    Stored(A, None, (1, 2), "tenant"),
    Stored(B, A, (3, 4), None),
    Removed(B),
    Removed(C),
    Cleared(),
    Stored(C, B, (5, 6), None),
]


@pytest.fixture
async def publisher() -> AsyncIterator[EventPublisher]:
    """A publisher on free ports that keeps two batches."""
    made = EventPublisher(EventSettings(replay_batches=2), 2)
    made.start()
    yield made
    await made.aclose()


def test_wire_form_is_vllms() -> None:
    """Tagged maps; runs of children are one event; the salt is in the first block's extra keys only."""
    wire = msgspec.to_builtins(to_wire(EVENTS, 2))
    assert wire[0] == {
        "type": "BlockStored",
        "block_hashes": [external_hash(A), external_hash(B)],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["tenant"], None],
        "group_idx": 0,
    }
    assert wire[1]["type"] == "BlockRemoved" and wire[1]["block_hashes"] == [external_hash(B), external_hash(C)]
    assert wire[2] == {"type": "AllBlocksCleared"}
    assert wire[3]["parent_block_hash"] == external_hash(B)


async def ask_replay(publisher: EventPublisher, start: int) -> list[tuple[int, bytes]]:
    """All batches that the publisher replays from ``start`` on."""
    with Context() as context, context.socket(SocketType.DEALER) as dealer:
        dealer.connect(publisher.source.replay_endpoint)
        await dealer.send_multipart([b"", b"short"])
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        batches: list[tuple[int, bytes]] = []
        async with asyncio.timeout(5):
            while True:
                empty, topic, sequence, payload = await dealer.recv_multipart()
                assert (empty, topic) == (b"", b"")
                number = int.from_bytes(sequence, "big", signed=True)
                if number == -1:
                    return batches
                batches.append((number, payload))


async def test_batches_are_numbered_and_decode(publisher: EventPublisher) -> None:
    """A subscriber gets topic, sequence and ``[timestamp, events, rank]``; empty batches are not sent."""
    with Context() as context, context.socket(SocketType.XSUB) as subscriber:
        subscriber.connect(publisher.source.endpoint)
        await subscriber.send(b"\x01")
        received: list[list[bytes]] = []
        async with asyncio.timeout(5):
            while not received:
                publisher.publish(EVENTS)
                publisher.publish([])
                if await subscriber.poll(20):
                    received.append(await subscriber.recv_multipart())
    topic, sequence, payload = received[0]
    stamp, events, rank = msgspec.msgpack.decode(payload)
    assert topic == b"" and len(sequence) == 8 and isinstance(stamp, float)
    assert [event["type"] for event in events] == ["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockStored"]
    assert rank == 0


async def test_replay_gives_what_is_kept_and_says_where_it_ends(publisher: EventPublisher) -> None:
    """The oldest of three batches is gone; a malformed request is ignored."""
    for _ in range(3):
        publisher.publish(EVENTS)
    assert [number for number, _ in await ask_replay(publisher, 0)] == [1, 2]
    assert [number for number, _ in await ask_replay(publisher, 2)] == [2]
    assert await ask_replay(publisher, 3) == []
