"""Region pinning over real engines and a shaped link, by counting what crosses."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.cli.fleet import pdd
from tests.integration.regions import ANSWER_TOKENS, RELAYED, Regions
from tests.integration.test_explain import PING_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


async def test_pinned_tenant_sends_nothing_over_the_link(whole: Regions, tmp_path: Path) -> None:
    """A tenant pinned to region a by `pdd rules` gets the exact answer, and no byte of KV crosses the link for it; the
    same request of one that is not pinned sends KV.
    """
    wan_bytes = whole.gateway.metrics.registry.get_sample_value

    async def put(**body: Any) -> None:
        path = tmp_path / "rules.yaml"
        await asyncio.to_thread(path.write_text, yaml.safe_dump(body))
        assert await pdd("rules", "set", path, "--redis", whole.cluster.redis_url, "--wait") == 0

    async def ask(relay_tokens: int) -> tuple[set[str], int, float]:
        before = await whole.cluster.store_bytes(), wan_bytes("pdd_wan_bytes_total", {"model": "demo"}) or 0.0
        with whole.relay_kept_to(relay_tokens, of=ANSWER_TOKENS):
            async with whole.ask() as asked:
                await asked.read()
        assert asked.error is None and asked.ids == await whole.alone(asked)
        await whole.gateway.aligner.drained()
        after = await whole.cluster.store_bytes(), wan_bytes("pdd_wan_bytes_total", {"model": "demo"}) or 0.0
        return set(asked.roles), after[0] - before[0], after[1] - before[1]

    await put(**RELAYED)
    try:
        roles, crossed, counted = await ask(ANSWER_TOKENS // 2)
        assert roles == {"P", "RLD", "MD"} and crossed > 100_000 and counted > 100_000
        await put(**RELAYED, regions=["a"])
        roles, crossed, counted = await ask(ANSWER_TOKENS)
        assert roles == {"P", "RLD"} and counted == 0 and crossed < PING_BYTES
        assert whole.newest_timeline()["reason"] == "region_pinned"
    finally:
        assert await pdd("rules", "delete", "--redis", whole.cluster.redis_url, "--wait") == 0
