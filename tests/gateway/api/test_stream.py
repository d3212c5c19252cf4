"""What goes over the wire, and when: status line, events, keep-alives, errors, disconnects, slow clients."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from backends.types import TokenLogprob
from gateway.api.app import ApiState, build_app
from gateway.api.endpoint import RequestLimits
from gateway.api.respond import KEEP_ALIVE
from gateway.errors import GatewayError
from gateway.relay.types import Finish, Tokens
from gateway.text.model import ServedModel
from tests.fakes.answers import KeepAlive, ScriptedGenerator, Step, say
from tests.fakes.gates import HoldGate
from tests.fakes.server import AppServer
from tests.gateway.api.raw import CHAT, connect

STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"


def steps_of(model: ServedModel, text: str = "Hello there") -> list[Step]:
    """Return the steps that say a text."""
    return say(model.encoder.encode_now(text))


def payloads(data: bytes) -> list[Any]:
    """Return the JSON of each event of an SSE body, [DONE] as it is."""
    events = [event for event in data.decode().split("\n\n") if event]
    found = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    return [event if event == "[DONE]" else json.loads(event) for event in found]


async def test_each_event_is_one_write(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """An event's bytes are on the wire before the next event exists, and one [DONE] ends the stream."""
    gates = [HoldGate() for _ in range(3)]
    first, second, *rest = steps_of(model)
    generator.script = lambda request: [first, gates[0], second, gates[1], *rest]
    async with connect(server) as connection:
        await connection.post(PATH, STREAM)
        status, headers = await connection.read_head()
        assert status == 200
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        assert (headers["x-pdd-plan"], headers["x-pdd-reason"]) == ("relay", "scripted")
        assert headers["x-request-id"] == generator.requests[0].request_id
        assert len(payloads(await connection.read_chunk())) == 2
        gates[0].open()
        assert len(payloads(await connection.read_chunk())) == 1
        gates[1].open()
        events = payloads(b"".join(await connection.read_chunks()))
        assert events.count("[DONE]") == 1
        assert events[-1] == "[DONE]"


