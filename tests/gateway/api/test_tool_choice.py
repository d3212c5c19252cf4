"""Forced tool calls and structured answers, as openai-python asks for them."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pydantic
import pytest

from gateway.api.app import ApiState, build_app
from gateway.relay.types import Finish
from gateway.text.model import ServedModel
from gateway.text.parsers.registry import Parsers, find_parsers
from policies.eligibility import unsplittable_reason
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/Name"}}, "$defs": {"Name": {"type": "string"}}}
GET = {"type": "function", "function": {"name": "get", "parameters": CITY}}
PUT = {"type": "function", "function": {"name": "put"}}
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [GET, PUT]}
NAMED = {"type": "function", "function": {"name": "get"}}
PARSERS = [
    find_parsers("none", "none", ()),
    find_parsers("hermes", "qwen3", ()),
    find_parsers("openai", None, ()),
    find_parsers("mistral", "mistral", ()),
]


@pytest.fixture(params=PARSERS, ids=["none", "qwen3", "gpt-oss", "mistral"])
def parsers(request: pytest.FixtureRequest) -> Parsers:
    """Some family's parsers."""
    found: Parsers = request.param
    return found


@pytest.fixture
async def client(state: ApiState, model: ServedModel, parsers: Parsers) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model with these parsers."""
    models = {"tiny": replace(model, parsers=parsers)}
    async with AppServer(build_app(replace(state, models=models))) as server:
        async with httpx.AsyncClient(base_url=f"{server.url}/v1/") as opened:
            yield opened


def let_write(generator: ScriptedGenerator, model: ServedModel, text: str, finish: str = "stop") -> None:
    """Let the model write a text."""
    ids = model.encoder.encode_now(text)
    generator.script = lambda request: say(ids, finish=Finish(finish, False, None, len(ids), 0))  # type: ignore[arg-type]


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Return the one choice of a whole answer, having seen that a stream says the same."""
    response = await client.post("chat/completions", json={**BODY, **fields})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    stream = await client.post("chat/completions", json={**BODY, **fields, "stream": True})
    chunks = [json.loads(line[6:])["choices"][0] for line in stream.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == (choice["message"]["content"] or "")
    assert [call["function"] for delta in deltas for call in delta.get("tool_calls", ())] == [
        call["function"] for call in choice["message"].get("tool_calls", ())
    ]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    return choice


async def test_named_tool(client: httpx.AsyncClient, generator: ScriptedGenerator, model: ServedModel) -> None:
    """The answer is the arguments of the named tool, by its schema, made by one engine; it ends with "stop"."""
    let_write(generator, model, '{"city": "Oslo"}')
    choice = await ask(client, tool_choice=NAMED, response_format={"type": "json_object"})
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": '{"city": "Oslo"}'}
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "stop")
    request = generator.requests[0]
    assert request.sampling.extra == {"structured_outputs": {"json": CITY}}
    assert unsplittable_reason(request.features) == "structured_output"


async def test_required_tool(client: httpx.AsyncClient, generator: ScriptedGenerator, model: ServedModel) -> None:
    """The answer is an array of calls, whose schema is made as vLLM makes it; white space is none of it."""
    let_write(
        generator, model, '\n[{"name": "get", "parameters": {"city": "Oslo"}}, {"name": "put", "parameters": {}}]'
    )
    choice = await ask(client, tool_choice="required")
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert calls == [{"name": "get", "arguments": '{"city": "Oslo"}'}, {"name": "put", "arguments": "{}"}]
    assert choice["finish_reason"] == "tool_calls"
    bare = {"type": "object", "properties": CITY["properties"]}
    entries = [
        {
            "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
            "required": ["name", "parameters"],
        }
        for name, schema in (("get", bare), ("put", {"type": "object", "properties": {}}))
    ]
    assert generator.requests[0].sampling.extra["structured_outputs"]["json"] == {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": entries},
        "$defs": CITY["$defs"],
    }


async def test_allowed_tools(client: httpx.AsyncClient, generator: ScriptedGenerator, model: ServedModel) -> None:
    """Only the allowed tools are shown, and only they can be forced."""
    let_write(generator, model, '[{"name": "put", "parameters": {}}]')
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "name": "put"}]},
    }
    choice = await ask(client, tool_choice=allowed, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["put"]
    schema = generator.requests[0].sampling.extra["structured_outputs"]["json"]
    assert schema["maxItems"] == 1
    assert [entry["properties"]["name"]["enum"] for entry in schema["items"]["anyOf"]] == [["put"]]
    allowed["allowed_tools"] = {"mode": "auto", "tools": [NAMED]}
    await ask(client, tool_choice=allowed)
    assert generator.requests[-1].sampling.extra == {}


async def test_forced_call_that_is_cut(
    client: httpx.AsyncClient, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """A forced call that a limit cuts is content, and the answer says length."""
    let_write(generator, model, '{"city": "Os', "length")
    choice = await ask(client, tool_choice=NAMED)
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"city": "Os', "length")


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        {"type": "custom", "custom": {"name": "get"}},
        {"type": "function", "function": {"name": "unknown"}},
        {"type": "function"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "often", "tools": [NAMED]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["get"]}},
        {"type": "allowed_tools", "allowed_tools": 1},
        {},
    ],
)
async def test_bad_tool_choices(client: httpx.AsyncClient, choice: Any) -> None:
    """A choice that cannot be met is the client's error."""
    response = await client.post("chat/completions", json={**BODY, "tool_choice": choice})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


async def test_tools_that_contradict_each_other(client: httpx.AsyncClient) -> None:
    """Two tools that define the same name otherwise cannot stand in one grammar; parameters are a schema."""
    other = {"name": "other", "parameters": {**CITY, "$defs": {"Name": {"type": "integer"}}}}
    for function in (other, {"name": "other", "parameters": "none"}):
        body = {**BODY, "tools": [GET, {"type": "function", "function": function}], "tool_choice": "required"}
        response = await client.post("chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[1].function.parameters")


class Place(pydantic.BaseModel):
    """What an answer should be."""

    city: str


@pytest.mark.parametrize("text", ['{"city": "Oslo"}', '<think>so</think>\n{"city": "Oslo"}'])
async def test_structured_answer(state: ApiState, generator: ScriptedGenerator, model: ServedModel, text: str) -> None:
    """openai-python gets its model from an answer under a schema, whether the engine lets it reason before or not."""
    let_write(generator, model, text)
    models = {"tiny": replace(model, parsers=find_parsers("hermes", "qwen3", ()))}
    async with AppServer(build_app(replace(state, models=models))) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            answer = await client.chat.completions.parse(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], response_format=Place
            )
    assert answer.choices[0].message.parsed == Place(city="Oslo")
    assert generator.requests[0].sampling.extra["response_format"]["json_schema"]["name"] == "Place"
