"""What a chat request says, through the door: what reaches the prompt, and what is counted."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.app import ApiState, build_app
from gateway.text.model import ServedModel
from gateway.text.shapes import ASK, call, result, says, text
from gateway.text.template import ChatTemplate
from tests.fakes.answers import ScriptedGenerator
from tests.fakes.server import AppServer
from tests.gateway.api.raw import CHAT, connect

PATH = "/v1/chat/completions"


async def ask(state: ApiState, body: dict[str, Any]) -> None:
    """Send a chat that is answered."""
    server = AppServer(build_app(state))
    await server.start()
    try:
        async with connect(server) as connection:
            await connection.post(PATH, {**CHAT, **body})
            status, _, answer = await connection.read_json()
            assert status == 200, answer
    finally:
        await server.stop()


def prompt_of(generator: ScriptedGenerator, model: ServedModel) -> str:
    """The prompt's text of the last request."""
    return str(model.tokenizer.decode(list(generator.requests[-1].prompt), skip_special_tokens=False))


@pytest.mark.parametrize("arguments", ['{"city": "Pra', "[]", '"text"', "42", '{"a": "\t"}'])
async def test_a_conversation_with_unreadable_arguments_goes_on(
    state: ApiState, generator: ScriptedGenerator, arguments: str
) -> None:
    """A turn after a tool call whose arguments were cut or are no object is answered, and the call is counted."""
    noted: list[str] = []
    messages = [ASK, says(None, tool_calls=[call(arguments), call("{}", 2)]), result("?")]
    await ask(replace(state, note_unread=noted.append), {"messages": messages})
    assert noted == ["tiny"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "aside", "signature": "s"},
        {"type": "redacted_thinking", "data": "aside"},
        {"type": "reasoning", "text": "aside"},
        {"type": "reasoning"},
    ],
)
async def test_thoughts_among_the_parts_are_taken(
    state: ApiState, generator: ScriptedGenerator, model: ServedModel, part: dict[str, Any]
) -> None:
    """An answer of the past may hold thoughts as parts: they are no part of what was said."""
    await ask(state, {"messages": [ASK, says([part, text("Rain.")]), ASK]})
    prompt = prompt_of(generator, model)
    assert "assistant\nRain.<|im_end|>" in prompt and "aside" not in prompt


EFFORT = "{{ reasoning_effort }} {{ enable_thinking if enable_thinking is defined else 'unset' }}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, " unset"),
        ({"reasoning_effort": "low"}, "low True"),
        ({"reasoning_effort": "high"}, "high True"),
        ({"reasoning_effort": "none"}, "none False"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "none True"),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "high False"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, " False"),
    ],
)
async def test_effort_turns_thinking_on_and_off(
    state: ApiState, generator: ScriptedGenerator, model: ServedModel, fields: dict[str, Any], prompt: str
) -> None:
    """``reasoning_effort`` reaches the template, "none" as thinking that is off; the template's own values win."""
    served = replace(model, template=ChatTemplate(EFFORT, {}))
    await ask(replace(state, models={"tiny": served}), fields)
    assert prompt_of(generator, model) == prompt
