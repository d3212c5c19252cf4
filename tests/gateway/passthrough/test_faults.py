"""Upstreams that fail: another one is asked while nothing has come back, and the client always learns the end."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.fakes.gates import HoldGate
from tests.fakes.upstream import JSON, NOTHING, SSE, Say
from tests.gateway.passthrough.conftest import Rig

CHAT = "/v1/chat/completions"
OWN_ERROR = b'{"error":{"message":"too many tokens","type":"BadRequestError","param":"messages","code":400}}'


def refuse(status: int, body: bytes = b"no", **headers: str) -> Say:
    """A refusal."""
    return Say(
        (body,), status, tuple((name.replace("_", "-").encode(), text.encode()) for name, text in headers.items())
    )


@pytest.mark.parametrize("first", [NOTHING, Say((), cut=True, headers=JSON), *map(refuse, (429, 502, 503, 504))])
async def test_another_server_is_tried(rig: Rig, first: Say) -> None:
    """A server that cannot answer now is passed over, unseen by the client."""
    rig.upstreams[0].say = first
    answer = await rig.ask(CHAT)
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert rig.upstreams[0].asked and len(rig.upstreams[1].asked) == 1


async def test_a_head_without_a_body_is_tried_elsewhere(rig: Rig) -> None:
    """An answer that breaks off before its first byte is none."""
    rig.upstreams[0].say = Say((b"",), headers=SSE, cut=True)
    assert (await rig.ask(CHAT, stream=True)).json() == {"ok": True}
    assert len(rig.upstreams[1].asked) == 1


@pytest.mark.parametrize(
    ("first", "status", "message"),
    [
        (refuse(400, OWN_ERROR), 400, "too many tokens"),
        (refuse(422, b'{"detail":[]}'), 422, "The server answered 422."),
        (refuse(500, b"<html>prompt of somebody</html>"), 500, "The server answered 500."),
        (refuse(401, OWN_ERROR), 502, "The server does not take the gateway's key."),
        (refuse(302, b"", location="http://10.0.0.1/"), 502, "The server answered with the unexpected status 302."),
        (Say((b'{"id":', b'"x"'), cut=True), 502, "The server broke the answer off."),
    ],
)
async def test_other_refusals_are_the_answer(rig: Rig, first: Say, status: int, message: str) -> None:
    """What another server would say too goes to the client at once, in OpenAI's shape."""
    rig.upstreams[0].say = first
    answer = await rig.ask(CHAT)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)
    assert not rig.upstreams[1].asked


async def test_the_last_refusal_is_told(rig: Rig) -> None:
    """When every server is busy the client gets the last one's words and its Retry-After."""
    rig.upstreams[0].say = refuse(503)
    rig.upstreams[1].say = refuse(429, b'{"error":{"message":"slow down"}}', retry_after="7")
    answer = await rig.ask(CHAT)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["message"] == "slow down"


@pytest.mark.parametrize(("code", "status"), [(429, 429), (None, 502), ("rate_limit", 502), (9999, 502)])
async def test_an_error_as_the_first_event_is_an_error(rig: Rig, code: Any, status: int) -> None:
    """A stream that begins with an error becomes a status that is one."""
    event = {"error": {"message": "overloaded", "code": code}}
    rig.upstreams[0].say = Say((f"data: {json.dumps(event)}\n\n".encode(), b"data: [DONE]\n\n"), headers=SSE)
    answer = await rig.ask(CHAT, stream=True)
    assert (answer.status_code, answer.json()) == (status, event)


async def test_a_stream_that_breaks_off_ends_in_an_error_event(rig: Rig) -> None:
    """After the first byte nothing is tried again, and the client can tell the cut from an end."""
    rig.upstreams[0].say = Say((b'data: {"a":1}\n\ndata: {"b', HoldGate()), headers=SSE, cut=True)
    gate = rig.upstreams[0].say.pieces[1]
    assert isinstance(gate, HoldGate)
    gate.open()
    answer = await rig.ask(CHAT, stream=True)
    *_, last = answer.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "bad_gateway"
    assert "[DONE]" not in answer.text
    assert not rig.upstreams[1].asked
    assert rig.counted("pdd_passed_requests_total", server="up1", path=CHAT, outcome="failed") == 1


