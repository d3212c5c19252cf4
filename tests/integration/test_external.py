"""A gateway whose only way to answer is a provider behind the real LiteLLM."""

import asyncio
from pathlib import Path

import openai
import orjson
import pytest

from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.fakes.index import KnownIndex
from tests.fakes.server import AppServer
from tests.fakes.upstream import SSE, FakeUpstream, Say
from tests.gateway.model_dir import make_model_dir

# LiteLLM's own warnings are not ours to mend.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.filterwarnings("default")]


def event(**fields: object) -> bytes:
    """An event with the fields that every chunk has."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
    return b"data: " + orjson.dumps(head | fields) + b"\n\n"


def choice(text: str, finish: str | None = None) -> dict[str, object]:
    """A choice of a chunk."""
    return {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}


async def test_a_chat_without_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_redis: SharedRedis
) -> None:
    """openai-python gets the provider's answer, streamed, under the model's own name; its price is counted."""
    monkeypatch.setenv("PROVIDER_KEY", "provider-secret")
    usage = {"prompt_tokens": 1000, "completion_tokens": 2, "total_tokens": 1002}
    events = (event(choices=[choice("Hel")]), event(choices=[choice("lo", "stop")]), event(choices=[], usage=usage))
    async with FakeUpstream() as provider:
        provider.say = Say((*events, b"data: [DONE]\n\n"), headers=SSE)
        settings = parse_settings(
            {
                "models": [{"name": "tiny", "path": str(make_model_dir(tmp_path / "model")), "kv_bytes_per_token": 1}],
                "engines": [{"id": "p", "role": "P", "model": "tiny", "region": "a", "url": "http://127.0.0.1:9"}],
                "external": [
                    {"model": "openai/gpt-4o-mini", "api_base": f"{provider.url}/v1", "api_key_env": "PROVIDER_KEY"}
                ],
                "rules": {"overflow": {"model": "openai/gpt-4o-mini"}},
            }
        )
        async with (
            await asyncio.to_thread(Gateway, settings, KnownIndex({}), shared_redis) as gateway,
            AppServer(gateway.app) as server,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
        ):
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "Hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        cost = gateway.metrics.registry.get_sample_value("pdd_external_cost_usd_total", {"model": "openai/gpt-4o-mini"})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello"
    assert {chunk.model for chunk in chunks} == {"tiny"}
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens == 1000
    assert cost is not None and 0 < cost < 0.01
    assert provider.asked[0].header("authorization") == "Bearer provider-secret"
