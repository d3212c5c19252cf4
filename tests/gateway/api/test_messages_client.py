"""The Anthropic SDK against ``/v1/messages`` on a real socket, over answers in a real family's spelling."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import pytest

from gateway.api.app import ApiState, build_app
from gateway.errors import GatewayError
from gateway.relay.types import Finish
from gateway.text.model import ServedModel
from gateway.text.parsers.registry import find_parsers
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer

TOOL: Any = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WRITTEN = (
    "<think>\nLet me look.\n</think>\n\nSure.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "世界"}}\n</tool_call>'
)
CLAUDE_CODE: dict[str, Any] = {
    "model": "qwen",
    "max_tokens": 200,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=abcde;"},
        {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sunny."}]},
                {"type": "text", "text": "And there?"},
            ],
        },
    ],
    "tools": [TOOL],
    "metadata": {"user_id": "user_1_session_2"},
    "extra_body": {"context_management": {"edits": []}},
}


@pytest.fixture
def qwen(model: ServedModel) -> ServedModel:
    """The small model, read as Qwen writes."""
    return replace(model, name="qwen", parsers=find_parsers("hermes", "qwen3", ()))


@pytest.fixture
async def messages_server(state: ApiState, qwen: ServedModel) -> AsyncIterator[AppServer]:
    """The API with that model."""
    async with AppServer(build_app(replace(state, models={"qwen": qwen}))) as server:
        yield server


@pytest.fixture
async def claude(messages_server: AppServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The SDK without retries."""
    async with anthropic.AsyncAnthropic(base_url=messages_server.url, api_key="any", max_retries=0) as client:
        yield client


def script(
    generator: ScriptedGenerator,
    model: ServedModel,
    text: str,
    chunk: int = 3,
    reason: Any = "stop",
    cached_tokens: int = 0,
) -> None:
    """Let answers say a text, a few ids at a time."""
    ids = model.encoder.encode_now(text)
    finish = Finish(reason, False, None, len(ids), cached_tokens)
    generator.script = lambda request: say(ids, [chunk] * len(ids), finish=finish)


async def test_a_whole_message(
    claude: anthropic.AsyncAnthropic, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """Thoughts, text and a tool's use are blocks in order; usage counts the cached part of the prompt apart."""
    script(generator, qwen, WRITTEN, cached_tokens=4)
    answer = await claude.messages.create(
        model="qwen", max_tokens=100, tools=[TOOL], messages=[{"role": "user", "content": "Weather?"}]
    )
    thought, text, use = answer.content
    assert thought.type == "thinking" and (thought.thinking, bool(thought.signature)) == ("Let me look.", True)
    assert text.type == "text" and text.text == "Sure."
    assert use.type == "tool_use" and (use.name, use.input) == ("get_weather", {"city": "世界"})
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("tool_use", None, "assistant")
    assert answer.usage.cache_read_input_tokens == 4
    assert answer.usage.input_tokens + 4 == len(generator.requests[0].prompt)
    assert answer.usage.output_tokens == len(qwen.encoder.encode_now(WRITTEN))


@pytest.mark.parametrize("chunk", [1, 3, 1000])
async def test_a_stream_is_the_whole_message(
    claude: anthropic.AsyncAnthropic, generator: ScriptedGenerator, qwen: ServedModel, chunk: int
) -> None:
    """The SDK puts the same message together, whatever pieces the ids came in."""
    script(generator, qwen, WRITTEN, chunk, cached_tokens=4)
    asked: Any = {"model": "qwen", "max_tokens": 100, "tools": [TOOL], "messages": [{"role": "user", "content": "W?"}]}
    whole = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    ids = {"id", "content"}
    assert streamed.model_dump(exclude=ids) == whole.model_dump(exclude=ids)
    spelled = [block.model_dump(exclude={"id"}) for block in streamed.content]
    assert [{k: v for k, v in one.items() if v is not None} for one in spelled] == [
        {k: v for k, v in block.model_dump(exclude={"id"}).items() if v is not None} for block in whole.content
    ]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


async def test_an_agents_conversation_is_the_chat_that_it_means(
    claude: anthropic.AsyncAnthropic, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """Claude Code's shapes: the changing billing line is left out, results of tools are messages before the user's."""
    template = qwen.template
    assert template is not None
    await claude.messages.create(**CLAUDE_CODE)
    call = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
    }
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Looking.", "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Sunny."},
        {"role": "user", "content": "And there?"},
    ]
    function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["input_schema"]}
    tools = [{"type": "function", "function": function}]
    text = template.render(chat, tools=tools, add_generation_prompt=True)
    assert list(generator.requests[0].prompt) == qwen.encoder.encode_now(text)
    assert generator.requests[0].session == "user_1_session_2"
    counted = await claude.messages.count_tokens(
        **{name: CLAUDE_CODE[name] for name in ("model", "system", "messages", "tools")}
    )
    assert counted.input_tokens == len(generator.requests[0].prompt)


