"""A gateway before SGLang engines alone, single and as a pair: ready without a prefill instance, and answering."""

import asyncio
from pathlib import Path

import httpx

from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.fakes.index import KnownIndex
from tests.fakes.script import continuation
from tests.fakes.server import AppServer
from tests.fakes.sglang import FakeSglang
from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]


async def test_main_decode_alone_serves(model_dir: Path, shared_redis: SharedRedis) -> None:
    """Each answer is one engine's, its ids as that engine made them, and a pair is asked as one."""
    async with FakeSglang() as single, FakeSglang(mode="prefill") as prefill, FakeSglang(mode="decode") as decode:
        single.served_model = prefill.served_model = decode.served_model = "tiny"
        engine = {"role": "MD", "model": "tiny", "region": "a", "kind": "sglang"}
        options = {"prefill": {"url": prefill.url}}
        settings = parse_settings(
            {
                "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
                "engines": [
                    engine | {"id": "md1", "url": single.url},
                    engine | {"id": "md2", "url": decode.url, "options": options},
                ],
                "canary_interval_s": 0,
            }
        )
        async with (
            await asyncio.to_thread(Gateway, settings, KnownIndex({}), shared_redis) as gateway,
            AppServer(gateway.app) as server,
            httpx.AsyncClient(base_url=server.url, timeout=10) as client,
        ):
            assert gateway.status.find_missing() == []
            asked = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True}
            answers = [await client.post("/v1/completions", json=asked) for _ in range(8)]
            for instance in gateway.pools.instances:
                instance.draining = True
            assert (await client.get("/ready")).status_code == 503
    for answer in answers:
        assert answer.headers["x-pdd-plan"] == "passthrough"
        assert answer.json()["choices"][0]["token_ids"] == continuation([5, 6, 7], 4)
    assert len(single.bodies) + len(decode.bodies) >= 8
    assert decode.bodies == prefill.bodies
