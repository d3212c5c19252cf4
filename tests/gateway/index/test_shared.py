"""The index over Redis: the common behaviour on a real server, and what several processes share."""

from collections.abc import AsyncGenerator

import pytest

from gateway.index.shared import RedisIndex
from tests.conformance.index_suite import TIMES, Changes, Clock, IndexSuite, Rig
from tests.valkey import run_valkey


@pytest.fixture
async def valkey() -> AsyncGenerator[str, None]:
    """Run a server."""
    async with run_valkey() as url:
        yield url


@pytest.mark.slow
class TestRedisIndex(IndexSuite):
    """The common behaviour."""

    @pytest.fixture
    async def rig(self, valkey: str, request: pytest.FixtureRequest) -> AsyncGenerator[Rig, None]:
        """Start an index with keys of its own."""
        changes, clock = Changes(), Clock()
        index = RedisIndex(
            valkey,
            prefix=request.node.name,
            key=b"secret",
            predicted_ttl_s=100.0,
            times=TIMES,
            now=clock,
            on_change=changes,
        )
        await index.start()
        rig = Rig(index, changes, clock)
        async with rig.resources:
            yield rig
            await index.aclose()