async def test_no_status_line_before_the_first_event(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """While nothing came the client has no status line, so a late failure still has its own status."""
    gate = HoldGate()
    generator.script = lambda request: [gate, GatewayError(503, "later", retry_after_s=7)]
    async with connect(server) as connection:
        await connection.post(PATH, STREAM)
        await generator.started(1)
        await gate.arrivals(1)
        gate.open()
        status, headers, body = await connection.read_json()
        assert status == 503
        assert headers["retry-after"] == "7"
        assert body["error"] == {
            "message": "later",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }


async def test_keep_alive_opens_the_stream(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """A keep-alive is a comment; a failure after it is an error event and there is no [DONE]."""
    generator.script = lambda request: [KeepAlive(), KeepAlive(), GatewayError(400, "bad", param="messages")]
    async with connect(server) as connection:
        await connection.post(PATH, STREAM)
        assert (await connection.read_head())[0] == 200
        body = b"".join(await connection.read_chunks())
        signs, error = body[: 2 * len(KEEP_ALIVE)], body[2 * len(KEEP_ALIVE) :]
        assert signs == KEEP_ALIVE * 2
        assert [event["error"]["param"] for event in payloads(error)] == ["messages"]
        assert b"[DONE]" not in body
    await generator.all_closed()


@pytest.mark.parametrize("failure", [RuntimeError("secret"), RecursionError()], ids=["error", "recursion"])
async def test_a_fault_of_ours_ends_a_stream_with_an_error_event(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel, failure: Exception
) -> None:
    """An unexpected exception in a stream is an error event without details, and no cut that looks like an end."""
    generator.script = lambda request: [*steps_of(model)[:2], failure]
    async with connect(server) as connection:
        await connection.post(PATH, STREAM)
        assert (await connection.read_head())[0] == 200
        *_, error = payloads(b"".join(await connection.read_chunks()))
        assert (error["error"]["code"], error["error"]["type"]) == ("internal_error", "server_error")
        assert "secret" not in str(error)
    await generator.all_closed()


async def test_keep_alive_in_the_middle(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """Comments between chunks change nothing of the answer; a whole answer has none."""
    steps = [entry for step in steps_of(model) for entry in (KeepAlive(), step)]
    generator.script = lambda request: steps
    async with connect(server) as connection:
        await connection.post(PATH, STREAM)
        await connection.read_head()
        events = payloads(b"".join(await connection.read_chunks()))
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e != "[DONE]")
        assert text == "Hello there"
        await connection.post(PATH, CHAT)
        assert (await connection.read_json())[2]["choices"][0]["message"]["content"] == "Hello there"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("events_before", [0, 1, 3])
async def test_disconnect(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel, stream: bool, events_before: int
) -> None:
    """A client that leaves ends the answer at once, before the first token, mid-stream, streamed or not."""
    gate = HoldGate()
    steps = steps_of(model)
    generator.script = lambda request: [*steps[:events_before], gate, *steps[events_before:]]
    tasks = len(asyncio.all_tasks())
    async with connect(server) as connection:
        await connection.post(PATH, {**CHAT, "stream": stream})
        await gate.arrivals(1)
    await generator.all_closed()
    assert generator.answers[0].closes == 1
    assert generator.answers[0].given == events_before
    await server.connections_left(0)
    assert len(asyncio.all_tasks()) <= tasks + 1


async def test_no_choice_runs_on_while_another_ends(server: AppServer, generator: ScriptedGenerator) -> None:
    """STR-04: legs that take their time to end keep no other choice's legs running."""
    gate, closing = HoldGate(), HoldGate()
    generator.script = lambda request: [gate]
    async with connect(server) as connection:
        await connection.post(PATH, {**STREAM, "n": 3})
        await gate.arrivals(3)
        generator.answers[0].closing = closing
    async with asyncio.timeout(5):
        await generator.all_closed()
    closing.open()


async def test_disconnect_of_several_choices(server: AppServer, generator: ScriptedGenerator) -> None:
    """Every choice's answer is closed when the client leaves."""
    gate = HoldGate()
    generator.script = lambda request: [gate]
    async with connect(server) as connection:
        await connection.post(PATH, {**STREAM, "n": 3})
        await gate.arrivals(3)
    await generator.all_closed()
    assert [answer.closes for answer in generator.answers] == [1, 1, 1]


async def test_failure_of_one_of_several_choices(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """When one choice fails the request fails, and the others are closed."""
    gate = HoldGate()
    scripts: list[list[Step]] = [[gate], [GatewayError(502, "gone")]]
    generator.script = lambda request: scripts[len(generator.answers)]
    async with connect(server) as connection:
        await connection.post(PATH, {**STREAM, "n": 2})
        assert (await connection.read_head())[0] == 502
    await generator.all_closed()
    assert [answer.closes for answer in generator.answers] == [1, 1]


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_without_a_finish(
    server: AppServer, generator: ScriptedGenerator, model: ServedModel, stream: bool
) -> None:
    """An answer that ends without a finish is an error that the client sees, never a good answer."""
    generator.script = lambda request: steps_of(model)[:2]
    async with connect(server) as connection:
        await connection.post(PATH, {**CHAT, "stream": stream})
        if stream:
            await connection.read_head()
            events = payloads(b"".join(await connection.read_chunks()))
            assert events[-1]["error"]["code"] == "bad_gateway"
        else:
            assert (await connection.read_json())[0] == 502


async def test_tokens_out_of_order(server: AppServer, generator: ScriptedGenerator) -> None:
    """A gap in the positions is an error, and the text after it is not shown."""
    generator.script = lambda request: [Tokens(0, (300,), None, "P", "p"), Tokens(2, (301,), None, "RLD", "r")]
    async with connect(server) as connection:
        await connection.post(PATH, CHAT)
        assert (await connection.read_json())[0] == 500


def bulky_steps(events: int) -> list[Step]:
    """Return steps whose log-probabilities make some 200 KB of each event."""
    ids = tuple(range(300, 400))
    top = tuple((token_id, -1.0) for token_id in range(20))
    logprobs = tuple(TokenLogprob(token_id, -0.5, top) for token_id in ids)
    return [Tokens(at * len(ids), ids, logprobs, "MD", "m") for at in range(events)]


BULKY = {**STREAM, "logprobs": True, "top_logprobs": 20, "return_token_ids": True}


async def test_stalled_client_is_given_up(state: ApiState, generator: ScriptedGenerator) -> None:
    """A client that never reads stops the answer after the write timeout, and its connection is cut."""
    steps = bulky_steps(1000)
    generator.script = lambda request: steps
    server = AppServer(build_app(replace(state, limits=RequestLimits(write_timeout_s=0.2))))
    async with server, connect(server) as connection:
        await connection.post(PATH, BULKY)
        await generator.started(1)
        await generator.all_closed()
        assert generator.answers[0].given < len(steps)
        await server.connections_left(0)


async def test_slow_client_gets_all(server: AppServer, generator: ScriptedGenerator) -> None:
    """An answer waits for a client that reads late, which then gets every token."""
    events = 60
    last = HoldGate()
    steps = bulky_steps(events)
    generator.script = lambda request: [*steps, last, Finish("stop", False, None, events * 100, 0)]
    async with connect(server) as connection:
        await connection.post(PATH, BULKY)
        await connection.read_head()
        await connection.read_chunk()
        assert last.arrived == 0
        ids: list[int] = []
        while len(ids) < (events - 1) * 100:
            (event,) = payloads(await connection.read_chunk())
            ids += event["choices"][0]["token_ids"]
        assert ids == list(range(300, 400)) * (events - 1)
        last.open()
        assert payloads(b"".join(await connection.read_chunks()))[-1] == "[DONE]"


async def test_connection_is_kept(server: AppServer, generator: ScriptedGenerator) -> None:
    """A stream that ended well leaves the connection usable."""
    async with connect(server) as connection:
        for _ in range(3):
            await connection.post(PATH, STREAM)
            assert (await connection.read_head())[0] == 200
            assert payloads(b"".join(await connection.read_chunks()))[-1] == "[DONE]"


async def test_watchers_end_with_their_requests(server: AppServer, generator: ScriptedGenerator) -> None:
    """OPS-03: a connection that lives on keeps nothing of its earlier requests."""
    async with connect(server) as connection:
        counts = []
        for turn in range(60):
            await connection.post(PATH, {**CHAT, "stream": turn % 2 == 0})
            if turn % 2:
                await connection.read_json()
            else:
                await connection.read_head()
                await connection.read_chunks()
            counts.append(len(asyncio.all_tasks()))
        assert max(counts[30:]) <= max(counts[:5])


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length: 5\r\n folded\r\n",
        "Content-Length: +5\r\n",
    ],
)
async def test_ambiguous_framing(server: AppServer, generator: ScriptedGenerator, framing: str) -> None:
    """A request whose end two readers could see at two places is refused, and its connection ends."""
    async with connect(server) as connection:
        connection.writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{framing}\r\n0\r\n\r\n".encode())
        assert (await connection.read_head())[0] == 400
        async with asyncio.timeout(10):
            await connection.reader.read()
    assert generator.answers == []


async def test_body_that_does_not_arrive(state: ApiState, generator: ScriptedGenerator) -> None:
    """A body that stops coming is a 408, and the connection ends."""
    app = build_app(replace(state, limits=RequestLimits(body_timeout_s=0.05)))
    async with AppServer(app) as server, connect(server) as connection:
        connection.writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode())
        status, headers, body = await connection.read_json()
        assert (status, headers["connection"], body["error"]["code"]) == (408, "close", "request_timeout")
    assert generator.answers == []


