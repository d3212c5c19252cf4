"""Limits, the queue, models by rule, salts and charges, as clients meet them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from gateway.api.app import ApiState, build_app
from gateway.api.endpoint import Access
from gateway.errors import GatewayError
from gateway.limits.admission import spell_duration
from gateway.limits.queues import AdmissionQueues
from gateway.relay.types import GenerationRequest
from gateway.text.model import ServedModel
from policies.rules import parse_rules
from tests.fakes.answers import ScriptedGenerator, Step, say
from tests.fakes.gates import HoldGate
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.api.raw import CHAT, connect

PATH = "/v1/chat/completions"
SHORT = {**CHAT, "max_tokens": 50}
SECRET = b"0123456789abcdef"


@dataclass(slots=True)
class Served:
    """The API under some rules."""

    server: AppServer
    http: httpx.AsyncClient
    access: Access
    registry: CollectorRegistry

    async def ask(self, body: dict[str, Any] = SHORT) -> httpx.Response:
        """Send one chat request."""
        return await self.http.post(PATH, json=body)

    def used(self, what: str) -> float:
        """What the tenant has used."""
        return self.registry.get_sample_value(f"pdd_tenant_{what}_total", {"tenant": "default"}) or 0.0

    def missed(self) -> float:
        """Requests that did not get what was promised."""
        return self.registry.get_sample_value("pdd_slo_requests_total", {"tenant": "default", "met": "false"}) or 0.0


@asynccontextmanager
async def serve(
    state: ApiState, rules: dict[str, Any], secret: bytes | None = None, queues: AdmissionQueues | None = None
) -> AsyncIterator[Served]:
    """Serve the API under rules."""
    registry = CollectorRegistry()
    access = make_access(rules=parse_rules(rules), secret=secret, queues=queues, registry=registry)
    async with AppServer(build_app(replace(state, access=access))) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            yield Served(server, http, access, registry)


async def test_requests_per_minute(state: ApiState) -> None:
    """Answers tell what is left; beyond the limit the refusal tells when to come back."""
    async with serve(state, {"limits": {"requests_per_min": 2}}) as served:
        first, second, third = [await served.ask() for _ in range(3)]
    assert (first.status_code, first.headers["x-ratelimit-limit-requests"]) == (200, "2")
    assert [one.headers["x-ratelimit-remaining-requests"] for one in (first, second, third)] == ["1", "0", "0"]
    assert first.headers["x-ratelimit-reset-requests"] in ("30s", "29.999s", "29.998s", "29.997s")
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert third.json()["error"]["type"] == "rate_limit_error"
    assert 29 <= int(third.headers["retry-after"]) <= 30


async def test_tokens_are_settled_with_the_true_numbers(state: ApiState) -> None:
    """What an answer did not use of its reservation is free for the next one; streams end the same way."""
    async with serve(state, {"limits": {"tokens_per_min": 300}}) as served:
        begin_s = time.monotonic()
        for stream in (False, True, False):
            answer = await served.ask({**SHORT, "stream": stream})
            assert answer.status_code == 200
        remaining = int((await served.ask()).headers["x-ratelimit-remaining-tokens"])
        usage = answer.json()["usage"]
    refilled = 300 / 60 * (time.monotonic() - begin_s)
    reserved = usage["prompt_tokens"] + 50
    assert -2 <= remaining - (300 - 3 * usage["total_tokens"] - reserved) <= refilled + 2


async def test_bytes_over_the_link(state: ApiState) -> None:
    """Who is in debt for KV that crossed is refused, and told when to come back."""
    async with serve(state, {"limits": {"wan_bytes_per_min": 1000}}) as served:
        first = await served.ask()
        served.access.admission.limits.charge_wan("default", 1500)
        second = await served.ask()
    assert first.status_code == 200
    assert (second.status_code, second.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "1000 bytes of KV" in second.json()["error"]["message"]
    assert 29 <= int(second.headers["retry-after"]) <= 31


@pytest.mark.parametrize(
    ("limits", "body", "status", "param", "code"),
    [
        ({"max_prompt_tokens": 1}, {}, 400, "messages", "prompt_too_long"),
        ({"max_output_tokens": 9}, {"max_tokens": 10}, 400, "max_tokens", "output_limit_exceeded"),
        (
            {"max_output_tokens": 9},
            {"max_completion_tokens": 10, "max_tokens": None},
            400,
            "max_completion_tokens",
            "output_limit_exceeded",
        ),
        ({"tokens_per_min": 1}, {}, 400, None, "prompt_too_long"),
    ],
)
async def test_too_large_requests(
    state: ApiState, limits: dict[str, Any], body: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    """A prompt or an answer beyond the tenant's limits is refused as such, and holds nothing."""
    async with serve(state, {"limits": limits}) as served:
        error = await served.ask({**SHORT, **body})
        assert (error.status_code, error.json()["error"]["param"], error.json()["error"]["code"]) == (
            status,
            param,
            code,
        )
        assert served.access.admission.queues.running == 0


