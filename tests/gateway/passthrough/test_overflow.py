"""External providers answer chats when the rules say so, in the gateway's own wire shape."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.engines.external import ExternalModel
from backends.errors import BackendError, EngineFailed, EngineRejected, EngineTimeout, EngineUnavailable
from gateway.app import Gateway
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from policies.rules import parse_rules
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.index import KnownIndex
from tests.fakes.provider import SPOKEN, FakeProvider
from tests.fakes.server import AppServer
from tests.gateway.model_dir import model_dir
from tests.valkey import make_away

__all__ = ["model_dir"]

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5, "max_tokens": 3}
MODEL = ExternalModel("openai/gpt", "http://provider.invalid", "provider-secret", 7.0)


@dataclass(frozen=True, slots=True)
class Rig:
    """A gateway with a provider beside its two engines."""

    gateway: Gateway
    server: AppServer
    client: httpx.AsyncClient
    provider: FakeProvider
    engines: list[FakeEngine]

    def rule(self, overflow: dict[str, Any], **rules: Any) -> None:
        """Put rules in force."""
        self.gateway.rulebook.replace(parse_rules({"overflow": overflow} | rules))

    async def lose_engines(self) -> None:
        """Nothing can take a request any more."""
        for engine in self.engines:
            await engine.stop()
        for instance in self.gateway.pools.instances:
            instance.reachable = False

    async def ask(self, **fields: Any) -> httpx.Response:
        """Post a chat."""
        return await self.client.post("/v1/chat/completions", json=CHAT | fields)

    def counted(self, name: str, **labels: str) -> float:
        """Value of one of the gateway's metrics."""
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def rig(model_dir: Path, monkeypatch: pytest.MonkeyPatch, shared_redis: SharedRedis) -> AsyncIterator[Rig]:
    """Everything, up."""
    monkeypatch.setenv("PROVIDER_KEY", "provider-secret")
    provider = FakeProvider()
    async with FakeEngine("p", served_model="tiny") as prefill, FakeEngine("md", served_model="tiny") as main:
        engine = {"model": "tiny", "region": "a"}
        settings = parse_settings(
            {
                "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
                "engines": [
                    engine | {"id": "p", "role": "P", "url": prefill.url},
                    engine | {"id": "md", "role": "MD", "url": main.url, "max_running": 1},
                ],
                "external": [
                    {"model": MODEL.model, "api_base": MODEL.api_base, "api_key_env": "PROVIDER_KEY", "timeout_s": 7}
                ],
                "health_interval_s": 3600,
                "canary_interval_s": 0,
            }
        )
        async with (
            await asyncio.to_thread(Gateway, settings, KnownIndex({}), shared_redis, provider=provider) as gateway,
            AppServer(gateway.app) as server,
            httpx.AsyncClient(base_url=server.url, timeout=10) as client,
        ):
            yield Rig(gateway, server, client, provider, [prefill, main])


async def test_engines_answer_while_they_can(rig: Rig) -> None:
    """A provider for want of instances is not asked while there are some; nor is any without a rule."""
    for overflow in ({}, {"model": MODEL.model}, {"model": MODEL.model, "when": "overloaded"}):
        rig.rule(overflow)
        assert (await rig.ask()).headers["x-pdd-plan"] != "external"
    assert rig.provider.asked == []


async def test_a_chat_overflows_when_no_engine_is_left(rig: Rig) -> None:
    """The provider's answer comes under the gateway's id and the client's model name, and its cost is counted."""
    rig.rule({"model": MODEL.model})
    await rig.lose_engines()
    answer = await rig.ask()
    assert (answer.headers["x-pdd-plan"], answer.headers["x-pdd-reason"]) == ("external", "no_instance")
    body = answer.json()
    assert (body["id"], body["model"]) == (answer.headers["x-request-id"], "tiny")
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert body["usage"] == {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
    (model, fields, stream), *_ = rig.provider.asked
    assert (model, stream) == (MODEL, False)
    assert fields["temperature"] == 0.5
    timeline = (await rig.client.get(f"/admin/requests/{body['id']}")).json()
    assert (timeline["plan"], timeline["provider_model"], timeline["cost_usd"]) == ("external", MODEL.model, 0.5)
    assert rig.counted("pdd_external_cost_usd_total", model=MODEL.model) == 0.5
    assert rig.counted("pdd_requests_total", model="tiny", plan="external", outcome="finished") == 1
    assert timeline["slo_met"] is True
    assert rig.counted("pdd_slo_requests_total", tenant="default", met="true") == 1


@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_stream_is_chunks_of_the_gateways_own(rig: Rig, include_usage: bool) -> None:
    """Every chunk has a finish_reason, usage comes only where it was asked for, and [DONE] comes once."""
    rig.rule({"model": MODEL.model, "when": "always"})
    answer = await rig.ask(stream=True, stream_options={"include_usage": include_usage})
    events = [event.removeprefix("data: ") for event in answer.text.strip().split("\n\n")]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"tiny"}
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello"
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
    usages = [chunk.get("usage", "absent") for chunk in chunks]
    told = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
    assert usages == ([None, None, told] if include_usage else ["absent"] * 2)


