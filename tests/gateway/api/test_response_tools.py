"""Tools of ``/v1/responses`` that are no plain functions: namespaces and custom tools, as Codex offers them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from gateway.api.responses import translate_response
from gateway.errors import GatewayError
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator
from tests.fakes.server import AppServer
from tests.gateway.api.test_messages_client import messages_server, qwen, script

__all__ = ["messages_server", "qwen"]

SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Helpers.",
    "tools": [
        {"type": "function", "name": "spawn", "parameters": {"type": "object"}, "strict": False},
        {"type": "function", "name": "close", "parameters": {"type": "object"}},
    ],
}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "A patch.", "format": {"type": "text"}}
SHELL: dict[str, Any] = {"type": "function", "name": "exec_command", "parameters": {"type": "object"}}
SEARCH: dict[str, Any] = {"type": "web_search", "external_web_access": False}
CALLS = (
    "Hm.</think>\n\n"
    '<tool_call>\n{"name": "agents__spawn", "arguments": {"task": "世界"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n+ \\"x\\""}}\n</tool_call>\n'
    '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}\n</tool_call>'
)
TEXT = '*** Begin\n+ "x"'


@pytest.fixture
async def client(messages_server: AppServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK without retries."""
    async with openai.AsyncOpenAI(base_url=f"{messages_server.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


def names_of(body: dict[str, Any]) -> list[str]:
    """The functions that a body's chat offers."""
    return [tool["function"]["name"] for tool in translate_response(body)["tools"]]


def test_all_are_functions_of_the_chat() -> None:
    """A namespace stands before its functions' names, a custom tool takes one text, a search without web is gone."""
    body = {"model": "m", "input": "Hi", "tools": [SHELL, SPACE, PATCH, SEARCH]}
    assert names_of(body) == ["exec_command", "agents__spawn", "agents__close", "apply_patch"]
    assert translate_response(body)["tools"][-1]["function"]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "spawn"}, "agents__spawn"),
        ({"type": "function", "name": "agents__close"}, "agents__close"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "exec_command"}, "exec_command"),
    ],
)
def test_a_choice_names_any_of_them(choice: dict[str, Any], name: str) -> None:
    """A function of a namespace may be named alone."""
    body = {"model": "m", "input": "Hi", "tools": [SHELL, SPACE, PATCH]}
    assert translate_response({**body, "tool_choice": choice})["tool_choice"]["function"]["name"] == name
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    (one,) = translate_response({**body, "tool_choice": allowed})["tool_choice"]["allowed_tools"]["tools"]
    assert one["function"]["name"] == name


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "web_search", "external_web_access": True}, "tools[0].type"),
        ({"type": "mcp", "server_label": "x"}, "tools[0].type"),
        ({"type": "namespace", "name": "a"}, "tools[0].type"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "b"}]}, "tools[0].tools[0].type"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "custom", "name": 5}, "tools[0].name"),
        ("x", "tools[0].type"),
    ],
)
def test_what_cannot_be_called_is_refused(tool: Any, param: str) -> None:
    """Tools of OpenAI's servers and tools without a name are a 400 that names the place."""
    with pytest.raises(GatewayError) as caught:
        translate_response({"model": "m", "input": "Hi", "tools": [tool]})
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("chunk", [1, 1000])
async def test_calls_come_in_the_words_of_their_tools(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel, chunk: int
) -> None:
    """A call of a namespace has both names, one of a custom tool its text; events and the whole response agree."""
    script(generator, qwen, CALLS, chunk)
    asked: dict[str, Any] = {"model": "qwen", "input": "Go", "tools": [SHELL, SPACE, PATCH, SEARCH]}
    events = [event async for event in await client.responses.create(**asked, stream=True)]
    spawn, patch, shell = events[-1].response.output[1:]
    assert (spawn.type, spawn.namespace, spawn.name) == ("function_call", "agents", "spawn")
    assert json.loads(spawn.arguments) == {"task": "世界"}
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", TEXT)
    assert (shell.type, shell.name, shell.namespace) == ("function_call", "exec_command", None)
    kinds = [event.type for event in events]
    assert kinds.count("response.function_call_arguments.done") == 2
    (delta,) = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert delta.delta == done.input == TEXT
    whole = await client.responses.create(**asked)
    ids = {"id", "call_id"}
    assert [item.model_dump(exclude=ids) for item in whole.output] == [
        item.model_dump(exclude=ids) for item in events[-1].response.output
    ]


def test_the_past_is_read_in_the_same_words() -> None:
    """Calls that are sent back mean the functions that they were, and their results follow."""
    given = [
        {"role": "user", "content": "Go"},
        {"type": "function_call", "call_id": "c1", "namespace": "agents", "name": "spawn", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": TEXT},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
    ]
    _, called, *results = translate_response({"model": "m", "input": given})["messages"]
    functions = [call["function"] for call in called["tool_calls"]]
    assert functions[0] == {"name": "agents__spawn", "arguments": "{}"}
    assert functions[1]["name"] == "apply_patch" and json.loads(functions[1]["arguments"]) == {"input": TEXT}
    assert [(result["tool_call_id"], result["content"]) for result in results] == [("c1", "ok"), ("c2", "done")]


def test_what_codex_says_of_itself_goes_nowhere() -> None:
    """``client_metadata`` is no field for engines: an unknown one would keep answers from being split."""
    assert "client_metadata" not in translate_response({"model": "m", "input": "Hi", "client_metadata": {"a": "b"}})
