"""Canaries over real engines, their stores and the bridge, and ``pdd probe``, which goes the same way."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.cli.fleet import pdd
from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, Regions, open_regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_real_engines_are_alike_and_mind_salts(
    forker: Forker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair beside each other and a pair over the link give P's ids, and no engine or store mixes up salts."""
    async with open_regions((1, 1, 1), RELAYED, rate_mbit=100.0, kit=ForkedKit(forker)) as regions:
        await regions.gateway.canaries.check()
        sample = regions.gateway.metrics.registry.get_sample_value
        assert sample("pdd_canaries_total", {"result": "alike"}) == 2
        for result in ("different", "failed", "leak", "odd_keys"):
            assert not sample("pdd_canaries_total", {"result": result})
        assert not any(i.fingerprint or i.leaks_salts for i in regions.gateway.pools.instances)
        assert regions.gateway.status.find_degraded() == []
        await probes_tell_what_is_there(regions, tmp_path / "gateway.yaml", capsys)


async def probes_tell_what_is_there(regions: Regions, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pdd probe` reads both stores and has KV cross; where the settings are wrong it says both values and fails."""
    settings = regions.cluster.settings("127.0.0.1:0")

    async def probe(status: int, *options: str, **link: Any) -> str:
        document = settings | {"links": [settings["links"][0] | link]}
        await asyncio.to_thread(config.write_text, yaml.safe_dump(document))
        capsys.readouterr()
        assert await pdd("probe", "--config", config, *options) == status
        return capsys.readouterr().out

    (found,) = json.loads(await probe(0, "--json"))
    assert (found["link"], found["prefill"], found["main"], found["faults"]) == ("a->b", "p1", "md1", [])
    for side in ("prefill_stores", "main_stores"):
        assert found[side]["origin"] == {"dialect": "lmcache", "chunk_tokens": 64, "hash_seed": None}
        assert (found[side]["model"], found[side]["dtype"], found[side]["is_salted"]) == ("demo", "float", True)
    assert "md1 went on behind it" in found["notes"][0]
    text = await probe(1, chunk_tokens=128, dtype="bfloat16")
    for side in ("p1", "md1"):
        assert f"FAULT: {side} stores chunks of 64 tokens, the link says 128" in text
        assert f"FAULT: {side} stores KV of dtype float, the link says bfloat16" in text
