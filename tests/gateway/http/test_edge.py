"""The edge over real sockets: what it takes, what it refuses, and how long it waits."""

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.api.app import ApiState, build_app
from gateway.http.doors import Doors
from gateway.http.edge import MOST_HEAD_BYTES, MOST_HEADERS, NO_ROOM, Edge, cut_connection, spell_refusal
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.gates import HoldGate
from tests.gateway.api.raw import CHAT, Connection
from tests.gateway.http.edge_server import EdgeServer

BODY = json.dumps(CHAT).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo:
    """Tells what it was asked; ``asked`` counts."""

    def __init__(self) -> None:
        self.asked: list[Scope] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the client's address, and only then with the rest."""
        self.asked.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"12")]})
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": scope["client"][0].encode().rjust(12)})


@pytest.fixture
def echo() -> Echo:
    """An application that tells."""
    return Echo()


@pytest.fixture
async def edge_server(state: ApiState) -> AsyncIterator[EdgeServer]:
    """The API behind the edge."""
    async with EdgeServer(build_app(state)) as server:
        yield server


async def open_connection(server: EdgeServer) -> Connection:
    """Connect."""
    return Connection(*await asyncio.open_connection("127.0.0.1", server.port))


async def exchange(server: EdgeServer, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    connection = await open_connection(server)
    try:
        connection.writer.write(data)
        async with asyncio.timeout(10):
            return await connection.reader.read()
    except ConnectionResetError:
        return b""
    finally:
        connection.writer.close()


REFUSED = {
    "length and chunks": HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
    "two lengths": HEAD + LENGTH + b"Content-Length: 1\r\n\r\n" + BODY,
    "one length twice": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    "list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "signed length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "hexadecimal length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "length over all numbers": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "space before the colon": HEAD + b"Content-Length : 5\r\n\r\nhello",
    "tab after chunked": HEAD + b"Transfer-Encoding: chunked\t\r\n\r\n" + CHUNKS,
    "vertical tab": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "other word": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n" + CHUNKS,
    "compressed": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "codings in two headers": HEAD + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunked twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKS,
    "folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "folded header": HEAD + b"A: b\r\n c\r\n" + LENGTH + b"\r\n" + BODY,
    "chunks in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "bare carriage return": b"GET /health HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: x\x00\r\n\r\n",
    "chunk size with a sign": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "chunk size over all numbers": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\nx",
    "chunk lines without CR": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "absolute target": b"GET http://y/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "target without a path": b"GET http://y HTTP/1.1\r\nHost: x\r\n\r\n",
    "authority": b"CONNECT y:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "fragment": b"GET /health#x HTTP/1.1\r\nHost: x\r\n\r\n",
    "method in lower case": b"get /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the target": b"GET /health x HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "version 0.9": b"GET /health HTTP/0.9\r\nHost: x\r\n\r\n",
    "version 1.2": b"GET /health HTTP/1.2\r\nHost: x\r\n\r\n",
    "version 2.0": b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
async def test_refused(edge_server: EdgeServer, generator: ScriptedGenerator, data: bytes) -> None:
    """What two readers could read in two ways is one clear error, nothing runs, and the connection ends."""
    answer = await exchange(edge_server, data + GET)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] in (b"400", b"505"), answer
    assert json.loads(body)["error"]["code"] == "bad_request"
    assert b"connection: close" in head
    assert generator.answers == []


TAKEN = {
    "length": HEAD + LENGTH + b"\r\n" + BODY,
    "spaces around the length": HEAD + b"Content-Length:   %d  \r\n\r\n" % len(BODY) + BODY,
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunked in capitals": HEAD + b"transfer-encoding: CHUNKED\r\n\r\n" + CHUNKS,
    "HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + LENGTH + b"\r\n" + BODY,
    "model in the query": HEAD.replace(b"completions", b"completions?model=none") + LENGTH + b"\r\n" + BODY,
    "upgrade and chunks": HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "upgrade": HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\n" + BODY,
    "other identities": HEAD + b"X-Tenant-Id: other\r\nx_tenant_id: a\r\nX-Priority: 0\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN.keys())
async def test_taken(edge_server: EdgeServer, generator: ScriptedGenerator, data: bytes) -> None:
    """Requests that can only mean one thing are answered, by the body's model and for the caller's tenant."""
    connection = await open_connection(edge_server)
    connection.writer.write(data)
    status, _, answer = await connection.read_json()
    assert (status, answer.get("model")) == (200, "tiny"), answer
    assert [request.tenant for request in generator.requests] == ["default"]
    connection.writer.close()


def as_old(body: dict[str, object]) -> bytes:
    """A chat of a client that speaks HTTP/1.0."""
    data = json.dumps(body).encode()
    return HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n" % len(data) + data


async def test_http_1_0(edge_server: EdgeServer, generator: ScriptedGenerator, model: ServedModel) -> None:
    """STR-20: an old client gets events as they come, unchunked, and the connection's end is the answer's."""
    last = HoldGate()
    first, *rest = say(model.encoder.encode_now("Hello world"))
    generator.script = lambda request: [first, last, *rest]
    connection = await open_connection(edge_server)
    connection.writer.write(as_old({**CHAT, "stream": True}))
    status, headers = await connection.read_head()
    assert (status, headers["connection"]) == (200, "close")
    assert headers.keys().isdisjoint({"transfer-encoding", "content-length"})
    async with asyncio.timeout(10):
        begun = [await connection.reader.readuntil(b"\n\n") for _ in range(2)]
        await last.arrivals()
        last.open()
        events = [*begun, *(await connection.reader.read()).split(b"\n\n")]
    assert all(event.startswith(b"data: {") for event in begun)
    assert events[-2:] == [b"data: [DONE]", b""]
    connection.writer.close()


async def test_an_old_client_gets_the_error_event_too(
    edge_server: EdgeServer, state: ApiState, generator: ScriptedGenerator
) -> None:
    """STR-20: a stream that is cut ends in an error event whatever ends the answer."""
    gate = HoldGate()
    first, *_ = say([5, 6])
    generator.script = lambda request: [first, gate]
    answering = asyncio.create_task(exchange(edge_server, as_old({**CHAT, "stream": True})))
    await gate.arrivals()
    state.access.clients.cut_off()
    answer = await answering
    assert b'"shutting_down"' in answer.split(b"\n\n")[-2] and b"[DONE]" not in answer


async def test_headers_are_bounded(edge_server: EdgeServer) -> None:
    """Too large and too many headers are a 431, also when the head never ends."""
    large = b"A: " + b"x" * MOST_HEAD_BYTES + b"\r\n\r\n"
    many = b"".join(b"A%d: x\r\n" % number for number in range(MOST_HEADERS)) + b"\r\n"
    endless = b"A: " + b"x" * (2 * MOST_HEAD_BYTES)
    for headers in (large, many, endless):
        answer = await exchange(edge_server, HEAD + headers)
        assert answer.split()[1] == b"431" and b"headers_too_large" in answer
    assert (await exchange(edge_server, b"GET /" + b"x" * (2 * MOST_HEAD_BYTES))).split()[1] == b"431"


async def test_trailers_are_no_headers(echo: Echo) -> None:
    """What follows a chunked body never counts as a header, and has bounds of its own."""
    body = b"Transfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: Bearer x\r\n"
    async with EdgeServer(echo) as server:
        connection = await open_connection(server)
        connection.writer.write(HEAD + body + b"\r\n")
        assert (await connection.read_head())[0] == 200
        connection.writer.close()
        assert "authorization" not in Headers(scope=echo.asked[0])
        echo.go_on.clear()
        assert b"\r\n\r\n " not in await exchange(server, HEAD + body + b"A: " + b"x" * (4 * MOST_HEAD_BYTES))


async def test_slow_head(state: ApiState) -> None:
    """A head that does not come whole in time ends its connection with a 408; one that does not begin, without."""
    async with EdgeServer(build_app(state), Edge(head_timeout_s=0.05)) as server:
        assert (await exchange(server, HEAD)).split()[1] == b"408"
        assert await exchange(server, b"") == b""
        assert (await exchange(server, b"\r\n")).split()[1] == b"408"
        answer = await exchange(server, GET + b"GET /he")
        assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1 408") <= 1


async def test_slow_body(state: ApiState) -> None:
    """A body that does not come whole in time is a 408."""
    limits = replace(state.limits, body_timeout_s=0.05)
    async with EdgeServer(build_app(replace(state, limits=limits))) as server:
        assert (await exchange(server, HEAD + LENGTH + b"\r\n{")).split()[1] == b"408"


async def test_unread_body(state: ApiState) -> None:
    """The rest of a body that nobody wants may not take longer than a head."""
    async with EdgeServer(build_app(state), Edge(head_timeout_s=0.05)) as server:
        answer = await exchange(server, GET[:-2] + b"Content-Length: 100\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 200")


async def test_idle_connections_end(state: ApiState) -> None:
    """A connection without a request is closed after the keep-alive time, also after a body that nobody read."""
    async with EdgeServer(build_app(state), keep_alive_s=1) as server:
        assert (await exchange(server, GET)).startswith(b"HTTP/1.1 200")
        connection = await open_connection(server)
        connection.writer.write(GET[:-2] + b"Content-Length: 2\r\n\r\n")
        assert (await connection.read_json())[0] == 200
        connection.writer.write(b"{}")
        async with asyncio.timeout(10):
            assert await connection.reader.read() == b""
        connection.writer.close()


async def test_too_many_connections(echo: Echo) -> None:
    """Beyond the most connections the longest idle one makes room; where none is idle the new one is refused."""
    async with EdgeServer(echo, Edge(doors=Doors(2, refusal=spell_refusal(NO_ROOM)))) as server:
        first, second = await open_connection(server), await open_connection(server)
        for connection in (first, second):
            connection.writer.write(GET)
            assert (await connection.read_head())[0] == 200
            await connection.reader.readexactly(12)
        third = await open_connection(server)
        async with asyncio.timeout(10):
            assert await first.reader.read() == b""
        echo.go_on.clear()
        for connection in (second, third):
            connection.writer.write(GET)
            assert (await connection.read_head())[0] == 200
        assert (await exchange(server, GET)).split()[1] == b"503"
        for connection in (first, second, third):
            connection.writer.close()


async def test_no_error_inside_an_answer(echo: Echo) -> None:
    """Bytes that are no request cut a running answer: an error inside it would look like a part of it."""
    async with EdgeServer(echo) as server:
        echo.go_on.clear()
        connection = await open_connection(server)
        connection.writer.write(GET)
        assert (await connection.read_head())[0] == 200
        connection.writer.write(b"no request\r\n\r\n")
        async with asyncio.timeout(10):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await connection.reader.readexactly(1)
        connection.writer.close()


async def test_cut_connection() -> None:
    """A cut connection is gone at once, whatever was written to it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        cut_connection(scope)

    async with EdgeServer(app) as server:
        connection = await open_connection(server)
        connection.writer.write(GET)
        async with asyncio.timeout(10):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await connection.reader.readuntil(b"never sent")
        connection.writer.close()


def test_no_transport() -> None:
    """Without the protocol there is nothing to cut, and no error."""
    cut_connection({"type": "http"})


async def test_upgrade_is_left_unread(edge_server: EdgeServer, generator: ScriptedGenerator) -> None:
    """The body of a request that asks for another protocol is its body, however it comes, and no next request."""
    connection = await open_connection(edge_server)
    inner = BODY[:-1] + b', "user": "\\r\\nGET /none HTTP/1.1\\r\\n"}'
    head = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(inner)
    for piece in (head, inner[:9], inner[9:] + GET):
        connection.writer.write(piece)
        await connection.writer.drain()
        await asyncio.sleep(0)
    assert (await connection.read_json())[0] == 200
    assert (await connection.read_json())[2] == {"status": "ok"}
    assert len(generator.answers) == 1
    connection.writer.close()


async def test_forwarded_clients(echo: Echo) -> None:
    """Only a trusted proxy tells who the client is; the header of anybody else is ignored."""
    forwarded = GET[:-2] + b"X-Forwarded-For: 198.51.100.7\r\nConnection: close\r\n\r\n"
    async with EdgeServer(echo) as server:
        assert (await exchange(server, forwarded)).endswith(b"127.0.0.1")
    async with EdgeServer(echo, Edge(trusted=[ipaddress.ip_network("127.0.0.0/8")])) as server:
        assert (await exchange(server, forwarded)).endswith(b"198.51.100.7")
        assert (await exchange(server, GET[:-2] + b"Connection: close\r\n\r\n")).endswith(b"127.0.0.1")


@pytest.mark.parametrize(
    "path",
    [b"/v1/x/../chat/completions", b"/v1/./chat/completions", b"//v1/chat/completions", b"/v1/chat/completions;x"],
)
async def test_paths_are_taken_as_they_are(edge_server: EdgeServer, generator: ScriptedGenerator, path: bytes) -> None:
    """No spelling of a path is made into another one."""
    connection = await open_connection(edge_server)
    connection.writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n" + BODY)
    assert (await connection.read_json())[0] == 404
    assert generator.answers == []
    connection.writer.close()
