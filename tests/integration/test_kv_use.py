"""KV that crosses and cannot be used, with real engines: the cause is named soon, and answers stay exact."""

import logging
import time

import pytest

from gateway.demo.cluster import KV_CHUNK_TOKENS, MODEL, Cluster, region_of
from gateway.fleet.kv_trust import STRIKES
from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, Asked, Regions, eventually, open_regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORDS, TOKENS = 300, 300
NAMED_WITHIN_S = 10.0


class OddKit(ForkedKit):
    """Engines of region B store and look for KV in chunks of another size, until they are mended."""

    is_mended = False

    def arguments(self, cluster: Cluster, name: str, listen: str) -> list[str]:
        """See ``ReferenceKit``."""
        arguments = super().arguments(cluster, name, listen)
        if region_of(name) == "b" and not self.is_mended:
            arguments[arguments.index("--kv-chunk") + 1] = str(2 * KV_CHUNK_TOKENS)
        return arguments


async def ask_exactly(regions: Regions) -> Asked:
    """Ask, and compare with what one engine says."""
    with regions.relay_kept_to(TOKENS // 2, of=TOKENS):
        async with regions.ask(WORDS, TOKENS) as asked:
            await asked.read()
    assert asked.done and asked.error is None
    assert asked.ids == await regions.alone(asked, TOKENS)
    return asked


async def test_a_wrong_chunk_size_at_main_is_named(forker: Forker, caplog: pytest.LogCaptureFixture) -> None:
    """POL-102: both numbers are logged within seconds, MD then computes prompts, and a restart in order heals it."""
    kit = OddKit(forker)
    async with open_regions((1, 1, 1), RELAYED, rate_mbit=100.0, kit=kit) as regions:
        begun_s = time.monotonic()
        with caplog.at_level(logging.WARNING):
            first = await ask_exactly(regions)
        assert time.monotonic() - begun_s < NAMED_WITHIN_S
        assert first.roles[-1] == "MD"
        (line,) = [one.message for one in caplog.records if one.name == "gateway.fleet.kv_trust"]
        for words in ("a->b", "demo", "md1 took 0 prompt tokens", "chunk size"):
            assert words in line
        for _ in range(STRIKES - 1):
            await ask_exactly(regions)
        assert regions.gateway.status.find_missing() == []
        assert "is not used" in (await regions.client.get(f"{regions.base_url}/ready")).json()["degraded"][0]
        page = (await regions.client.get(f"{regions.base_url}/metrics")).text
        assert 'pdd_link_trusted{link="a->b",model="demo"} 0.0' in page
        assert set((await ask_exactly(regions)).roles) == {"MD"}
        assert regions.newest_timeline()["reason"] == "kv_unread"

        kit.is_mended = True
        regions.cluster.children["md1"].kill()
        await regions.restart("md1")
        await regions.healed()

        async def is_tried() -> bool:
            return regions.gateway.trust.believes(("a", "b"), MODEL)

        assert await eventually(is_tried, 20)
        healed = await ask_exactly(regions)
        assert healed.roles[0] == "P" and healed.roles[-1] == "MD"
        assert regions.gateway.status.find_degraded() == []


async def test_wrong_keys_are_named(forker: Forker, caplog: pytest.LogCaptureFixture) -> None:
    """POL-102: with another model name in the keys nothing ever crosses: that is said, and MD ends the answer."""
    kit = ForkedKit(forker)
    kit.kv_name = "another"
    rules = RELAYED | {"relay": RELAYED["relay"] | {"kv_first_chunk_s": 0.5}}
    async with open_regions((1, 1, 1), rules, rate_mbit=100.0, kit=kit) as regions:
        with caplog.at_level(logging.WARNING):
            asked = await ask_exactly(regions)
        assert asked.roles[-1] == "MD"
        (line,) = [one.message for one in caplog.records if one.name == "gateway.fleet.kv_trust"]
        assert "model name another" in line
