"""An engine with two data-parallel ranks, from what it tells at its probe to the legs that it gets."""

import asyncio
from pathlib import Path

import httpx

from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.conformance.index_suite import Changes
from tests.fakes.engine import FakeEngine
from tests.fakes.memory_index import MemoryIndex
from tests.fakes.server import AppServer
from tests.gateway.index.publisher import Publisher, run_publisher, stored
from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]

PROMPT = list(range(3, 103))


def tell(ranks: list[Publisher]) -> dict[str, dict[str, str | None]]:
    """What vLLM says of its ranks' events."""
    return {
        str(number): {"endpoint": rank.source.endpoint, "replay_endpoint": rank.source.replay_endpoint}
        for number, rank in enumerate(ranks)
    }


async def test_prompt_goes_to_the_rank_that_holds_it(model_dir: Path, shared_redis: SharedRedis) -> None:
    """The gateway follows every source that the engine tells; the legs name the rank whose events had the prompt."""
    changes = Changes()
    async with run_publisher() as first, run_publisher(rank=1) as second:
        await second.publish(stored(range(1, 7), PROMPT[:96]), lost=True)
        async with (
            FakeEngine("p1", served_model="tiny") as prefill,
            FakeEngine("md1", served_model="tiny", event_sources=tell([first, second])) as main,
        ):
            engine = {"model": "tiny", "region": "a"}
            settings = {
                "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
                "engines": [
                    engine | {"id": "p1", "role": "P", "url": prefill.url},
                    engine | {"id": "md1", "role": "MD", "url": main.url, "kv_events": "auto"},
                ],
                "canary_interval_s": 0,
            }
            index = MemoryIndex(on_change=changes)
            gateway = await asyncio.to_thread(Gateway, parse_settings(settings), index, shared_redis, True)
            server = AppServer(gateway.app)
            async with gateway:
                await server.start()
                await changes.until(lambda: index.lookup("tiny", PROMPT)["md1"].tokens == 96)
                async with httpx.AsyncClient(base_url=server.url) as client:
                    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
                    assert (await client.post("/v1/completions", json=body)).status_code == 200
                await server.stop()
            assert [call.headers.get("x-data-parallel-rank") for call in main.calls] == ["1"]
            assert not any("x-data-parallel-rank" in call.headers for call in prefill.calls)