async def test_overload_sends_chats_away(rig: Rig) -> None:
    """With every main-decode instance full the next chat goes outside, and one after that comes back."""
    rig.rule({"model": MODEL.model, "when": "overloaded"})
    with rig.gateway.pools["md"].occupied():
        assert (await rig.ask()).headers["x-pdd-reason"] == "overloaded"
    assert (await rig.ask()).headers["x-pdd-plan"] != "external"


@pytest.mark.parametrize(
    "rules",
    [
        {"overflow": {"model": "nobody/knows", "when": "always"}},
        {"overflow": {"model": MODEL.model, "when": "always"}, "regions": ["a"]},
    ],
)
async def test_nothing_leaves_without_a_known_model_or_from_a_pinned_tenant(rig: Rig, rules: dict[str, Any]) -> None:
    """A provider that is not in the settings does not exist, and pinning holds against every rule."""
    rig.rule(**rules)
    assert (await rig.ask()).headers["x-pdd-plan"] != "external"
    await rig.lose_engines()
    assert (await rig.ask()).status_code == 503
    assert rig.provider.asked == []


async def test_only_chats_overflow(rig: Rig) -> None:
    """A completion's prompt may be token ids, which no provider takes."""
    rig.rule({"model": MODEL.model, "when": "always"})
    answer = await rig.client.post("/v1/completions", json={"model": "tiny", "prompt": [5, 6], "max_tokens": 2})
    assert answer.headers["x-pdd-plan"] != "external"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineRejected(400, "too long", "messages"), 400),
        (EngineUnavailable("busy", 7.0), 503),
        (EngineTimeout("late"), 504),
        (EngineFailed("key"), 502),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_providers_failure_is_the_answer(rig: Rig, error: BackendError, status: int, stream: bool) -> None:
    """What fails before the first piece has a status of its own."""
    rig.rule({"model": MODEL.model, "when": "always"})
    rig.provider.steps = [error]
    answer = await rig.ask(stream=stream)
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == ("7" if status == 503 else None)
    assert rig.counted("pdd_requests_total", model="tiny", plan="external", outcome="failed") == 1
    missed = rig.counted("pdd_slo_requests_total", tenant="default", met="false")
    assert missed == (0 if isinstance(error, EngineRejected) else 1)


async def test_a_failure_in_the_middle_is_an_error_event(rig: Rig) -> None:
    """After the first piece the failure is an event, and no [DONE] follows."""
    rig.rule({"model": MODEL.model, "when": "always"})
    rig.provider.steps = [SPOKEN[0], EngineFailed("gone")]
    answer = await rig.ask(stream=True)
    *_, last = answer.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "bad_gateway"


async def test_a_client_that_leaves_ends_the_providers_work(rig: Rig) -> None:
    """The provider's answer is closed, and counted as left."""
    rig.rule({"model": MODEL.model, "when": "always"})
    gate = HoldGate()
    rig.provider.steps = [SPOKEN[0], gate]
    asking = asyncio.create_task(rig.ask(stream=True))
    await gate.arrivals()
    asking.cancel()
    await rig.provider.closed()
    await rig.server.connections_left(0)
    assert rig.counted("pdd_requests_total", model="tiny", plan="external", outcome="client_gone") == 1
    assert not any(rig.counted("pdd_slo_requests_total", tenant="default", met=met) for met in ("true", "false"))


def test_bad_settings_stop_the_start(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a provider stands once, and its key is there."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    document: dict[str, Any] = {
        "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
        "engines": [{"id": "p", "role": "P", "model": "tiny", "region": "a", "url": "http://h"}],
        "external": [{"model": "openai/gpt", "api_key_env": "NO_SUCH_KEY"}],
    }
    with pytest.raises(BadSettings, match=r"external\[openai/gpt\]\.api_key_env: NO_SUCH_KEY is not set"):
        Gateway(parse_settings(document), KnownIndex({}), make_away(), provider=FakeProvider())
    with pytest.raises(BadSettings, match=r"external\[\]\.model: 'openai/gpt' stands twice"):
        parse_settings(document | {"external": document["external"] * 2})
    with pytest.raises(BadSettings, match=r"rules\.overflow\.model: 'openai/other' is not in external"):
        parse_settings(document | {"rules": {"overflow": {"model": "openai/other"}}})
