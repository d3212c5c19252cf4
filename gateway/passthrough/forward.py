"""Passes one request on: to another server while nothing has come back, then byte for byte.

What a server answers before the answer's first byte decides: an answer is relayed, a refusal that another server might
not give is tried there, any other goes to the client. From the first byte on there is no second try.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from starlette.datastructures import Headers

from backends.engines.http_engine import MAX_REFUSAL_BYTES, retry_after_s
from backends.errors import BackendError, EngineBroken, EngineTimeout, EngineUnavailable
from backends.transport.client import Response
from backends.transport.sse import EventTooLarge, SseParser
from gateway.api.outside import AnswerBroken
from gateway.errors import GatewayError, RawHeaders, encode_error
from gateway.http.client import Client
from gateway.passthrough.record import PassRecord
from gateway.passthrough.servers import PassthroughServer, Servers
from policies.where import ANYWHERE, Where

MAX_WHOLE_BYTES = 64 << 20
ELSEWHERE = frozenset({429, 502, 503, 504})
"""Statuses of a server that cannot, for now: another one may."""
OUR_KEY = frozenset({401, 403, 407})
"""Statuses that speak of the gateway's own key, which is not the client's affair."""


@dataclass(frozen=True, slots=True)
class PassedRequest:
    """A request as servers get it."""

    id: str
    path: str
    model: str
    body: bytes
    headers: Mapping[str, str]
    where: Where = ANYWHERE
    """Where its servers must stand."""


class ServerRefused(Exception):
    """A server gave no answer to relay. ``elsewhere``: another one may."""

    def __init__(self, error: GatewayError, body: bytes | None = None, *, elsewhere: bool = False) -> None:
        super().__init__(f"status {error.status}")
        self.error = error
        self.body = body if body is not None else encode_error(error)
        """What the client gets: the server's own words where they are an error object."""
        self.elsewhere = elsewhere


async def pass_on(
    request: PassedRequest, servers: Servers, client: Client, record: PassRecord, standing: RawHeaders
) -> None:
    """Pass a request on and relay the answer. ``standing``: headers of the gateway's own that go out with it.

    Raises GatewayError while nothing was sent, AnswerBroken after that.
    """
    lines = [(b"x-request-id", request.id.encode()), *standing]
    tried: set[str] = set()
    refused: ServerRefused | None = None
    while (server := servers.choose(request.model, request.path, tried, request.where)) is not None:
        tried.add(server.id)
        record.tried(server.id)
        with server.occupied():
            try:
                async with _ask(request, server) as (response, first):
                    await _relay(response, first, lines, server, client, record)
                return
            except ServerRefused as answer:
                refused = answer
                record.refused(server.id, answer.error.status)
        if not refused.elsewhere:
            break
    if refused is None:
        message = f"No server of {request.model!r} can take a request now."
        raise GatewayError(503, message, code="no_instance", retry_after_s=1.0)
    await _send_whole(client, refused.error.status, refused.body, [*lines, *_refusal_headers(refused.error)])


@asynccontextmanager
async def _ask(request: PassedRequest, server: PassthroughServer) -> AsyncIterator[tuple[Response, bytes]]:
    """Give the answer and its first bytes. Raises Refused."""
    try:
        response = await server.origin.send(
            "POST", request.path, request.body, headers=request.headers, head_timeout_s=server.first_byte_timeout_s
        )
    except BackendError as error:
        raise _judge(error, server) from error
    try:
        if response.status != 200:
            raise await _read_refusal(response)
        try:
            first = await response.read()
        except EngineBroken as error:
            raise ServerRefused(GatewayError(502, "The server broke the answer off."), elsewhere=True) from error
        except BackendError as error:
            raise _judge(error, server) from error
        if _is_stream(response) and (failure := find_error_event(first)) is not None:
            raise failure
        yield response, first
    finally:
        await response.aclose()


def _judge(error: BackendError, server: PassthroughServer) -> ServerRefused:
    if isinstance(error, EngineTimeout):
        return ServerRefused(GatewayError(504, "The server did not answer in time."))
    if isinstance(error, EngineUnavailable):
        server.note_failure(error)
        return ServerRefused(GatewayError(502, "The server cannot be reached."), elsewhere=True)
    return ServerRefused(GatewayError(502, "The server's answer cannot be read."))


