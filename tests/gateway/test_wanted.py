"""What autoscalers are told, on a whole gateway's page of metrics."""

from dataclasses import replace
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.redis.client import SharedRedis
from policies.valley import PrefillCurve
from tests.fakes.engine import FakeEngine
from tests.gateway.model_dir import model_dir
from tests.gateway.whole import MODEL, open_whole

__all__ = ["model_dir"]


async def read_wanted(client: httpx.AsyncClient) -> dict[str, float]:
    """Instances wanted of the model, by role."""
    page = (await client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {
        sample.labels["role"]: sample.value
        for sample in samples
        if sample.name == "pdd_wanted_instances" and sample.labels["model"] == MODEL
    }


async def test_the_page_tells_how_many_are_wanted(model_dir: Path, shared_redis: SharedRedis) -> None:
    """MD is wanted by what runs there, P by what its requests take of its measured time."""
    engines = {role: FakeEngine(role, served_model=MODEL) for role in ("P", "MD")}
    async with open_whole(model_dir, shared_redis, engines) as whole:
        (prefill,) = (one for one in whole.gateway.pools.instances if one.spec.role == "P")
        prefill.spec = replace(prefill.spec, curve=PrefillCurve((1, 1000), (60.0, 60.0)))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 4}
        assert (await whole.client.post("/v1/chat/completions", json=body)).status_code == 200
        wanted = await read_wanted(whole.client)
        assert wanted["P"] > 1.0
        assert wanted["MD"] == 0.0
