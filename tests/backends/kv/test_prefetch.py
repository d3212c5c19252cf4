"""Tests of the KV path through LMCache's prefetch API, over a fake LMCache server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from backends.errors import BackendError, TransferFailed
from backends.kv.lmcache import CacheServer
from backends.kv.prefetch import PrefetchPace, PrefetchPath
from backends.types import TransferProgress, TransferRequest
from tests.conformance.kv_path_suite import KvPathCase, KvPathSuite, read
from tests.fakes.cache_server import FakeCacheServer

CHUNK_TOKENS = 16
QUICK = PrefetchPace(slice_chunks=2, poll_interval_s=0.001, again_interval_s=0.001)


def request(chunks: int, salt: str | None = None) -> TransferRequest:
    """A prompt of some chunks and a rest."""
    prompt = list(range(chunks * CHUNK_TOKENS + 5))
    return TransferRequest(
        "t", "lmcache-mp", "kv-name", prompt, CHUNK_TOKENS, salt, kv_bytes_per_token=10, world_size=2
    )


@pytest.fixture
async def server() -> AsyncIterator[FakeCacheServer]:
    """A running LMCache server."""
    async with FakeCacheServer(chunk_tokens=CHUNK_TOKENS) as server:
        yield server


@pytest.fixture
async def path(server: FakeCacheServer) -> AsyncIterator[PrefetchPath]:
    """The path under test."""
    path = PrefetchPath(CacheServer(server.url), pace=QUICK)
    yield path
    await path.aclose()


class TestConformance(KvPathSuite):
    """``PrefetchPath`` conforms."""

    @pytest.fixture
    async def case(self, server: FakeCacheServer, path: PrefetchPath) -> KvPathCase:
        """KV that is withheld is not in the server's L2 yet."""
        async with FakeCacheServer() as away:
            gone = PrefetchPath(CacheServer(away.url), pace=QUICK)
        seeds = count()

        async def ask(chunks: int) -> TransferRequest:
            prompt = [next(seeds)] * (chunks * CHUNK_TOKENS + 3)
            return TransferRequest("t", "lmcache-mp", "m", prompt, CHUNK_TOKENS)

        def withhold() -> None:
            server.stored = 0

        async def provide() -> None:
            server.stored = 1_000_000

        async def idle() -> None:
            asked = len(server.prefetches)
            await path.link()
            assert len(server.prefetches) <= asked + 1

        return KvPathCase(path, gone, ask, withhold, provide, idle)


async def test_a_prompt_is_asked_for_in_growing_prefixes(server: FakeCacheServer, path: PrefetchPath) -> None:
    """Each slice is the prompt from its start, as chunk keys are chained; the rest after the last chunk is left out."""
    seen = await read(path, request(5, salt="s"))
    assert server.asked_tokens == [32, 64, 80]
    assert server.prefetches[0].body == {
        "model_name": "kv-name",
        "world_size": 2,
        "token_ids": list(range(32)),
        "cache_salt": "s",
    }
    assert seen[1:] == [
        TransferProgress("moving", 5, 2, 0, 320),
        TransferProgress("moving", 5, 4, 0, 640),
        TransferProgress("complete", 5, 5, 0, 800),
    ]


async def test_long_prompts_have_larger_slices(server: FakeCacheServer) -> None:
    """However long the prompt, it is asked for in no more than a bounded number of slices."""
    path = PrefetchPath(CacheServer(server.url), pace=PrefetchPace(2, most_slices=3, poll_interval_s=0.001))
    seen = await read(path, request(10))
    assert server.asked_tokens == [64, 128, 160] and seen[-1].chunks_done == 10
    await path.aclose()


async def test_stopping_asks_for_no_more_slices(server: FakeCacheServer, path: PrefetchPath) -> None:
    """A transfer that is closed after its first slice leaves the others alone."""
    async with aclosing(path.transfer(request(9))) as stream:
        async for progress in stream:
            if progress.chunks_done:
                break
    assert server.asked_tokens == [32]


async def test_kv_that_p_has_not_stored_is_asked_for_again(server: FakeCacheServer, path: PrefetchPath) -> None:
    """A slice that the server finds only in part is asked for until it is whole; no later one is tried before."""
    server.stored = 3
    reading = asyncio.create_task(read(path, request(6)))
    await server.prefetched(4)
    assert server.asked_tokens[:4] == [32, 64, 64, 64]
    server.stored = 6
    assert (await reading)[-1].state == "complete"


async def test_pending_prefetches_are_polled(server: FakeCacheServer) -> None:
    """While a prefetch is pending no other slice is asked for, and the queue holds what is left."""
    server.is_pending = True
    path = PrefetchPath(CacheServer(server.url), pace=QUICK)
    reading = asyncio.create_task(read(path, request(4)))
    await server.polled(3)
    assert server.asked_tokens == [32]
    assert (await path.link()).queued_bytes == 640
    server.is_pending = False
    assert (await reading)[-1].state == "complete"
    await path.aclose()


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("POST /cache/prefetches", (503, {"detail": "no layout registered"})),
        ("POST /cache/prefetches", (202, b"nonsense")),
        ("POST /cache/prefetches", (202, {"request_id": 7})),
        ("GET", (404, {"detail": "unknown prefetch"})),
        ("GET", (200, {"found_keys": 1})),
    ],
)
async def test_a_server_that_refuses_fails_the_transfer(
    server: FakeCacheServer, path: PrefetchPath, call: str, answer: tuple[int, Any]
) -> None:
    """Whatever the server says that is no progress raises TransferFailed."""
    server.overrides = {call: answer}
    with pytest.raises(TransferFailed):
        await read(path, request(2))


async def test_link_of_a_server_that_is_away(server: FakeCacheServer, path: PrefetchPath) -> None:
    """The link counts as down while the server does not answer."""
    assert (await path.link()).up
    await server.stop()
    with pytest.raises(BackendError):
        await path.link()