async def test_output_limit_holds_for_those_that_name_none(state: ApiState, generator: ScriptedGenerator) -> None:
    """An answer without a limit of its own gets the tenant's, and at most what the context leaves."""
    async with serve(state, {"limits": {"max_output_tokens": 9}}) as served:
        await served.ask(CHAT)
    async with serve(state, {"limits": {"max_output_tokens": 1_000_000}}) as served:
        await served.ask(CHAT)
    assert generator.requests[0].max_tokens == 9
    limit = generator.requests[1].max_tokens
    assert limit is not None and limit + len(generator.requests[1].prompt) == 4096


async def test_slots_come_back_however_an_answer_ends(state: ApiState, generator: ScriptedGenerator) -> None:
    """TEN-07: with one slot, answers that end well, fail at once, fail late or lose their client free it each time."""
    held, whole = HoldGate(), generator.script
    async with serve(state, {"limits": {"concurrent": 1}}) as served:
        for _ in range(5):
            assert (await served.ask()).status_code == 200
            generator.script = lambda request: [GatewayError(503, "none")]
            assert (await served.ask()).status_code == 503
            generator.script = lambda request: [*say([300, 301])[:1], GatewayError(502, "gone")]
            assert (await served.ask({**SHORT, "stream": True})).status_code == 200
            generator.script = lambda request: [held]
            arrived = held.arrived
            async with connect(served.server) as connection:
                await connection.post(PATH, SHORT)
                await held.arrivals(arrived + 1)
                refused = await served.ask()
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            await generator.all_closed()
            generator.script = whole
        assert served.access.admission.limits.running("default") == 0


