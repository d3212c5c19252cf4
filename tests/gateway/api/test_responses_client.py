"""openai-python against ``/v1/responses`` on a real socket, over answers in a real family's spelling."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from gateway.errors import GatewayError
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer
from tests.gateway.api.test_messages_client import WRITTEN, messages_server, qwen, script

__all__ = ["messages_server", "qwen"]

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CODEX: dict[str, Any] = {
    "model": "qwen",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "SG0u"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
        {"role": "user", "content": "And there?"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "session-1",
}


@pytest.fixture
async def client(messages_server: AppServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK without retries."""
    async with openai.AsyncOpenAI(base_url=f"{messages_server.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


async def test_a_whole_response(client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel) -> None:
    """Thoughts, text and a call are items in order, and usage tells the cached part of the prompt."""
    script(generator, qwen, WRITTEN, cached_tokens=4)
    answer = await client.responses.create(model="qwen", input="Weather?", tools=[TOOL], include=CODEX["include"])
    thought, message, call = answer.output
    assert thought.type == "reasoning" and thought.content is not None and thought.content[0].text == "Let me look."
    assert thought.encrypted_content
    assert message.type == "message" and answer.output_text == "Sure."
    assert call.type == "function_call" and (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "世界"})
    assert (answer.status, answer.store if hasattr(answer, "store") else False) == ("completed", False)
    assert answer.usage is not None and answer.usage.input_tokens_details.cached_tokens == 4
    assert answer.usage.output_tokens == len(qwen.encoder.encode_now(WRITTEN))


@pytest.mark.parametrize("chunk", [1, 3, 1000])
async def test_a_stream_is_the_whole_response(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel, chunk: int
) -> None:
    """The events are numbered and in order, the SDK's sum of deltas and the last event are the whole response."""
    script(generator, qwen, WRITTEN, chunk)
    whole = await client.responses.create(model="qwen", input="W?", tools=[TOOL])
    stream = await client.responses.create(model="qwen", input="W?", tools=[TOOL], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == "response.completed"
    deltas: dict[str, str] = {}
    for event in events:
        if event.type in (
            "response.output_text.delta",
            "response.reasoning_text.delta",
            "response.function_call_arguments.delta",
        ):
            deltas[event.type] = deltas.get(event.type, "") + event.delta
    assert deltas["response.output_text.delta"] == "Sure."
    assert deltas["response.reasoning_text.delta"] == "Let me look."
    ids = {"id", "call_id"}
    done = [event.item.model_dump(exclude=ids) for event in events if event.type == "response.output_item.done"]
    assert done == [item.model_dump(exclude=ids) for item in last.response.output]
    assert done == [item.model_dump(exclude=ids) for item in whole.output]
    async with client.responses.stream(model="qwen", input="W?", tools=[TOOL]) as helper:
        final = await helper.get_final_response()
    assert final.output_text == "Sure."


async def test_an_agents_conversation_is_the_chat_that_it_means(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """Codex's shapes: an answer's thoughts, text and call are one message, and packed thoughts are read again."""
    template = qwen.template
    assert template is not None
    await client.responses.create(**CODEX)
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": CODEX["instructions"]},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Looking.", "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
        {"role": "user", "content": "And there?"},
    ]
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    values = {"enable_thinking": True, "reasoning_effort": "medium"}
    tools = [{"type": "function", "function": function}]
    text = template.render(chat, tools=tools, add_generation_prompt=True, values=values)
    assert list(generator.requests[0].prompt) == qwen.encoder.encode_now(text)
    assert generator.requests[0].session == "session-1"


async def test_what_came_out_goes_in_again(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """The output of a response is input of the next one as it is, and the thoughts are not lost."""
    script(generator, qwen, WRITTEN)
    first = await client.responses.create(model="qwen", input="W?", tools=[TOOL], include=CODEX["include"])
    items: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
    items += [{"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "Sunny."}]
    await client.responses.create(model="qwen", input=[{"role": "user", "content": "W?"}, *items], tools=[TOOL])
    prompt = qwen.tokenizer.decode(list(generator.requests[-1].prompt), skip_special_tokens=False)
    assert "Sunny." in prompt and "Sure." in prompt


async def test_a_cut_answer_is_incomplete_and_a_broken_one_failed(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """The status says so, in the response and in the last event."""
    script(generator, qwen, "one two", reason="length")
    cut = await client.responses.create(model="qwen", input="Hi", max_output_tokens=5)
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    ids = qwen.encoder.encode_now("one two")
    generator.script = lambda request: [*say(ids)[:1], GatewayError(502, "gone")]
    events = [event async for event in await client.responses.create(model="qwen", input="Hi", stream=True)]
    error, last = events[-2:]
    assert error.type == "error" and error.message == "gone"
    assert last.type == "response.failed" and last.response.status == "failed"


async def test_structured_output_is_a_grammar(client: openai.AsyncOpenAI, generator: ScriptedGenerator) -> None:
    """``text.format`` and a required tool go to one engine as chat's do."""
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}}
    await client.responses.create(model="qwen", input="Hi", text=form)
    assert generator.requests[-1].features.structured_output
    await client.responses.create(model="qwen", input="Hi", tools=[TOOL], tool_choice="required")
    assert generator.requests[-1].features.structured_output
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    await client.responses.create(model="qwen", input="Hi", tools=[TOOL], tool_choice=allowed)
    assert generator.requests[-1].features.structured_output


MALFORMED: dict[str, dict[str, Any]] = {
    "stored": {"previous_response_id": "resp_1"},
    "background": {"background": True},
    "conversation": {"conversation": "c"},
    "input": {"input": None},
    "empty": {"input": []},
    "item": {"input": [7]},
    "kind": {"input": [{"type": "item_reference", "id": "x"}]},
    "role": {"input": [{"role": "tool", "content": "x"}]},
    "image": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    "output": {"input": [{"type": "function_call_output", "call_id": "c", "output": 7}]},
    "tool": {"tools": [{"type": "web_search"}]},
    "tools": {"tools": 7},
    "choice": {"tool_choice": {"type": "web_search"}},
    "format": {"text": {"format": {"type": "grammar"}}},
    "instructions": {"instructions": 7},
    "truncation": {"truncation": "middle"},
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_refused(messages_server: AppServer, name: str) -> None:
    """Each is a 400 in OpenAI's shape that names the field."""
    body = {"model": "qwen", "input": "Hi"} | MALFORMED[name]
    async with httpx.AsyncClient(base_url=messages_server.url) as plain:
        answer = await plain.post("/v1/responses", content=json.dumps(body))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"]
