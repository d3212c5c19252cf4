"""Requests that are unusual and legal: what an engine alone would take is taken, and read as the engine would."""

import json
from typing import Any

import pytest

from gateway.api.wire import ChatFields, CompletionFields
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer
from tests.gateway.api.raw import CHAT, connect

USER = {"role": "user", "content": "Hi"}
COMPLETION = {"model": "tiny", "prompt": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
TEXT = "Hello 😀 世界, you all."


async def ask(server: AppServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a good answer's JSON: of each of its chunks, or of the whole."""
    async with connect(server) as connection:
        await connection.post(f"/v1/{path}", body)
        status, headers = await connection.read_head()
        assert status == 200, body
        if "content-length" in headers:
            return [json.loads(await connection.reader.readexactly(int(headers["content-length"])))]
        *events, done, end = b"".join(await connection.read_chunks()).decode().split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def message(**fields: Any) -> dict[str, Any]:
    """A conversation that goes on after an assistant's message of these fields."""
    return {"messages": [USER, {"role": "assistant", **fields}, USER]}


def called(arguments: Any) -> dict[str, Any]:
    """A conversation with a tool call in its past."""
    return message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}])


ODD_CHATS: list[dict[str, Any]] = [
    {"stop": []}, {"stop": ["e\u0301"]}, {"logprobs": False, "top_logprobs": 0}, {"logprobs": 0}, {"top_logprobs": 0},
    {"stream_options": {}}, {"stream_options": None, "stream": False}, {"stream": True, "stream_options": {}},
    {"tools": [TOOL]}, {"tools": [], "tool_choice": "auto"}, {"tool_choice": "none"},
    {"tools": [{"function": {"name": "f"}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": None, "strict": None}}]},
    {"functions": []}, {"function_call": "none"}, {"functions": None, "function_call": None},
    {"return_tokens_as_token_ids": False}, {"modalities": ["text"], "audio": None}, {"verbosity": "low"},
    {"reasoning_effort": "low"}, {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}},
    {"response_format": {"type": "text"}}, {"logit_bias": {}}, {"logit_bias": {"5": 100}}, {"stop_token_ids": []},
    {"temperature": 2.5}, {"top_k": 0}, {"top_k": -1}, {"seed": -1}, {"best_of": 1}, {"use_beam_search": False},
    {"documents": []}, {"add_generation_prompt": True, "continue_final_message": False}, {"bad_words": []},
    {"messages": [{"role": "developer", "content": "x"}, USER]}, {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": ""}]}, message(), message(content=[]),
    {"messages": [{"role": "user", "content": "\u0000\ufeff\u202e\U0010ffff e\u0301 \r\n<|im_end|>"}]},
    {"messages": [{"role": "user", "content": ["a", {"type": "text", "text": "b"}], "name": "me"}]},
    message(content=[{"type": "refusal", "refusal": "no"}]), message(tool_calls=[], content="x"),
    message(content=None, tool_calls=None, function_call=None, audio=None, refusal=None, name=None),
    called("{}"), called(""), called(None), called({"a": 1}), called("[]"), called('"s"'),
    called('{"a": "\u00e9\U0001f600"}'),
]  # fmt: skip


@pytest.mark.parametrize("change", ODD_CHATS, ids=lambda change: json.dumps(change)[:60])
async def test_odd_chat_is_taken(server: AppServer, change: dict[str, Any]) -> None:
    """API-03: a chat that is spelt in an unusual way has its usual answer."""
    chunks = await ask(server, "chat/completions", {**CHAT, **change})
    parts = [chunk["choices"][0].get("message") or chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(part.get("content") or "" for part in parts) == TEXT


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [("chat/completions", CHAT, ChatFields), ("completions", COMPLETION, CompletionFields)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_null_is_not_given(
    server: AppServer, generator: ScriptedGenerator, path: str, body: dict[str, Any], fields: type, stream: bool
) -> None:
    """API-08: null for every optional field at once asks for nothing, on either endpoint."""
    names = {*ChatFields.__struct_fields__, *CompletionFields.__struct_fields__, "user", "response_format", "functions"}
    await ask(server, path, {**dict.fromkeys(names - {"stream"}), **body, "stream": stream})
    await ask(server, path, {**body, "stream": stream})
    nulls, plain = generator.requests
    assert (nulls.prompt, nulls.sampling, nulls.features) == (plain.prompt, plain.sampling, plain.features)
    assert (nulls.max_tokens, nulls.min_tokens, nulls.session) == (plain.max_tokens, plain.min_tokens, plain.session)


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        ({"max_tokens": 12.0}, {"max_tokens": 12}),
        ({"max_tokens": "12"}, {"max_tokens": 12}),
        ({"temperature": "0.7", "top_p": "1"}, {"temperature": 0.7, "top_p": 1}),
        ({"seed": 7.0, "stop_token_ids": [9.0]}, {"seed": 7, "stop_token_ids": [9]}),
        ({"logit_bias": {"5": "-1"}}, {"logit_bias": {"5": -1}}),
        ({"ignore_eos": "true"}, {"ignore_eos": True}),
        ({"max_tokens": 5, "max_completion_tokens": 9}, {"max_completion_tokens": 9}),
        ({"max_tokens": 9}, {"max_completion_tokens": 9}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": [TOOL]}),
    ],
)  # fmt: skip
async def test_two_spellings_mean_the_same(
    server: AppServer, generator: ScriptedGenerator, odd: dict[str, Any], plain: dict[str, Any]
) -> None:
    """API-08: numbers and flags are read as engines read them, and both names of the output limit are one limit."""
    for change in (odd, plain):
        await ask(server, "chat/completions", {**CHAT, **change})
    first, second = generator.requests
    assert (first.sampling, first.max_tokens, first.prompt) == (second.sampling, second.max_tokens, second.prompt)


@pytest.mark.parametrize("flag", ["true", 1, True])
async def test_stream_in_three_spellings(server: AppServer, flag: Any) -> None:
    """API-08: what an engine takes for true streams."""
    assert len(await ask(server, "chat/completions", {**CHAT, "stream": flag})) > 2


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_of_several_prompts(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel, stream: bool
) -> None:
    """Each choice of a batch begins with its own prompt, special tokens and half characters included."""
    half = model.encoder.encode_now("😀")[:1]
    prompts = [model.encoder.encode_now("<|im_start|>a"), [*model.encoder.encode_now("b"), *half]]
    body = {"model": "tiny", "prompt": prompts, "n": 2, "echo": True, "stream": stream}
    got = dict.fromkeys(range(4), "")
    reasons: dict[int, list[str]] = {index: [] for index in got}
    for chunk in await ask(server, "completions", body):
        for choice in chunk["choices"]:
            got[choice["index"]] += choice["text"]
            reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert list(got.values()) == ["<|im_start|>a" + TEXT] * 2 + ["b\ufffd" + TEXT] * 2
    assert list(reasons.values()) == [["stop"]] * 4


@pytest.mark.parametrize("stop", ["e", "\u0301", "e\u0301", "👩", "\u200d", "👩\u200d👧"])
async def test_stop_strings_that_cut_characters(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel, stop: str
) -> None:
    """A stop string may be a part of what looks like one character: the text ends before it."""
    text = "cafe\u0301 👩\u200d👧."
    generator.script = lambda request: say(model.encoder.encode_now(text))
    for stream in (False, True):
        chunks = await ask(server, "completions", {**COMPLETION, "stop": [stop], "stream": stream})
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text[: text.index(stop)]
        assert chunks[-1]["choices"][0]["stop_reason"] == stop


async def test_usage_chunk_only_when_asked(server: AppServer) -> None:
    """STR-03: without include_usage, or with false, no chunk speaks of usage; with true the last alone has numbers."""
    for options in (None, {}, {"include_usage": False}):
        chunks = await ask(server, "completions", {**COMPLETION, "stream": True, "stream_options": options})
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    *others, last = await ask(
        server, "completions", {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert [chunk["usage"] for chunk in others] == [None] * len(others)
    assert last["choices"] == [] and "completion_tokens_details" not in last["usage"]


async def test_ids_of_the_clients_are_not_used(server: AppServer, generator: ScriptedGenerator) -> None:
    """SPL-43: two requests with one X-Request-Id are two requests, under names that the gateway made."""
    for _ in range(2):
        async with connect(server) as connection:
            await connection.post("/v1/completions", COMPLETION, headers="X-Request-Id: mine\r\nIdempotency-Key: 1\r\n")
            assert (await connection.read_head())[1]["x-request-id"] != "mine"
    first, second = (request.request_id for request in generator.requests)
    assert first != second and "mine" not in first + second


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    deep: Any = []
    for _ in range(levels):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "change",
    [
        {"unknown_field": nested(900)},
        {"response_format": {"type": "json_schema", "schema": nested(900)}},
        {"messages": [{"role": "user", "content": nested(900)}]},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_deep_nesting(server: AppServer, generator: ScriptedGenerator, change: dict[str, Any]) -> None:
    """What is nested more deeply than it could be written for an engine is the client's fault, and nothing starts."""
    async with connect(server) as connection:
        await connection.post("/v1/chat/completions", {**CHAT, **change})
        assert (await connection.read_json())[0] == 400
    assert generator.answers == []
