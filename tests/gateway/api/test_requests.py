"""What a request may hold, and how it is refused."""

import json
from typing import Any

import pytest

from gateway.api.fields import INTERNAL_FIELDS, STRUCTURED_FIELDS, THINKING_BUDGET_FIELDS
from gateway.http.body import UNIQUE_KEYS
from gateway.text.model import ServedModel
from policies.eligibility import unsplittable_reason
from policies.tenant_rules import SplittingRules
from tests.fakes.answers import ScriptedGenerator
from tests.fakes.server import AppServer
from tests.gateway.api.raw import CHAT, connect

COMPLETION = {"model": "tiny", "prompt": "Hi"}
USER = {"role": "user", "content": "Hi"}


async def post(server: AppServer, path: str, body: bytes | dict[str, Any]) -> tuple[int, Any]:
    """Return the status and the JSON answer of one POST."""
    async with connect(server) as connection:
        await connection.post(f"/v1/{path}", body)
        status, headers, answer = await connection.read_json()
        assert headers["content-type"] == "application/json"
        return status, answer


async def refused(server: AppServer, path: str, body: bytes | dict[str, Any]) -> tuple[int, str | None, str | None]:
    """Return status, param and code of a refusal, which has OpenAI's shape."""
    status, answer = await post(server, path, body)
    assert set(answer) == {"error"}
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return status, error["param"], error["code"]


BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": 3}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user", "content": 3}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "twelve"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": 4097}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 11, "max_tokens": 10}, "min_tokens"),
    ({"min_tokens": 4096}, "min_tokens"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "nan"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"stop": 3}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 3]}, "stop[1]"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 8193}, "stop"),
    ({"bad_words": ["a"] * 1025}, "bad_words"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"stream": "perhaps"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 2}}, "stream_options.include_usage"),
    ({"model": 3}, "model"),
    ({"model": None}, "model"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
]


@pytest.mark.parametrize(("change", "param"), BAD_CHAT)
async def test_bad_chat_field(
    server: AppServer, generator: ScriptedGenerator, change: dict[str, Any], param: str
) -> None:
    """A wrong field is a 400 that names it, and nothing is started."""
    status, named, _ = await refused(server, "chat/completions", {**CHAT, **change})
    assert (status, named) == (400, param)
    assert generator.answers == []


BAD_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, 2.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [[1], [[2]]]}, "prompt[1]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 10, "n": 20}, "prompt"),
    ({"prompt": [5] * 4096}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"suffix": "x"}, "suffix"),
]


@pytest.mark.parametrize(("change", "param"), BAD_COMPLETION)
async def test_bad_completion_field(server: AppServer, change: dict[str, Any], param: str) -> None:
    """A wrong field of a completion is a 400 that names it."""
    status, named, _ = await refused(server, "completions", {**COMPLETION, **change})
    assert (status, named) == (400, param)


@pytest.mark.parametrize(
    "name", [*sorted(INTERNAL_FIELDS), "bootstrap_room", "disagg_prefill_dp_rank", "remote_host", "x_tenant_id"]
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_internal_field(server: AppServer, generator: ScriptedGenerator, name: str, path: str) -> None:
    """Fields that steer engines are refused by name, whatever they say; null says nothing and goes nowhere."""
    base = CHAT if path.startswith("chat") else COMPLETION
    for value in (False, {"remote_host": "10.0.0.1"}, "x"):
        assert await refused(server, path, {**base, name: value}) == (400, name, "internal_field")
    assert generator.answers == []
    assert (await post(server, path, {**base, name: None}))[0] == 200
    assert generator.requests[0].sampling.extra == {}


@pytest.mark.parametrize("depth", [101, 300, 1000, 5000])
@pytest.mark.parametrize("named", [b'"tiny"', b'"tiny", "model": "tiny"', b'"\\u0074iny"'])
async def test_deep_nesting(server: AppServer, depth: int, named: bytes) -> None:
    """What is nested far deeper than anybody needs is a 400, however it is read."""
    body = b'{"model": %s, "messages": [{"role": "user", "content": "x", "y": %s%s}]}'
    assert (await refused(server, "chat/completions", body % (named, b"[" * depth, b"]" * depth)))[0] == 400


async def test_usual_nesting(server: AppServer) -> None:
    """Deep schemas of tools are taken."""
    schema: Any = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"x": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert (await post(server, "chat/completions", {**CHAT, "tools": [tool]}))[0] == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b"null", b'{"model": NaN}', b"{} {}", b'{"model": "tiny",}', b"\x00", b"[" * 100_000],
)
async def test_malformed_json(server: AppServer, body: bytes) -> None:
    """What is no JSON object is a 400 without a field."""
    assert (await refused(server, "chat/completions", body))[:2] == (400, None)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (rb'{"model":"tiny","messages":[{"role":"user","content":"x \ud83d"}]}', "messages[0].content"),
        (
            rb'{"model":"tiny","messages":[{"role":"tool","content":[{"type":"text","text":"\udc00"}]}]}',
            "messages[0].content[0].text",
        ),
        (rb'{"model":"ti\ud83dny","messages":[]}', "model"),
        (rb'{"model":"tiny","messages":[{"ro\ud83dle":"user"}]}', "messages[0]"),
        (b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}', "messages[0].content"),
        (b'{"model":"tiny","messages":[{"role":"user","content":"\xed\xa0\xbd"}]}', "messages[0].content"),
        (b'{"model":"tiny","stop":["a","\xc3"],"messages":[]}', "stop[1]"),
    ],
)
async def test_bad_unicode(server: AppServer, text: bytes, param: str) -> None:
    """Lone surrogates and bytes that are no UTF-8 are a 400 that names the place."""
    assert await refused(server, "chat/completions", text) == (400, param, "invalid_unicode")


