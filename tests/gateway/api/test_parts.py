"""Reasoning and tool calls as openai-python sees them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from gateway.api.app import ApiState, build_app
from gateway.api.respond import SILENT_TOKENS
from gateway.relay.types import Finish
from gateway.text.model import ServedModel
from gateway.text.parsers.registry import find_parsers
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
TOOLS: list[openai.types.chat.ChatCompletionToolUnionParam] = [{"type": "function", "function": {"name": "get"}}]
CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "東京"}}\n</tool_call>'
TEXT = f"<think>Well 😀</think>Sure. {CALL}\n{CALL}"


@pytest.fixture
async def client(state: ApiState, model: ServedModel) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a model whose answers hold reasoning and tool calls."""
    models = {"tiny": replace(model, parsers=find_parsers("hermes", "think", ()))}
    async with AppServer(build_app(replace(state, models=models))) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as opened:
            yield opened


@pytest.fixture(autouse=True)
def script(generator: ScriptedGenerator, model: ServedModel) -> None:
    """Let the model reason and call twice."""
    ids = model.encoder.encode_now(TEXT)
    generator.script = lambda request: say(ids)


async def test_whole_message(client: openai.AsyncOpenAI) -> None:
    """A whole answer has its parts apart."""
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content == "Sure."
    assert message.model_extra == {"reasoning": "Well 😀", "reasoning_content": "Well 😀"}
    assert message.tool_calls is not None
    calls = [call for call in message.tool_calls if call.type == "function"]
    assert [(c.function.name, c.function.arguments) for c in calls] == [("get", '{"city": "東京"}')] * 2
    assert len({call.id for call in calls}) == 2


async def test_streamed_message(client: openai.AsyncOpenAI) -> None:
    """A streamed answer has the same parts, each call's id, type and name once."""
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS, stream=True)
    content, reasoning, calls = "", "", dict[int, dict[str, Any]]()
    reasons = []
    async for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content", "")
        for call in delta.tool_calls or ():
            assert call.function is not None
            if call.id is not None:
                assert call.index not in calls
                calls[call.index] = {"name": call.function.name, "arguments": "", "type": call.type}
            calls[call.index]["arguments"] += call.function.arguments or ""
        reasons.append(chunk.choices[0].finish_reason)
    assert (content, reasoning) == ("Sure.", "Well 😀")
    assert list(calls.values()) == [{"name": "get", "arguments": '{"city": "東京"}', "type": "function"}] * 2
    assert reasons[-1] == "tool_calls"


async def test_a_long_call_is_no_silence(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """While a long call is made its client gets comments."""
    call = CALL.replace("東京", "k" * 4 * SILENT_TOKENS)
    ids = model.encoder.encode_now(call)
    generator.script = lambda request: say(ids, chunks=[1] * len(ids))
    body = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "stream": True}
    async with httpx.AsyncClient(base_url=str(client.base_url)) as plain:
        answer = await plain.post("chat/completions", json=body)
    assert answer.text.count(": keep-alive") >= 1
    assert "kkkk" in answer.text


async def test_one_call_at_a_time(client: openai.AsyncOpenAI) -> None:
    """API-108: a client that wants no parallel calls gets the first one, and tokens are counted as they were made."""
    both = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
    one = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False, extra_body={"include_reasoning": False}
    )
    assert one.choices[0].message.tool_calls is not None
    assert len(one.choices[0].message.tool_calls) == 1
    assert one.choices[0].message.model_extra == {}
    assert one.choices[0].finish_reason == "tool_calls"
    assert one.usage == both.usage


async def test_no_tools_no_calls(client: openai.AsyncOpenAI) -> None:
    """Without tools in the request, or with tool_choice none, such text is content."""
    for change in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, **change)  # type: ignore[call-overload]
        assert answer.choices[0].message.content == f"Sure. {CALL}\n{CALL}"
        assert answer.choices[0].finish_reason == "stop"


async def test_cut_in_the_reasoning(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """An answer cut by its limit while reasoning has reasoning alone, and says length."""
    ids = model.encoder.encode_now("<think>Well, </thi")
    generator.script = lambda request: say(ids, finish=Finish("length", False, None, len(ids), 0))
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].message.model_extra == {"reasoning": "Well, </thi", "reasoning_content": "Well, </thi"}
    assert answer.choices[0].finish_reason == "length"


async def test_prompt_that_opens_the_reasoning(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """Where the prompt ends with the opening tag the answer begins as reasoning."""
    ids = model.encoder.encode_now("so</think>Yes")
    generator.script = lambda request: say(ids)
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>"}]
    answer = await client.chat.completions.create(
        model="tiny",
        messages=messages,  # type: ignore[arg-type]
        extra_body={"continue_final_message": True},
    )
    assert answer.choices[0].message.content == "Yes"
    assert answer.choices[0].message.model_extra == {"reasoning": "so", "reasoning_content": "so"}