async def test_disconnect_in_the_body(server: AppServer, generator: ScriptedGenerator) -> None:
    """A client that leaves while it sends its body starts nothing."""
    async with connect(server) as connection:
        connection.writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode())
        await connection.writer.drain()
    await server.connections_left(0)
    assert generator.answers == []


async def test_many_clients_that_leave(server: AppServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """After many disconnects at all moments nothing is left, and the next request is served at once."""
    gates = [HoldGate() for _ in range(4)]
    steps = steps_of(model)
    generator.script = lambda request: [*steps[: len(generator.answers) % 4], gates[len(generator.answers) % 4]]
    tasks = len(asyncio.all_tasks())
    for wave in range(1, 6):
        async with AsyncExitStack() as stack:
            for _ in range(20):
                connection = await stack.enter_async_context(connect(server))
                await connection.post(PATH, STREAM)
            for gate in gates:
                await gate.arrivals(5 * wave)
        await server.connections_left(0)
    await generator.all_closed()
    assert [answer.closes for answer in generator.answers] == [1] * 100
    assert len(asyncio.all_tasks()) <= tasks + 1
    generator.script = lambda request: steps
    async with connect(server) as connection:
        await connection.post(PATH, CHAT)
        assert (await connection.read_json())[0] == 200
