"""What most tests of adapters run against."""

from collections.abc import AsyncIterator

import pytest

from backends.engines.vllm import VllmEngine
from tests.fakes.engine import FakeEngine


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    """A running fake engine."""
    async with FakeEngine() as engine:
        yield engine


@pytest.fixture
async def engine(fake: FakeEngine) -> AsyncIterator[VllmEngine]:
    """The adapter under test, over the fake."""
    adapter = VllmEngine("e-1", fake.url)
    yield adapter
    await adapter.aclose()
