"""The server's side of a connection: what comes in is bounded in size and time, and read in one way only.

Only those request heads are taken that no other reader of the same bytes can take for something else. The HTTP parser
refuses bad syntax, two lengths, a length beside chunks and folded lines by itself; what it lets through and proxies are
known to read in different ways is refused here.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httptools
import uvicorn
from starlette.types import Scope
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from backends.transport.accepting import Guest
from gateway.errors import GatewayError, encode_error
from gateway.http.doors import Doors
from gateway.http.proxies import IpNetwork, find_client

MOST_HEAD_BYTES = 64 << 10


MOST_HEADERS = 200


HeaderLines = Sequence[tuple[bytes, bytes]]


def bad_request(message: str) -> GatewayError:
    """Return the error of a head that is not taken; its connection ends with it."""
    return GatewayError(400, message, code="bad_request")


def too_large() -> GatewayError:
    """Return the error of a head that is out of proportion."""
    message = f"The request's headers are larger than {MOST_HEAD_BYTES} bytes, or more than {MOST_HEADERS}."
    return GatewayError(431, message, code="headers_too_large")


def find_flaw(version: str, method: bytes, target: bytes, headers: HeaderLines) -> GatewayError | None:
    """Return why a head is not taken; None: it is. Names of headers are in lower case."""
    if version not in ("1.0", "1.1"):
        return GatewayError(505, "HTTP/1.1 is spoken here.", code="bad_request")
    if method == b"CONNECT" or not target.startswith(b"/") or b"#" in target:
        # No forward proxy is here, and a filter before the gateway may look at paths only.
        return bad_request("The request target must be a path.")
    if len(headers) > MOST_HEADERS or sum([len(name) + len(value) for name, value in headers]) > MOST_HEAD_BYTES:
        return too_large()
    hosts = [name for name, _ in headers].count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return bad_request("There must be one Host header.")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return bad_request("The only transfer coding is chunked.")
    return None


def write_without_upgrade(method: bytes, target: bytes, headers: HeaderLines) -> bytes:
    """Return an HTTP/1.1 head that asks for no other protocol; whoever speaks none may leave that unread."""
    lines = [b"%s %s HTTP/1.1" % (method, target)]
    lines += [b"%s: %s" % (name, value) for name, value in headers if name != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])


TRANSPORT = "transport"
NO_ROOM = GatewayError(503, "The gateway has too many connections.", code="overloaded", retry_after_s=1.0)


class HeadRefused(Exception):
    """Ends the parsing of a request that is not taken."""


@dataclass(slots=True)
class Edge:
    """What the connections of one listener share. ``trusted``: proxies whose X-Forwarded-For is believed."""

    head_timeout_s: float = 30.0
    trusted: Sequence[IpNetwork] = ()
    doors: Doors = field(default_factory=Doors)


class EdgeProtocol(HttpToolsProtocol, Guest):
    """uvicorn's HTTP protocol, stricter; it lets an endpoint cut its connection, and streams to HTTP/1.0 clients.

    A head must be there whole within a time and a size, also on a connection that was used before. A head that is not
    taken is answered in OpenAI's shape, and its connection ends.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        edge: Edge | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._edge = edge if edge is not None else Edge()
        self.abandon: Callable[[], object] | None = None
        """Ends the connection while it has no transport yet."""
        self.sent_bytes = 0
        self._in_head = True
        self._pending_bytes = 0
        """Bytes that came since the last of which something was made: a head, or a piece of a body."""
        self._flaw: GatewayError | None = None
        self._refused = False
        self._asked = False
        self._head: bytes | None = None
        """The head of a request for an upgrade, written anew: the parser takes its body for another protocol's."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._edge.doors.leave(self)
        self._stop_timer()
        super().connection_lost(exc)

    def drop(self) -> None:
        """End the connection at once; another one needs its place."""
        if self.abandon is not None:
            self.abandon()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse, within the bounds of a head."""
        if self._refused or self.transport.is_closing():
            return
        self._pending_bytes += len(data)
        self.sent_bytes += len(data)
        if self._in_head:
            self._start_timer()
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._flaw or bad_request("This is not valid HTTP."))
        if self._pending_bytes > MOST_HEAD_BYTES and not self._refused:
            self._refuse(too_large())

    def on_message_begin(self) -> None:
        """Put the connection's transport into the request's state."""
        super().on_message_begin()
        self._start_timer()
        self.scope["state"][TRANSPORT] = self.transport

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after the body is none."""
        if not self._in_head:
            return
        if len(self.headers) >= MOST_HEADERS:
            self._stop_parsing(too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head as a whole before the request exists for anybody."""
        method = self.parser.get_method()
        flaw = find_flaw(self.parser.get_http_version(), method, self.url, self.headers)
        if flaw is not None:
            self._stop_parsing(flaw)
        if self.parser.should_upgrade():
            self._head = write_without_upgrade(method, self.url, self.headers)
            return
        self._in_head = False
        self._pending_bytes = 0
        self._stop_timer()
        self._edge.doors.serve(self)
        if self.client is not None and self._edge.trusted:
            peer = find_client(self.client[0], self.headers, self._edge.trusted)
            self.scope["client"] = (peer, self.client[1] if peer == self.client[0] else 0)
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = partial(send_unchunked, self.cycle)  # type: ignore[method-assign]
        self._asked = True

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next head."""
        if self._head is not None:
            return
        self._in_head = True
        self._pending_bytes = 0
        self._stop_timer()
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            # uvicorn has stopped its timer for the body that nobody read.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self._edge.doors.wait(self)

    def on_response_complete(self) -> None:
        """Be idle, or give the rest of a body that nobody read as long as a head."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self._in_head:
            self._start_timer()
        elif self.cycle.response_complete and self._timer is None:
            self._edge.doors.wait(self)

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                assert self._head is not None
                data, self._head = self._head + data[upgrade.args[0] :], None

    def _stop_parsing(self, flaw: GatewayError) -> None:
        self._flaw = flaw
        raise HeadRefused

    def _refuse(self, error: GatewayError) -> None:
        """Answer with an error and close. An answer that has begun is cut: an error inside it would be part of it.

        What the client still sends is thrown away for a while, as closing on it would take the answer away from it.
        """
        self._refused = True
        self._edge.doors.wait(self)
        if self.pipeline or (self._asked and self.cycle.response_started and not self.cycle.response_complete):
            self.transport.abort()
            return
        self.transport.write(spell_refusal(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._stop_timer()
            self._start_timer()
        else:
            self.transport.close()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._edge.head_timeout_s, self._be_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _be_late(self) -> None:
        self._timer = None
        if self._in_head and self._pending_bytes and not self._refused:
            self._refuse(GatewayError(408, "The request did not arrive in time."))
        else:
            self.transport.close()


def spell_refusal(error: GatewayError) -> bytes:
    """Return an answer that ends its connection."""
    body = encode_error(error)
    head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


def cut_connection(scope: Scope) -> None:
    """Drop the connection with what its client did not read; closing it would wait for that client."""
    transport = scope.get("state", {}).get(TRANSPORT)
    if transport is not None:
        transport.abort()


async def send_unchunked(cycle: RequestResponseCycle, message: ASGISendEvent) -> None:
    """Send to a client of HTTP/1.0, which knows no chunks: an answer without a length ends with its connection."""
    if message["type"] == "http.response.start":
        if all(name.lower() != b"content-length" for name, _ in message["headers"]):
            cycle.chunked_encoding = False
    elif message["type"] == "http.response.body" and not cycle.expected_content_length:
        # uvicorn takes no more bytes than it expects.
        cycle.expected_content_length = len(message.get("body", b""))
    await RequestResponseCycle.send(cycle, message)