@pytest.mark.parametrize("key", UNIQUE_KEYS)
@pytest.mark.parametrize("escaped", [False, True])
async def test_repeated_key(server: AppServer, key: str, escaped: bool) -> None:
    """A field given twice, also in two spellings, is refused: two readers could take two values."""
    second = f"\\u00{ord(key[0]):02x}{key[1:]}" if escaped else key
    fields = {
        **CHAT,
        "prompt": "x",
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "n": 1,
        "tools": None,
    }
    text = json.dumps(fields)[:-1] + f', "{second}": {json.dumps(fields[key])}}}'
    assert (await refused(server, "chat/completions", text.encode()))[1:] == (key, "duplicate_field")


async def test_repeated_keys_deeper_down(server: AppServer) -> None:
    """Names of fields inside messages and tools are no repetition."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"model": {}, "n": {}}}}}
    body = {**CHAT, "n": 1, "tools": [tool], "messages": [{"role": "user", "content": 'say "model" "n"', "model": 1}]}
    assert (await post(server, "chat/completions", body))[0] == 200


@pytest.mark.parametrize("name", ["other", "", "tiny\n", "x" * 5000, "TINY", " tiny"])
async def test_unknown_model(server: AppServer, name: str) -> None:
    """A model that is not served is a 404 that names the field and does not repeat a long name."""
    status, answer = await post(server, "completions", {"model": name, "prompt": "x"})
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (404, "model", "model_not_found")
    assert len(answer["error"]["message"]) < 200


async def test_model_in_the_query_is_not_read(server: AppServer, generator: ScriptedGenerator) -> None:
    """Only the body's model counts."""
    async with connect(server) as connection:
        await connection.post("/v1/completions?model=org/other", COMPLETION)
        assert (await connection.read_head())[0] == 200
    assert generator.requests[0].model == "tiny"


async def test_prompt_longer_than_the_context(server: AppServer, generator: ScriptedGenerator) -> None:
    """A conversation over the context is refused before any leg, with OpenAI's code."""
    for words in (5000, 50_000):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "word " * words}]}
        assert await refused(server, "chat/completions", body) == (400, "messages", "context_length_exceeded")
    assert generator.answers == []


async def test_truncation(server: AppServer, generator: ScriptedGenerator) -> None:
    """The prompt is cut once, on its left, for all legs; -1 cuts to what the context holds."""
    ids = list(range(5, 105))
    await post(server, "completions", {**COMPLETION, "prompt": ids, "truncate_prompt_tokens": 40})
    assert list(generator.requests[0].prompt) == ids[-40:]
    await post(
        server, "completions", {**COMPLETION, "prompt": ids * 100, "truncate_prompt_tokens": -1, "max_tokens": 96}
    )
    assert len(generator.requests[1].prompt) == 4000


