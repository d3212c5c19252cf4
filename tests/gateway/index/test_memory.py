"""The index without Redis."""

from collections.abc import AsyncGenerator

import pytest

from tests.conformance.index_suite import TIMES, Changes, Clock, IndexSuite, Rig
from tests.fakes.memory_index import MemoryIndex


class TestMemoryIndex(IndexSuite):
    """The common behaviour."""

    @pytest.fixture
    async def rig(self) -> AsyncGenerator[Rig, None]:
        """Start a memory index."""
        changes, clock = Changes(), Clock()
        index = MemoryIndex(key=b"secret", predicted_ttl_s=100.0, times=TIMES, now=clock, on_change=changes)
        await index.start()
        rig = Rig(index, changes, clock)
        async with rig.resources:
            yield rig
            await index.aclose()
