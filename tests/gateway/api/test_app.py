"""Paths, methods, models and the operator's pages."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.api.app import ApiState, build_app
from gateway.errors import GatewayError
from gateway.relay.types import GenerationRequest
from tests.fakes.answers import ScriptedGenerator, Step, say
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.api.raw import CHAT


@pytest.fixture
async def http(server: AppServer) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the server."""
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/v1//chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions/",
        "/v1/Chat/completions",
        "/v1/chat%2fcompletions/x",
        "/v1/chat%2fcompletions",
        "/v1/%63hat/completions",
        "/v1/%2e%2e/v1/chat/completions",
        "/v1/chat/completions%00",
        "//v1/chat/completions",
    ],
)
async def test_unknown_path(http: httpx.AsyncClient, generator: ScriptedGenerator, path: str) -> None:
    """A path that is not exactly a route is a 404 in OpenAI's shape, and nothing runs."""
    answer = await http.post(httpx.URL(str(http.base_url).rstrip("/") + path), json=CHAT)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert generator.answers == []


async def test_unknown_method(http: httpx.AsyncClient) -> None:
    """A wrong method is a 405 that says which are allowed."""
    answer = await http.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


async def test_models(http: httpx.AsyncClient) -> None:
    """The served models are listed and shown, names with a slash too."""
    listed = (await http.get("/v1/models")).json()
    assert [card["id"] for card in listed["data"]] == ["tiny", "org/other"]
    assert listed["data"][0]["max_model_len"] == 4096
    assert (await http.get("/v1/models/org/other")).json()["id"] == "org/other"
    unknown = await http.get("/v1/models/none")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_model_without_template(http: httpx.AsyncClient) -> None:
    """A model without a chat template serves completions and refuses chat."""
    answer = await http.post("/v1/chat/completions", json={**CHAT, "model": "org/other"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_chat_template")
    assert (await http.post("/v1/completions", json={"model": "org/other", "prompt": "x"})).status_code == 200


async def test_operator_pages(http: httpx.AsyncClient) -> None:
    """Health, readiness, metrics and timelines are answered."""
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert (await http.get("/ready")).json() == {"ready": True, "missing": []}
    assert (await http.get("/metrics")).text == "up 1\n"
    assert (await http.get("/admin/requests/known")).json() == {"legs": []}
    assert (await http.get("/admin/requests/none")).json()["error"]["code"] == "request_not_found"


async def serve_once(state: ApiState, method: str, path: str, body: Any = None) -> httpx.Response:
    """Return one answer of an API with other surroundings."""
    async with AppServer(build_app(state)) as server, httpx.AsyncClient(base_url=server.url) as http:
        return await http.request(method, path, json=body)


async def test_not_ready(state: ApiState) -> None:
    """Readiness names what is missing."""
    pages = replace(state.pages, find_missing=lambda: ["main md-1 is down"])
    answer = await serve_once(replace(state, pages=pages), "GET", "/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "missing": ["main md-1 is down"]})


async def test_unknown_caller(state: ApiState, generator: ScriptedGenerator) -> None:
    """A caller who may not ask is told so before the body is looked at."""

    def identify(connection: object) -> str:
        raise GatewayError(401, "No key.")

    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")):
        answer = await serve_once(replace(state, access=make_access(identify)), method, path, [])
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_tenant(state: ApiState, generator: ScriptedGenerator) -> None:
    """The tenant of the generation is the one that the caller was identified as, whatever other headers say."""
    await serve_once(
        replace(state, access=make_access(lambda connection: "acme")), "POST", "/v1/chat/completions", CHAT
    )
    assert generator.requests[0].tenant == "acme"


async def test_failure_of_the_gateway(state: ApiState, generator: ScriptedGenerator) -> None:
    """An unexpected failure is a 500 without its details, and what was started is closed."""
    steps = say([300])

    def script(request: GenerationRequest) -> list[Step]:
        if generator.answers:
            raise LookupError("secret")
        return steps

    generator.script = script
    answer = await serve_once(state, "POST", "/v1/chat/completions", {**CHAT, "n": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert [started.closes for started in generator.answers] == [1]