async def _read_refusal(response: Response) -> ServerRefused:
    """Return what a status other than 200 amounts to; a server's own error object is kept."""
    status = response.status
    try:
        body = await response.body(MAX_REFUSAL_BYTES)
    except BackendError:
        body = b""
    if status in OUR_KEY:
        return ServerRefused(GatewayError(502, "The server does not take the gateway's key."))
    if not 400 <= status <= 599:
        return ServerRefused(GatewayError(502, f"The server answered with the unexpected status {status}."))
    error = GatewayError(status, f"The server answered {status}.", retry_after_s=retry_after_s(response))
    return ServerRefused(error, body if _is_error_object(body) else None, elsewhere=status in ELSEWHERE)


def _is_error_object(body: bytes) -> bool:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and bool(value.get("error"))


def find_error_event(piece: bytes) -> ServerRefused | None:
    """Return the failure that a stream begins with; its code is the status where it is one."""
    try:
        events = SseParser().feed(piece)
        value = orjson.loads(events[0]) if events else None
    except (EventTooLarge, orjson.JSONDecodeError):
        return None
    error = value.get("error") if isinstance(value, dict) else None
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    status = code if type(code) is int and 400 <= code <= 599 else 502
    return ServerRefused(GatewayError(status, "The server failed."), events[0])


async def _relay(
    response: Response, first: bytes, lines: RawHeaders, server: PassthroughServer, client: Client, record: PassRecord
) -> None:
    headers = [*lines, *pick_answer_headers(response.headers)]
    record.first_byte()
    if response.headers.get(b"content-type", b"").lower().startswith(b"application/json"):
        body = await _read_whole(response, first, server)
        record.usage.read(body)
        record.finished()
        await _send_whole(client, 200, body, headers)
        return
    is_stream = _is_stream(response)
    if is_stream:
        headers.append((b"x-accel-buffering", b"no"))
    await client.send({"type": "http.response.start", "status": 200, "headers": headers})
    connection, now_s = response.connection, asyncio.get_running_loop().time

    def take(piece: bytes) -> asyncio.Task[None] | None:
        if is_stream:
            record.usage.feed(piece)
        connection.deadline_s = now_s() + server.idle_timeout_s
        return client.send_now({"type": "http.response.body", "body": piece, "more_body": True})

    last = b""
    try:
        unread = take(first)
        while unread is not None or (unread := await response.pump(take)) is not None:
            await unread  # the client is behind, and the server is not late meanwhile
            connection.deadline_s = now_s() + server.idle_timeout_s
            unread = None
    except BackendError as error:
        record.broken(error)
        if not is_stream:
            raise AnswerBroken from error
        failure = GatewayError(502, "The server broke the answer off.", code="bad_gateway")
        last = b"\n\ndata: " + encode_error(failure) + b"\n\n"
    else:
        record.finished()
        response.finish()
    await client.send({"type": "http.response.body", "body": last, "more_body": False})


async def _read_whole(response: Response, first: bytes, server: PassthroughServer) -> bytes:
    """Read a JSON answer to its end, so that one that breaks off is no answer. Raises Refused."""
    pieces, size = [first], len(first)
    try:
        while pieces[-1]:
            response.connection.deadline_s = asyncio.get_running_loop().time() + server.idle_timeout_s
            pieces.append(await response.read())
            size += len(pieces[-1])
            if size > MAX_WHOLE_BYTES:
                raise ServerRefused(GatewayError(502, f"The server's answer is larger than {MAX_WHOLE_BYTES} bytes."))
    except BackendError as error:
        raise ServerRefused(GatewayError(502, "The server broke the answer off.")) from error
    response.finish()
    return b"".join(pieces)


def _is_stream(response: Response) -> bool:
    return response.headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")


def _refusal_headers(error: GatewayError) -> RawHeaders:
    lines = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        lines.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    return lines


async def _send_whole(client: Client, status: int, body: bytes, headers: RawHeaders) -> None:
    lines = [*headers, (b"content-length", b"%d" % len(body))]
    await client.send({"type": "http.response.start", "status": status, "headers": lines})
    await client.send({"type": "http.response.body", "body": body, "more_body": False})


REQUEST_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta", "traceparent", "tracestate")
ANSWER_HEADERS = (b"cache-control", b"content-disposition", b"content-encoding", b"content-type", b"retry-after")


def pick_request_headers(headers: Headers, content_type: str, request_id: str) -> dict[str, str]:
    """Return what a server is sent beside its own key; framing follows from the body as it is written anew."""
    picked = {name: headers[name] for name in REQUEST_HEADERS if name in headers}
    return picked | {"content-type": content_type, "x-request-id": request_id}


def pick_answer_headers(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return what a client is sent of a server's headers, which have lower-case names."""
    return [(name, headers[name]) for name in ANSWER_HEADERS if name in headers]
