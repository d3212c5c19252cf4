"""What holds for every test: nothing blocks the event loop, and a busy machine is no failure."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from backends.transport.valkey import EmbeddedValkey
from gateway.redis.client import SharedRedis
from tests.integration.forks import Forker, open_forker
from tests.valkey import open_empty

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def unblocked_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fast test fails when something blocks its event loop; slow ones start processes, which does."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    with blockbuster_ctx() as guard:
        for name in ("os.stat", "os.scandir", "os.listdir", "io.TextIOWrapper.read"):
            # redis-py looks up its own version once, on the first connection.
            guard.functions[name].can_block_in("redis/utils.py", "get_lib_version")
        yield


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """One server for all tests that need nothing but an empty one."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server = EmbeddedValkey()
        runner.run(server.start())
        yield server.url
        runner.run(server.stop())


@pytest.fixture
async def shared_redis(valkey_url: str) -> AsyncIterator[SharedRedis]:
    """An empty Redis, as a process reaches it."""
    async with open_empty(valkey_url) as shared:
        yield shared


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """What engines are forked from."""
    with open_forker() as forker:
        yield forker
