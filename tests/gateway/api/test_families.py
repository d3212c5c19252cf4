"""What models of different families write, as clients of the API get it; control tokens are left out as ever."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from gateway.api.app import ApiState, build_app
from gateway.text.model import ServedModel, load_model
from gateway.text.parsers.registry import find_parsers
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer
from tests.gateway.model_dir import make_model_dir

TOKENS = [
    *(f"<|{word}|>" for word in ("start", "end", "message", "channel", "constrain", "call", "open", "close", "sep")),
    *("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>", "<|eom_id|>"),
    *(f"<|tool_{name}|>" for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_end")),
    "<|tool_call_argument_begin|>",
]
TOOL = {
    "type": "function",
    "function": {
        "name": "get",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
ARGUMENTS = {"city": "東京 {中}", "days": 3}
SPELLED = json.dumps(ARGUMENTS, ensure_ascii=False)
FAMILIES: dict[str, tuple[str, str, str]] = {
    "qwen3": (
        "hermes",
        "qwen3",
        f'<think>\nso\n</think>\n\nSure.\n<tool_call>\n{{"name": "get", "arguments": {SPELLED}}}\n</tool_call>',
    ),
    "qwen3_coder": (
        "qwen3_coder",
        "qwen3",
        (
            "so\n</think>\n\nSure.\n\n<tool_call>\n<function=get>\n<parameter=city>\n東京 {中}\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
        ),
    ),
    "glm": (
        "glm47",
        "glm47",
        (
            "so</think>Sure.<tool_call>get<arg_key>city</arg_key><arg_value>東京 {中}</arg_value>"
            "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
        ),
    ),
    "llama": (
        "llama3_json",
        "think",
        f'<think>so</think>Sure.<|python_tag|>{{"name": "get", "parameters": {SPELLED}}}',
    ),
    "mistral": ("mistral", "mistral", f"[THINK]so[/THINK]Sure.[TOOL_CALLS]get[ARGS]{SPELLED}"),
    "kimi": (
        "kimi_k2",
        "kimi_k2",
        (
            "so</think>Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"
            f"{SPELLED}<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    "minimax": (
        "minimax_m2",
        "minimax_m2",
        (
            'so</think>Sure.\n<minimax:tool_call>\n<invoke name="get">\n<parameter name="city">東京 {中}</parameter>\n'
            '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>'
        ),
    ),
    "gpt-oss": (
        "openai",
        "openai_gptoss",
        (
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary<|message|>Sure.<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>"
            f"{SPELLED}<|call|>"
        ),
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """A model with the control tokens of all families, and no parsers."""
    directory = make_model_dir(tmp_path_factory.mktemp("families"))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(TOKENS)
    tokenizer.save(str(directory / "tokenizer.json"))
    served = load_model("tiny", directory)
    yield served
    served.close()


@pytest.fixture(params=sorted(FAMILIES))
async def client(
    request: pytest.FixtureRequest, plain: ServedModel, state: ApiState, generator: ScriptedGenerator
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model of a family."""
    tool_parser, reasoning_parser, text = FAMILIES[request.param]
    model = replace(plain, parsers=find_parsers(tool_parser, reasoning_parser, TOKENS))
    ids = model.encoder.encode_now(text)
    generator.script = lambda asked: say(ids)
    async with AppServer(build_app(replace(state, models={"tiny": model}))) as server:
        async with httpx.AsyncClient(base_url=server.url) as opened:
            yield opened


BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}


async def test_parts_of_all_families(client: httpx.AsyncClient) -> None:
    """API-121, API-122: reasoning, text and calls come apart, and no markup is in any of them."""
    answer = (await client.post("/v1/chat/completions", json=BODY)).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("so", "Sure.")
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get", ARGUMENTS)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


async def test_streamed_parts_of_all_families(client: httpx.AsyncClient) -> None:
    """A stream says the same, and no piece of its content is of blanks alone."""
    answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    contents = [delta["content"] for delta in deltas if delta.get("content")]
    assert not [text for text in contents if text.isspace()]
    assert "".join(contents) == "Sure."
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "so"
    (call,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get", ARGUMENTS)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_one_name_for_reasoning(
    plain: ServedModel, state: ApiState, generator: ScriptedGenerator, field: str
) -> None:
    """Where the settings name one field the reasoning stands there alone, streamed and whole."""
    parsers = find_parsers(None, "think", ())
    model = replace(plain, parsers=parsers, reasoning_fields=frozenset({field}))
    ids = model.encoder.encode_now("<think>so</think>yes")
    generator.script = lambda asked: say(ids)
    async with AppServer(build_app(replace(state, models={"tiny": model}))) as server:
        async with httpx.AsyncClient(base_url=server.url) as opened:
            whole = (await opened.post("/v1/chat/completions", json=BODY)).text
            streamed = (await opened.post("/v1/chat/completions", json={**BODY, "stream": True})).text
    for text in (whole, streamed):
        assert {name for name in ("reasoning", "reasoning_content") if f'"{name}":"' in text} == {field}
