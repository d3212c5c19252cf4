"""Tests of the adapter that ties an engine to its LMCache server, over fakes of both."""

from collections.abc import AsyncIterator

import pytest

from backends.engines.cache_bound import CacheBoundEngine
from backends.engines.vllm import VllmEngine
from backends.errors import BackendError, EngineBroken, EngineUnavailable
from backends.kv.lmcache import CacheServer
from tests.conformance.engine_suite import EngineCase, EngineSuite
from tests.fakes.cache_server import FakeCacheServer
from tests.fakes.engine import FakeEngine


@pytest.fixture
async def server() -> AsyncIterator[FakeCacheServer]:
    """A running LMCache server that knows one engine."""
    async with FakeCacheServer() as server:
        yield server


@pytest.fixture
async def engine(fake: FakeEngine, server: FakeCacheServer) -> AsyncIterator[CacheBoundEngine]:
    """The adapter over an adapter over the fakes."""
    bound = CacheBoundEngine(VllmEngine("e-1", fake.url), CacheServer(server.url))
    yield bound
    await bound.aclose()


class TestConformance(EngineSuite):
    """``CacheBoundEngine`` conforms."""

    @pytest.fixture
    async def case(self, fake: FakeEngine, server: FakeCacheServer) -> AsyncIterator[EngineCase]:
        """The adapter over an adapter over the fake."""
        gone = FakeEngine()
        async with gone:
            unreachable = CacheBoundEngine(VllmEngine("gone", gone.url), CacheServer(server.url))
        engine = CacheBoundEngine(VllmEngine("e-1", fake.url), CacheServer(server.url))
        yield EngineCase(engine, unreachable, "demo", tuple(range(20, 40)), fake.max_model_len)
        await engine.aclose()


async def test_engine_is_out_while_its_server_is_away(engine: CacheBoundEngine, server: FakeCacheServer) -> None:
    """A server that does not answer makes the engine unavailable; once it answers as before, the engine is back."""
    await engine.probe()
    await server.stop()
    for ask in (engine.load, engine.probe):
        with pytest.raises(EngineUnavailable):
            await ask()
    await server.start()
    await engine.load()


async def test_engine_is_out_until_a_restarted_server_knows_it(
    engine: CacheBoundEngine, server: FakeCacheServer
) -> None:
    """A server that restarts knows no engine; when the engine has registered again, it is back."""
    await engine.probe()
    server.incarnation, server.engines = 2, 0
    with pytest.raises(EngineUnavailable, match="knows no engine"):
        await engine.load()
    server.engines = 1
    await engine.load()


async def test_engine_that_was_not_told_of_the_restart_is_out_until_it_restarts(
    fake: FakeEngine, server: FakeCacheServer
) -> None:
    """Of two engines on a server that restarted only one came back: neither is used until it restarts, or both came."""
    shared = CacheServer(server.url)
    one, other = (CacheBoundEngine(VllmEngine(id_, fake.url), shared) for id_ in ("e-1", "e-2"))
    server.engines = 2
    await one.probe()
    await other.probe()
    server.incarnation, server.engines = 2, 1
    with pytest.raises(EngineUnavailable, match="restart the engine"):
        await one.load()
    fake.boot_time += 60
    await one.probe()
    server.engines = 2
    await other.load()
    await one.aclose()
    await other.aclose()


async def test_engine_is_out_when_the_server_knew_none_from_the_start(
    engine: CacheBoundEngine, server: FakeCacheServer
) -> None:
    """A gateway that starts after the server's restart does not trust the engine either."""
    server.engines = 0
    with pytest.raises(EngineUnavailable):
        await engine.probe()


@pytest.mark.parametrize("status", [b"", b"[]", b"{}", b'{"kv_events": {}}', b'{"kv_events": {"incarnation": "x"}}'])
async def test_answers_that_are_no_status(engine: CacheBoundEngine, server: FakeCacheServer, status: bytes) -> None:
    """Whatever answers instead of an LMCache server raises EngineBroken."""
    server.status = status
    with pytest.raises(EngineBroken, match="malformed"):
        await engine.probe()


async def test_server_that_fails_is_away(engine: CacheBoundEngine, server: FakeCacheServer) -> None:
    """An error status counts like no answer."""
    server.overrides = {"GET /status": (503, {"error": "engine not initialized"})}
    with pytest.raises(BackendError, match="503"):
        await engine.probe()
