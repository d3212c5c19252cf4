"""Real processes shared by the tests of this folder: starting them takes longer than any test."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, Regions, open_regions


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def regions(forker: Forker) -> AsyncIterator[Regions]:
    """One P, two RLD, two MD, whole again before each test uses them through ``whole``."""
    async with open_regions((1, 2, 2), RELAYED, kit=ForkedKit(forker)) as regions:
        yield regions


@pytest_asyncio.fixture(loop_scope="session")
async def whole(regions: Regions) -> Regions:
    """The regions with everything running and the relay's rules in force."""
    await regions.healed()
    regions.use(RELAYED)
    return regions