async def test_an_abort_is_charged_once_for_what_was_delivered(
    state: ApiState, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """TEN-10: a client that leaves in the middle pays its prompt and the tokens that it got."""
    gate = HoldGate()
    steps = say(model.encoder.encode_now("Hello there, you all."))
    generator.script = lambda request: [*steps[:3], gate, *steps[3:]]
    async with serve(state, {"limits": {"tokens_per_min": 1000}}) as served:
        async with connect(served.server) as connection:
            await connection.post(PATH, {**SHORT, "stream": True})
            await gate.arrivals()
        await generator.all_closed()
        prompt = len(generator.requests[0].prompt)
        assert (served.used("requests"), served.used("prompt_tokens")) == (1.0, prompt)
        gate.open()
        remaining = int((await served.ask()).headers["x-ratelimit-remaining-tokens"])
    assert abs(1000 - (prompt + 3) - (prompt + 50) - remaining) <= 1


async def test_a_request_that_came_to_nothing_costs_nothing(state: ApiState, generator: ScriptedGenerator) -> None:
    """What no engine could serve is not charged."""
    generator.script = lambda request: [GatewayError(503, "none")]
    async with serve(state, {"limits": {"tokens_per_min": 1000}}) as served:
        assert (await served.ask()).status_code == 503
        assert (served.used("requests"), served.used("prompt_tokens")) == (1.0, 0.0)
        generator.script = lambda request: say([300])
        remaining = int((await served.ask()).headers["x-ratelimit-remaining-tokens"])
    assert remaining >= 1000 - len(generator.requests[-1].prompt) - 50


@pytest.mark.parametrize(
    ("slo", "error", "missed"),
    [({}, 503, 1), ({}, 400, 0), ({"ttft_s": None, "total_s": None}, 503, 0)],
)
async def test_a_request_that_nothing_could_start_misses_its_promise(
    state: ApiState, generator: ScriptedGenerator, slo: dict[str, Any], error: int, missed: int
) -> None:
    """Where the engines cannot take it the tenant was promised more, unless nothing was; its own mistakes are its."""

    def refuse(request: GenerationRequest) -> list[Step]:
        raise GatewayError(error, "none")

    generator.script = refuse
    async with serve(state, {"slo": slo}) as served:
        assert (await served.ask()).status_code == error
        assert served.missed() == missed


async def test_the_wait_for_a_place_is_told(state: ApiState, generator: ScriptedGenerator) -> None:
    """Each choice of a request that stood in the queue knows for how long, as its client waited too."""
    held = HoldGate()
    generator.script = lambda request: [held, *say([300])]
    queues = AdmissionQueues(lambda model: 1, 5, 10.0)
    async with serve(state, {}, queues=queues) as served:
        first = asyncio.create_task(served.ask())
        await held.arrivals()
        second = asyncio.create_task(served.ask({**SHORT, "n": 2}))
        while not queues.waiting:
            await served.http.get("/v1/models")
        held.open()
        assert (await first).status_code == (await second).status_code == 200
    assert [request.waited_s > 0.0005 for request in generator.requests] == [False, True, True]


async def test_a_full_gateway_sheds(state: ApiState, generator: ScriptedGenerator) -> None:
    """Where nobody may wait the next request is refused at once, and served once there is room."""
    held = HoldGate()
    generator.script = lambda request: [held, *say([300])]
    async with serve(state, {}, queues=AdmissionQueues(lambda model: 1, 0, 10.0)) as served:
        first = asyncio.create_task(served.ask())
        await held.arrivals()
        refused = await served.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert served.missed() == 1
        held.open()
        assert (await first).status_code == (await served.ask()).status_code == 200


async def test_models_by_rule(state: ApiState, generator: ScriptedGenerator) -> None:
    """A tenant sees and gets what its rules allow, under the names that they give."""
    rules = {"models": {"allowed": ["tiny"], "aliases": {"gpt-4o": "tiny", "gone": "none", "no": "org/other"}}}
    async with serve(state, rules) as served:
        listed = (await served.http.get("/v1/models")).json()["data"]
        assert [card["id"] for card in listed] == ["tiny", "gpt-4o"]
        assert (await served.http.get("/v1/models/gpt-4o")).json()["max_model_len"] == 4096
        for name in ("org/other", "gone", "no", "none"):
            answer = await served.ask({**SHORT, "model": name})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            assert (await served.http.get(f"/v1/models/{name}")).status_code == 404
        whole = await served.ask({**SHORT, "model": "gpt-4o"})
        streamed = await served.ask({**SHORT, "model": "gpt-4o", "stream": True})
    assert whole.json()["model"] == "gpt-4o"
    assert '"model":"gpt-4o"' in streamed.text and '"tiny"' not in streamed.text
    assert {request.model for request in generator.requests} == {"tiny"}


async def test_salt_and_priority_come_from_the_gateway(state: ApiState, generator: ScriptedGenerator) -> None:
    """TEN-01, SEC-02: every generation carries its tenant's salt and class; a client's own are refused."""
    async with serve(state, {"priority": "high"}, SECRET) as served:
        await served.ask({**SHORT, "n": 2})
        for field in ("cache_salt", "priority"):
            refused = await served.ask({**SHORT, field: "x"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "internal_field")
    async with serve(state, {"cache": {"group": "g"}, "priority": "low"}, SECRET) as served:
        await served.ask()
    async with serve(state, {}) as served:
        await served.ask()
    salts = served.access.salts
    assert salts.of("default") is None
    made = make_access(secret=SECRET).salts
    own, shared = made.of("default"), made.of("default", "g")
    found = [(request.cache_salt, request.priority) for request in generator.requests]
    assert found == [(own, 0), (own, 0), (shared, 2), (None, 1)]


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.0, "0ms"), (0.0123, "13ms"), (1.0, "1s"), (7.5, "7.5s"), (60.0, "1m0s"), (359.2, "6m0s"), (3661.0, "1h1m1s")],
)
def test_durations_are_spelled_as_openai_does(duration_s: float, text: str) -> None:
    """Resets are read by clients that expect Go's notation, never a moment too early."""
    assert spell_duration(duration_s) == text


async def test_a_full_process_refuses_before_it_reads(state: ApiState) -> None:
    """Beyond what the event loop can carry the answer is 503 with Retry-After, until there is room again."""
    async with serve(state, {}) as served:
        load = served.access.admission.load
        load.most = 1
        load.enter()
        refused = await served.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1 and served.used("refused") == 1
        load.leave()
        assert (await served.ask()).status_code == 200
        assert load.running == 0
