"""Turns that one process has answered begin the next prompt of another."""

from array import array
from collections.abc import AsyncIterator

import pytest

from gateway.api.shared_turns import AWAY_S, RedisTurns, pack, unpack
from gateway.auth.sealed import SealedStore
from gateway.redis.client import RedisClient
from gateway.text.turns import KeptTurn, TurnMemory
from tests.gateway.api.test_stored import SECRET
from tests.valkey import make_away, open_client, run_valkey

TURN = KeptTurn(array("I", range(1000)), array("I", [7, 8, 9]), 4321, b"d" * 16, "<|im_end|>")
KEY = b"k" * 16


@pytest.fixture
async def redis() -> AsyncIterator[RedisClient]:
    async with run_valkey() as url, open_client(url) as client:
        yield client


def share(client: RedisClient, clock: list[float] | None = None) -> RedisTurns:
    """How one process shares; ``clock``: its time."""
    now = clock or [0.0]
    return RedisTurns(SealedStore(client, SECRET, "turn", 60), lambda: now[0])


@pytest.mark.slow
async def test_another_process_knows_a_turn(redis: RedisClient) -> None:
    """What is told is found elsewhere, whole, and stands in Redis for no reader."""
    one, other = share(redis), share(redis)
    one.tell(KEY, TURN)
    await one.settled()

    assert await other.find(KEY) == TURN
    assert await other.find(b"x" * 16) is None
    (name,) = [key async for key in redis.commands.scan_iter()]
    data = await redis.commands.get(name)
    assert isinstance(data, bytes) and array("I", range(20)).tobytes() not in data and KEY.hex().encode() not in name
    assert 0 < await redis.commands.ttl(name) <= 60


async def test_redis_that_is_away_is_left_alone_for_a_while() -> None:
    """A chat waits once for a Redis that does not answer, and not again before some seconds have passed."""
    clock = [100.0]
    async with make_away() as away:
        client = away.client("turn", 1.0)
        turns = share(client, clock)
        assert await turns.find(KEY) is None
        client.trouble = "asked"
        assert await turns.find(KEY) is None
        turns.tell(KEY, TURN)
        await turns.settled()
        assert client.trouble == "asked"
        clock[0] += AWAY_S
        assert await turns.find(KEY) is None
        assert client.trouble != "asked"
        await turns.aclose()


def test_what_another_release_has_packed_is_nothing() -> None:
    """A turn comes back as it was; anything else is no turn."""
    assert unpack(pack(TURN)) == TURN
    for data in (b"", b"x", pack(TURN)[:-20], b"\x95\xc4\x01a\xc4\x00\x01\xc4\x00\xa0"):
        assert unpack(data) is None
    assert TurnMemory().shared is None