async def test_body_too_large(server: AppServer) -> None:
    """A body over the limit is a 413, with a length and chunked."""
    body = b'{"model":"tiny","prompt":"' + b"x" * (1 << 20) + b'"}'
    assert (await refused(server, "completions", body))[0] == 413
    async with connect(server) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.writer.write(head.encode() + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
        status, headers, answer = await connection.read_json()
        assert (status, headers["connection"]) == (413, "close")
        assert answer["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("name", ["model", "messages"])
async def test_missing_field(server: AppServer, name: str) -> None:
    """A missing field is named."""
    body = {key: value for key, value in CHAT.items() if key != name}
    assert await refused(server, "chat/completions", body) == (400, name, "missing_field")


async def test_unread_fields(server: AppServer, generator: ScriptedGenerator) -> None:
    """Vendor fields go to the engine as they are; bookkeeping, nulls and the gateway's own fields do not."""
    vendor = {"guided_json": {"type": "object"}, "new_field": [1], "typical_p": 0.5}
    own = {"user": "u", "metadata": {"a": "b"}, "store": True, "other": None, "prompt": "x", "return_token_ids": True}
    body = {**CHAT, **vendor, **own, "stop": None, "n": None, "stream": None, "tools": None}
    assert (await post(server, "chat/completions", body))[0] == 200
    assert generator.requests[0].sampling.extra == vendor


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"seed": 1}, "seeded_sampling"),
        ({"seed": 1, "temperature": 0}, None),
        ({"presence_penalty": 0.5}, "penalty_state"),
        ({"repetition_penalty": 1.1}, None),
        ({"response_format": {"type": "json_object"}}, "structured_output"),
        ({"response_format": {"type": "text"}}, None),
        *(({name: "a+"}, "structured_output") for name in sorted(STRUCTURED_FIELDS)),
        *(({name: 100}, "thinking_budget") for name in sorted(THINKING_BUDGET_FIELDS)),
        ({"bad_words": ["quick brown"]}, "bad_words"),
        ({"a_sampler_of_tomorrow": 0.5}, "unknown_field"),
        ({"a_sampler_of_tomorrow": None, "allowed_token_ids": [1, 2]}, None),
        ({"max_tokens": 1}, "single_token"),
        ({"n": 2}, None),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
    ],
)
async def test_unsplittable(
    server: AppServer, generator: ScriptedGenerator, change: dict[str, Any], reason: str | None
) -> None:
    """What needs one engine alone is marked with its reason; choices are answers of their own."""
    assert (await post(server, "chat/completions", {**CHAT, **change}))[0] == 200
    rules = SplittingRules(refuse=("tools", "logprobs"))
    assert {unsplittable_reason(request.features, rules) for request in generator.requests} == {reason}


async def test_generation_fields(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """Limits, sampling and hints arrive at the relay as the client gave them; seeds count up over choices."""
    body = {**COMPLETION, "n": 2, "seed": 7, "temperature": 0.5, "top_k": 3, "min_tokens": 2, "stop_token_ids": [9]}
    async with connect(server) as connection:
        await connection.post("/v1/completions", body, headers="x-pdd-output-tokens: 300\r\n")
        await connection.read_head()
    first, second = generator.requests
    assert (first.max_tokens, first.min_tokens, first.output_hint_tokens) == (16, 2, 300)
    assert (first.sampling.seed, second.sampling.seed) == (7, 8)
    assert (first.sampling.temperature, first.sampling.top_k, first.sampling.stop_token_ids) == (0.5, 3, (9,))
    assert first.eos_token_ids == model.eos_token_ids
    await post(server, "chat/completions", CHAT)
    assert generator.requests[2].max_tokens is None


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
async def test_content_spellings(server: AppServer, generator: ScriptedGenerator, content: Any) -> None:
    """Empty content next to tool calls renders alike however it is spelt."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief.", "name": "x"},
        USER,
        {"role": "assistant", "content": content, "tool_calls": [call], "refusal": None},
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"model": "tiny", "messages": messages, "tools": tools, "tool_choice": "auto"}
    assert (await post(server, "chat/completions", body))[0] == 200
    await post(
        server, "chat/completions", {**body, "messages": [*messages[:2], {**messages[2], "content": ""}, *messages[3:]]}
    )
    assert generator.requests[0].prompt == generator.requests[1].prompt


async def test_continue_final_message(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """The model can be asked to go on from an assistant message."""
    messages = [USER, {"role": "assistant", "content": "It is"}]
    body = {"model": "tiny", "messages": messages, "continue_final_message": True}
    assert (await post(server, "chat/completions", body))[0] == 200
    text = model.tokenizer.decode(list(generator.requests[0].prompt), skip_special_tokens=False)
    assert text.endswith("<|im_start|>assistant\nIt is")


async def test_prompt_spellings(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """A prompt may be text, texts, ids or lists of ids."""
    ids = model.encoder.encode_now("Hi")
    for prompt in ("Hi", ["Hi"], ids, [ids]):
        assert (await post(server, "completions", {"model": "tiny", "prompt": prompt}))[0] == 200
    assert [list(request.prompt) for request in generator.requests] == [ids] * 4
