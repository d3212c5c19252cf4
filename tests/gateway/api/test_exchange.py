"""How exchanges end when the gateway does, over real sockets."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from gateway.api.app import ApiState
from gateway.api.endpoint import ErrorReply, break_off
from gateway.http.client import Client, ShuttingDown
from gateway.http.edge import TRANSPORT
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.gates import HoldGate
from tests.fakes.server import AppServer
from tests.gateway.api.raw import CHAT, connect
from tests.gateway.api.test_stream import BULKY, PATH, STREAM, bulky_steps, payloads


@pytest.fixture
def gate(generator: ScriptedGenerator, model: ServedModel) -> HoldGate:
    """Held by every answer after its first token."""
    gate = HoldGate()
    first, *rest = say(model.encoder.encode_now("Hello there"))
    generator.script = lambda request: [first, gate, *rest]
    return gate


async def test_a_stream_that_is_cut_ends_in_an_error_event(
    server: AppServer, state: ApiState, generator: ScriptedGenerator, gate: HoldGate
) -> None:
    """STR-20, OPS-10: the client learns why its answer ends, the body ends properly, and the answer is closed."""
    async with connect(server) as connection:
        await connection.post(PATH, STREAM)
        assert (await connection.read_head())[0] == 200
        await gate.arrivals()
        state.access.clients.cut_off()
        events = payloads(b"".join(await connection.read_chunks()))
    assert len(events) == 3 and "[DONE]" not in events
    assert (events[-1]["error"]["code"], events[-1]["error"]["type"]) == ("shutting_down", "server_error")
    await generator.all_closed()


async def test_a_stream_that_is_cut_while_its_client_does_not_read(
    server: AppServer, state: ApiState, generator: ScriptedGenerator
) -> None:
    """STR-20: it then gets whole events without a hole, and the error as the last one, or a connection that is cut."""
    steps = bulky_steps(200)
    generator.script = lambda request: steps
    async with connect(server) as connection:
        await connection.post(PATH, BULKY)
        await connection.read_head()
        given = -1
        while given < (given := generator.answers[0].given):
            for _ in range(50):
                await asyncio.sleep(0)
        assert given < len(steps)
        state.access.clients.cut_off()
        events: list[Any] = []
        try:
            while chunk := await connection.read_chunk():
                events += payloads(chunk)
        except (asyncio.IncompleteReadError, ValueError):
            pass
        else:
            assert events.pop()["error"]["code"] == "shutting_down"
    ids = [id_ for event in events for id_ in event["choices"][0].get("token_ids", ())]
    assert ids == list(range(300, 400)) * (len(ids) // 100) and "[DONE]" not in events
    await generator.all_closed()


@pytest.mark.parametrize(("body", "tokens"), [(CHAT, 0), (CHAT, 1), (STREAM, 0)])
async def test_what_has_not_begun_is_refused(
    server: AppServer,
    state: ApiState,
    generator: ScriptedGenerator,
    model: ServedModel,
    body: dict[str, Any],
    tokens: int,
) -> None:
    """OPS-10: an answer of which nothing was sent is a 503 that says when to come again."""
    gate = HoldGate()
    generator.script = lambda request: [*say(model.encoder.encode_now("Hello"))[:tokens], gate]
    async with connect(server) as connection:
        await connection.post(PATH, body)
        await gate.arrivals()
        state.access.clients.cut_off()
        status, headers, answer = await connection.read_json()
    assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "1", "shutting_down")
    await generator.all_closed()


async def test_nothing_begins_after_the_cut(server: AppServer, state: ApiState, generator: ScriptedGenerator) -> None:
    """OPS-10: a request that still comes on an open connection is refused before anything is started for it."""
    state.access.clients.cut_off()
    async with connect(server) as connection:
        await connection.post(PATH, CHAT)
        status, _, answer = await connection.read_json()
    assert (status, answer["error"]["code"]) == (503, "shutting_down")
    assert not generator.answers


async def test_nothing_begins_for_a_body_that_comes_after_the_cut(
    server: AppServer, state: ApiState, generator: ScriptedGenerator
) -> None:
    """OPS-10: a request that was still being read when the gateway's end came is refused, too."""
    async with connect(server) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        connection.writer.write(head.encode())
        assert (await connection.read_head())[0] == 100
        state.access.clients.cut_off()
        connection.writer.write(b"{}")
        status, _, answer = await connection.read_json()
    assert (status, answer["error"]["code"]) == (503, "shutting_down")
    assert not generator.answers


@pytest.mark.parametrize("opened", [False, True])
async def test_a_client_that_takes_no_last_words_is_cut(opened: bool) -> None:
    """OPS-10: a client that reads nothing keeps the gateway for a moment only, whatever it was sent before."""
    stuck, cut = HoldGate(), HoldGate()

    async def receive() -> Message:
        await HoldGate().hold()
        raise AssertionError

    async def send(message: Message) -> None:
        if not opened or message["type"] == "http.response.body":
            await stuck.hold()

    class Transport:
        def abort(self) -> None:
            cut.arrived += 1

    client = Client(receive, send, 60.0)
    scope = {"state": {TRANSPORT: Transport()}}
    with pytest.raises(ShuttingDown):
        async with client:
            if opened:
                lines = [(b"content-type", b"text/event-stream")]
                await client.send({"type": "http.response.start", "status": 200, "headers": lines})
            client.leave(ShuttingDown())
            await HoldGate().hold()
    await break_off(scope, client, ErrorReply(send, "req-1"))
    assert (stuck.arrived, cut.arrived) == (1, 1)
