"""Canaries over real engines, their stores and the bridge."""

import pytest

from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, open_regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_real_engines_are_alike_and_mind_salts(forker: Forker) -> None:
    """A pair beside each other and a pair over the link give P's ids, and no engine or store mixes up salts."""
    async with open_regions((1, 1, 1), RELAYED, rate_mbit=100.0, kit=ForkedKit(forker)) as regions:
        await regions.gateway.canaries.check()
        sample = regions.gateway.metrics.registry.get_sample_value
        assert sample("pdd_canaries_total", {"result": "alike"}) == 2
        for result in ("different", "failed", "leak"):
            assert not sample("pdd_canaries_total", {"result": result})
        assert not any(i.fingerprint or i.leaks_salts for i in regions.gateway.pools.instances)
