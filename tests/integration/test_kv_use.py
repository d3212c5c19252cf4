"""KV that crosses and cannot be used, with real engines: the cause is named soon, and answers stay exact."""

import logging
import time

import pytest

from gateway.demo.cluster import MODEL
from gateway.fleet.kv_trust import STRIKES
from tests.integration.forks import ForkedKit, Forker
from tests.integration.kv_faults import FAULTS, FaultyKit, measure
from tests.integration.regions import RELAYED, Asked, Regions, eventually, open_regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORDS, TOKENS = 300, 300
NAMED_WITHIN_S = 10.0


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
    kit = FaultyKit(forker, FAULTS["chunk_size"])
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

        kit.fault = None
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


@pytest.mark.parametrize("fault", ["dtype", "salt"])
async def test_a_fault_is_named_by_canaries_and_heals(forker: Forker, fault: str) -> None:
    """POL-102: with canaries the cause is at /ready within seconds, no KV crosses in vain, and KV crosses once mended.

    `make kv-faults` does this for all faults and tells the times.
    """
    figures = await measure(forker, FAULTS[fault])
    assert figures["named_in_s"] is not None and figures["healed_s"] is not None, figures
    assert figures["tokens_identical"], figures
    assert all(plan.startswith("passthrough/") for plan in figures["plans"]), figures