async def test_ends_have_their_reasons(
    claude: anthropic.AsyncAnthropic, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """A stop sequence, the limit, and the model's own end."""
    asked: Any = {"model": "qwen", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    script(generator, qwen, "so</think>one two three", chunk=1)
    stopped = await claude.messages.create(**asked, stop_sequences=["two"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
    assert stopped.content[-1].type == "text" and stopped.content[-1].text == "one "
    assert (await claude.messages.create(**asked)).stop_reason == "end_turn"
    script(generator, qwen, "one", reason="length")
    assert (await claude.messages.create(**asked)).stop_reason == "max_tokens"


async def test_thinking_is_what_the_client_says(claude: anthropic.AsyncAnthropic, generator: ScriptedGenerator) -> None:
    """Disabled turns it off for the template; a budget goes to one engine; a forced tool is a grammar."""
    asked: Any = {"model": "qwen", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    await claude.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024})
    await claude.messages.create(**asked, thinking={"type": "disabled"})
    assert [one.features.thinking_budget for one in generator.requests] == [True, False]
    await claude.messages.create(**asked, tools=[TOOL], tool_choice={"type": "any"})
    assert generator.requests[-1].features.structured_output


async def test_errors_have_anthropics_shape(
    claude: anthropic.AsyncAnthropic, generator: ScriptedGenerator, qwen: ServedModel, messages_server: AppServer
) -> None:
    """The SDK raises its own classes, and a stream that breaks ends with an error event."""
    asked: Any = {"model": "qwen", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.create(**asked | {"model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await claude.messages.create(**asked | {"max_tokens": 0})
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type"):
        await claude.messages.create(**asked | {"messages": [{"role": "user", "content": [image]}]})
    with pytest.raises(anthropic.BadRequestError, match="runs on Anthropic's servers"):
        await claude.messages.create(**asked, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    generator.script = lambda request: [GatewayError(503, "busy", retry_after_s=1.0)]
    with pytest.raises(anthropic.APIStatusError) as caught:
        await claude.messages.create(**asked)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
    ids = qwen.encoder.encode_now("one two")
    generator.script = lambda request: [*say(ids)[:1], GatewayError(502, "gone")]
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        async with claude.messages.stream(**asked) as stream:
            await stream.get_final_message()
    async with httpx.AsyncClient(base_url=messages_server.url) as plain:
        answer = await plain.post("/v1/messages", content=b"{")
    assert (answer.status_code, answer.json()["type"]) == (400, "error")


MALFORMED: dict[str, dict[str, Any]] = {
    "no limit": {"max_tokens": None},
    "no messages": {"messages": []},
    "role": {"messages": [{"role": "tool", "content": "x"}]},
    "block": {"messages": [{"role": "user", "content": [7]}]},
    "text": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "system": {"system": 7},
    "system block": {"system": [{"type": "image"}]},
    "tools": {"tools": {"name": "x"}},
    "tool": {"tools": [7]},
    "schema": {"tools": [{"name": "x"}]},
    "choice": {"tool_choice": {"type": "some"}},
    "thinking": {"thinking": {"type": "much"}},
    "effort": {"output_config": {"effort": "none"}},
    "format": {"output_config": {"format": {"type": "text"}}},
    "servers": {"mcp_servers": [{"url": "x"}]},
    "result": {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 7}]}]},
    "result block": {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]
    },
    "answer": {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_refused(messages_server: AppServer, name: str) -> None:
    """Each is a 400 that names the field, and starts nothing."""
    body = {"model": "qwen", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]} | MALFORMED[name]
    async with httpx.AsyncClient(base_url=messages_server.url) as plain:
        answer = await plain.post("/v1/messages", content=json.dumps(body))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