async def test_a_passed_stream_that_the_gateways_end_cuts(rig: Rig) -> None:
    """OPS-10: the client learns why, also within an event, and the upstream's work ends."""
    gate = HoldGate()
    rig.upstreams[0].say = Say((b'data: {"a":1}\n\ndata: {"b"', gate), headers=SSE)
    async with rig.client.stream("POST", CHAT, json={"model": "guest", "stream": True}) as answer:
        got = answer.aiter_raw()
        assert await anext(got)
        rig.gateway.cut()
        blank, _, event = b"".join([piece async for piece in got]).partition(b"data: ")
    assert (blank, json.loads(event)["error"]["code"]) == (b"\n\n", "shutting_down")
    await rig.upstreams[0].idle()
    assert rig.upstreams[0].asked[0].state == "aborted"


async def test_other_passed_content_that_the_gateways_end_cuts(rig: Rig) -> None:
    """OPS-10: content that has no room for an error is cut, so that nobody takes it for whole."""
    rig.upstreams[0].say = Say((b"RIFF", HoldGate()), headers=((b"content-type", b"audio/wav"),))
    async with rig.client.stream("POST", "/v1/audio/speech", json={"model": "guest", "input": "x"}) as answer:
        got = answer.aiter_raw()
        assert await anext(got) == b"RIFF"
        rig.gateway.cut()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await anext(got)


async def test_other_content_that_breaks_off_breaks_off(rig: Rig) -> None:
    """Half a sound file is not passed off as a whole one."""
    rig.upstreams[0].say = Say((b"RIFF" * 100,), headers=((b"content-type", b"audio/wav"),), cut=True)
    with pytest.raises(httpx.RemoteProtocolError):
        await rig.ask("/v1/audio/speech", input="x")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_the_upstreams_work(rig: Rig, stream: bool) -> None:
    """The upstream's connection is closed, before the first byte and after it."""
    gate = HoldGate()
    pieces = (b"data: 1\n\n", gate) if stream else (gate,)
    rig.upstreams[0].say = Say(pieces, headers=SSE if stream else JSON)
    asking = asyncio.create_task(rig.ask(CHAT, stream=stream))
    await gate.arrivals()
    asking.cancel()
    await rig.upstreams[0].idle()
    assert rig.upstreams[0].asked[0].state == "aborted"
    await rig.server.connections_left(0)
    assert rig.counted("pdd_passed_requests_total", server="up1", path=CHAT, outcome="client_gone") == 1
    assert rig.gateway.passing.servers.upstreams[0].in_flight == 0


async def test_the_least_loaded_server_is_asked(rig: Rig) -> None:
    """Requests spread over the servers; when each has its most, the next is refused and says when to come again."""
    gate = HoldGate()
    for upstream in rig.upstreams:
        upstream.say = Say(before=gate)
    asking = [asyncio.create_task(rig.ask(CHAT)) for _ in range(4)]
    await gate.arrivals(4)
    assert [len(upstream.asked) for upstream in rig.upstreams] == [2, 2]
    refused = await rig.ask(CHAT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    gate.open()
    assert all([(await answer).status_code == 200 for answer in asking])


async def test_a_dead_server_is_left_alone_until_it_answers_again(rig: Rig) -> None:
    """A server that cannot be reached is asked no more, and is used again once the watch has found it."""
    await rig.upstreams[0].stop()
    for _ in range(3):
        assert (await rig.ask(CHAT)).status_code == 200
    assert len(rig.upstreams[1].asked) == 3
    assert 'pdd_upstream_up{upstream="up1"} 0.0' in (await rig.client.get("/metrics")).text
    await rig.upstreams[0].start()
    await rig.gateway.passing.servers.upstreams[0].check()
    assert (await rig.ask(CHAT)).status_code == 200
    assert len(rig.upstreams[0].asked) == 1


async def test_no_server_left(rig: Rig) -> None:
    """With every server gone the model is still known, and cannot be served."""
    for upstream in rig.upstreams:
        await upstream.stop()
    answers = [await rig.ask(CHAT) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [502, 503]


@pytest.mark.parametrize("after_first_byte", [False, True])
async def test_silence_ends(rig: Rig, after_first_byte: bool) -> None:
    """A server that says nothing is given up, and no other is burdened with the same request."""
    for upstream in rig.gateway.passing.servers.upstreams:
        upstream.spec = replace(upstream.spec, first_byte_timeout_s=0.05, idle_timeout_s=0.05)
    pieces = (b"data: 1\n\n", HoldGate()) if after_first_byte else (HoldGate(),)
    rig.upstreams[0].say = Say(pieces, headers=SSE)
    answer = await rig.ask(CHAT, stream=True)
    assert answer.status_code == (200 if after_first_byte else 504)
    assert "error" in answer.text
    assert not rig.upstreams[1].asked
    await rig.upstreams[0].idle()
