"""Requests for upstreams' models are passed on as they are, and nothing of the gateway's leaks either way."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from gateway.api.prepare import Caller
from gateway.auth.secrets import Salts
from gateway.config.document_store import Document
from gateway.config.paths import PASSED_PATHS
from gateway.config.rulebook import RULES
from gateway.errors import GatewayError
from gateway.http.client import Client
from gateway.redis.client import SharedRedis
from gateway.telemetry.trace import read_rows
from policies.rules import parse_rules
from tests.fakes.gates import HoldGate
from tests.fakes.upstream import JSON, NOTHING, SSE, Say
from tests.gateway.passthrough.conftest import Rig

CHAT = "/v1/chat/completions"
JSON_PATHS = [path for path, form in PASSED_PATHS.items() if form == "json"]


async def test_a_chat_is_passed_on_whole(rig: Rig) -> None:
    """The body arrives as it was parsed, with the fields that the gateway does not know, and the answer comes back."""
    said = b'{"id":"x", "choices":[],  "usage":{"prompt_tokens":3,"completion_tokens":4}}'
    rig.upstreams[0].say = Say((said,))
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]
    answer = await rig.ask(CHAT, messages=messages, top_a=0.5)
    assert (answer.status_code, answer.content) == (200, said)
    asked = rig.upstreams[0].asked[0]
    assert asked.path == CHAT
    assert json.loads(asked.body) == {"model": "guest", "messages": messages, "top_a": 0.5}
    timeline = (await rig.client.get(f"/admin/requests/{answer.headers['x-request-id']}")).json()
    assert (timeline["server"], timeline["outcome"], timeline["completion_tokens"]) == ("up1", "finished", 4)
    assert rig.counted("pdd_passed_requests_total", server="up1", path=CHAT, outcome="finished") == 1


async def test_a_stream_comes_byte_for_byte_as_it_is_made(rig: Rig) -> None:
    """Each piece reaches the client before the next one is made, unchanged."""
    gate = HoldGate()
    pieces = (b': hello\n\ndata: {"a":1}\r\n', b"\r\nevent: x\ndata: 2\n\ndata: [DONE]\n\n")
    rig.upstreams[0].say = Say((pieces[0], gate, pieces[1]), headers=SSE)
    async with rig.client.stream("POST", CHAT, json={"model": "guest", "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        got = answer.aiter_raw()
        assert await anext(got) == pieces[0]
        gate.open()
        assert b"".join([piece async for piece in got]) == pieces[1]


async def test_no_credential_and_no_unlisted_header_goes_on(rig: Rig) -> None:
    """The upstream gets its own key, or none at all, and only headers that are on the list."""
    rig.upstreams[1].say = rig.upstreams[0].say
    secret = {
        "authorization": "Bearer client-secret",
        "x-api-key": "client-secret",
        "api-key": "client-secret",
        "cookie": "client-secret",
        "x-prefill-host": "10.0.0.1",
        "connection": "keep-alive, x-foo",
        "x-foo": "1",
        "anthropic-version": "2023-06-01",
    }
    for _ in range(2):
        await rig.client.post(CHAT, json={"model": "guest"}, headers=secret)
    first, second = rig.upstreams[0].asked[0], rig.upstreams[1].asked[0]
    assert first.header("authorization") == "Bearer upstream-secret"
    assert second.header("authorization") is None
    for asked in (first, second):
        assert b"client-secret" not in b"".join(value for _, value in asked.headers)
        names = {name.decode() for name, _ in asked.headers} - {"authorization"}
        assert names == {"host", "accept", "content-type", "content-length", "x-request-id", "anthropic-version"}


async def test_the_answers_framing_is_the_gateways(rig: Rig) -> None:
    """Hop-by-hop and framing headers, cookies and server names stay behind."""
    headers = (*JSON, (b"connection", b"x-foo"), (b"x-foo", b"1"), (b"set-cookie", b"a=1"), (b"server", b"internal"))
    rig.upstreams[0].say = Say((b'{"a":', b"1}"), headers=headers)
    answer = await rig.ask(CHAT)
    assert answer.json() == {"a": 1}
    assert answer.headers["content-length"] == "7"
    assert {"transfer-encoding", "x-foo", "set-cookie", "server"}.isdisjoint(answer.headers)


async def test_query_and_path_are_not_passed_on(rig: Rig) -> None:
    """Only the body names the model; what stands in the URL is dropped or is nothing."""
    await rig.client.post(f"{CHAT}?model=secret&api_base=http://h", json={"model": "guest"})
    assert rig.upstreams[0].asked[0].query == b""
    for path in ("/v1//embeddings", "/v1/embeddings/", "/V1/embeddings", "/v1/fine_tuning/jobs", "/v1/guest"):
        answer = await rig.client.post(path, json={"model": "guest"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model":"guest","model":"second"}', 400, "duplicate_field"),
        (b'{"input":"x"}', 400, "missing_field"),
        (b'{"model":7}', 400, "invalid_type"),
        (b'{"model":"guest","api_base":"http://10.0.0.1"}', 400, "internal_field"),
        (b'{"model":"guest","kv_transfer_params":{}}', 400, "internal_field"),
        (b'{"model":"guest\\n"}', 404, "model_not_found"),
        (b'{"model":"../admin"}', 404, "model_not_found"),
        (b'{"model":"second"}', 404, "unsupported_path"),
        (b"[]", 400, None),
    ],
)
async def test_bad_requests_reach_no_server(rig: Rig, body: bytes, status: int, code: str | None) -> None:
    """A wrong, hidden or unknown model and internal fields end here, in OpenAI's shape."""
    answer = await rig.client.post("/v1/embeddings", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not rig.upstreams[0].asked and not rig.upstreams[1].asked


@pytest.mark.parametrize("path", JSON_PATHS)
async def test_every_path_is_passed_on(rig: Rig, path: str) -> None:
    """What the table lists reaches the upstream at the same path."""
    assert (await rig.ask(path, input="x")).json() == {"ok": True}
    assert rig.upstreams[0].asked[0].path == path


async def test_a_transcription_is_passed_on(rig: Rig) -> None:
    """The model is a field of the form; the file arrives whole; a second model field is refused."""
    audio = bytes(range(256)) * 500
    files = {"file": ("speech.wav", audio, "audio/wav")}
    rig.upstreams[0].say = Say((b"hello",), headers=((b"content-type", b"text/plain"),))
    path = "/v1/audio/transcriptions"
    answer = await rig.client.post(path, files=files, data={"model": "guest", "language": "cs"})
    assert (answer.status_code, answer.content) == (200, b"hello")
    asked = rig.upstreams[0].asked[0]
    assert audio in asked.body and b'filename="speech.wav"' in asked.body and b"cs" in asked.body
    refused = await rig.client.post(path, files=files, data={"model": ["guest", "second"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "duplicate_field")
    refused = await rig.client.post(path, content=b"{}", headers={"content-type": "application/json"})
    assert refused.status_code == 400


async def test_an_engine_is_asked_for_the_gateways_own_model(rig: Rig) -> None:
    """What the gateway does not answer itself for its models goes to a main-decode engine that may have it."""
    answer = await rig.client.post("/tokenize", json={"model": "tiny", "prompt": "x"})
    assert answer.json() == {"tokens": [1, 2]}
    assert json.loads(rig.md.passed[0]) == {"model": "tiny", "prompt": "x"}
    answer = await rig.client.post("/v1/embeddings", json={"model": "tiny", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Not Found")


async def test_own_models_are_not_passed_on(rig: Rig) -> None:
    """An upstream that lists a model of the gateway's own gets none of its chats."""
    answer = await rig.client.post(
        CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    )
    assert answer.status_code == 200
    assert not rig.upstreams[1].asked


async def test_chats_with_media_go_to_an_engine(rig: Rig) -> None:
    """A chat that is not all text is answered by one engine's own chat API, with the tenant's salt, and counted."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 40_000}"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    answer = await rig.client.post(CHAT, json={"model": "tiny", "messages": messages, "max_tokens": 3})
    assert answer.json() == {"tokens": [1, 2]}
    assert json.loads(rig.md.passed[0]) == {"model": "tiny", "messages": messages, "max_tokens": 3}
    assert not rig.upstreams[1].asked
    counted = rig.counted("pdd_passed_requests_total", server="md", path=CHAT, outcome="finished")
    assert counted == 1
    assert 0 < rig.counted("pdd_tenant_prompt_tokens_total", tenant="default") < 100


async def test_models_are_listed(rig: Rig) -> None:
    """The gateway's own come first, then those of the upstreams, each once."""
    listed = (await rig.client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["tiny", "guest", "second"]
    assert (await rig.client.get("/v1/models/guest")).json()["id"] == "guest"


async def test_no_model_named_by_a_client_becomes_a_metric(rig: Rig) -> None:
    """Labels hold configured names only."""
    await rig.ask(CHAT, model="evil")
    assert "evil" not in (await rig.client.get("/metrics")).text


async def test_a_server_without_answer_costs_the_client_nothing(rig: Rig) -> None:
    """A connection that breaks before any answer is tried at the other server, once."""
    rig.upstreams[0].say = NOTHING
    assert (await rig.ask(CHAT)).json() == {"ok": True}
    assert len(rig.upstreams[1].asked) == 1


async def test_a_pinned_tenant_stays_in_its_regions(rig: Rig) -> None:
    """Rules that name regions hold for engines, and for upstreams, which must say where they stand."""
    for region, status in (("a", 200), ("b", 503)):
        rig.gateway.rulebook.replace(parse_rules({"regions": [region]}))
        answer = await rig.client.post("/tokenize", json={"model": "tiny", "prompt": "x"})
        assert answer.status_code == status
        assert (await rig.ask(CHAT)).status_code == 503
    assert not rig.upstreams[0].asked
    upstream = rig.gateway.passing.servers.upstreams[0]
    upstream.spec = replace(upstream.spec, region="b")
    assert (await rig.ask(CHAT)).status_code == 200


async def test_engines_get_the_adapters_salt_or_nothing(rig: Rig) -> None:
    """An adapter's prompts are salted without tenants, too; where that cannot be said the engine is not asked."""
    client, passing = Client(receive, send, 10.0), rig.gateway.passing
    salts = Salts(None, frozenset({"tiny"}))
    caller, value = Caller("t", salts=salts), {"model": "tiny", "input": "x"}
    async with client:
        await passing.pass_object("/v1/responses", value, Headers(), caller, client)
        with pytest.raises(GatewayError, match="adapters' caches are kept apart"):
            await passing.pass_object("/v1/messages", value, Headers(), caller, client)
    assert [json.loads(body).get("cache_salt") for body in rig.md.passed] == [salts.of_model(None, "tiny")]


async def test_engines_get_the_tenants_salt_or_nothing(rig: Rig) -> None:
    """Where an engine would cache a prompt the tenant's salt goes with it; without a way to say it, it is not asked."""
    client, passing = Client(receive, send, 10.0), rig.gateway.passing
    caller, value = Caller("t", cache_salt="salt-of-t"), {"model": "tiny", "input": "x"}
    async with client:
        await passing.pass_object("/v1/responses", value, Headers(), caller, client)
        await passing.pass_object("/tokenize", value, Headers(), caller, client)
        with pytest.raises(GatewayError, match="caches are kept apart"):
            await passing.pass_object("/v1/messages", value, Headers(), caller, client)
        await passing.pass_object("/v1/messages", value, Headers(), Caller("t"), client)
    assert [json.loads(body).get("cache_salt") for body in rig.md.passed] == ["salt-of-t", None, None]
    async with client:
        await passing.pass_object("/v1/responses", value | {"model": "guest"}, Headers(), caller, client)
    assert b"salt-of-t" not in rig.upstreams[0].asked[0].body


async def receive() -> Message:
    """Wait for a client that stays."""
    await asyncio.Event().wait()
    raise AssertionError


async def send(message: Message) -> None:
    """Take an answer that nobody reads."""


async def test_null_and_nested_fields(rig: Rig) -> None:
    """A field that steers engines and is null says nothing; a body that cannot be written again is refused."""
    assert (await rig.ask(CHAT, kv_transfer_params=None)).status_code == 200
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    refused = await rig.ask(CHAT, unknown=deep)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")


async def test_internal_fields_and_addresses(rig: Rig) -> None:
    """What clients may not set, and addresses that are not public, are refused here as everywhere."""
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}
    for path in ("/v1/chat/completions", "/v1/responses"):
        for body, code in (
            ({"kv_transfer_params": {}}, "internal_field"),
            ({"Api-Base": "http://10.0.0.1"}, "internal_field"),
            ({"messages": [image]}, "forbidden_url"),
        ):
            answer = await rig.ask(path, **body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert [upstream.asked for upstream in rig.upstreams] == [[], []]


async def test_a_passed_request_leaves_a_line_where_the_rule_says_so(rig: Rig, shared_redis: SharedRedis) -> None:
    """Its lengths are those that the server told, and its text is nowhere."""
    rig.upstreams[0].say = Say((b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}',))
    rig.gateway.rulebook.apply([Document(RULES, "default", 1, 1, 0, "", '{"trace":{"record":true}}')])
    assert (await rig.ask(CHAT, messages=[{"role": "user", "content": "secret"}])).status_code == 200
    await rig.gateway.tracer.flush()
    (row,) = await read_rows(shared_redis.client("test", 5.0), 0)
    assert (row.input_length, row.output_length, row.plan, row.model) == (3, 4, "passed_on", "guest")
    assert "secret" not in str(row)
