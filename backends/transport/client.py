"""A lean HTTP/1.1 client for engines: pooled connections to one origin, streamed answers, aborts that close at once.

It knows nothing of redirects, cookies, proxies or compression. Failures are those of ``backends.errors``.

Ours stays: in ``tests/bench/bench_stream.py`` aiohttp takes about a fifth more CPU time for each chunk and twice as
much for each request, and it sends no POST again when a pooled connection turns out to be dead, nor tells whether an
engine that hung up had begun to answer.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

from backends.errors import EngineBroken, EngineUnavailable
from backends.transport.address import basic_auth, without_credentials
from backends.transport.connection import HttpConnection
from backends.transport.patience import PeerTimeout

MAX_BODY_BYTES = 16 * 1024 * 1024
IDLE_CONNECTIONS = 64
IDLE_EXPIRY_S = 60.0


class Response:
    """One answer, from its head on. End it by ``finish`` (the connection may be used again) or ``aclose``."""

    __slots__ = ("_is_over", "connection", "headers", "pump", "read", "status")

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        """Its ``deadline_s`` may be moved at any time."""
        self._is_over = False
        self.status = connection.status
        self.headers = connection.headers
        """Names in lower case; of several lines with one name, the last."""
        self.pump = connection.pump
        self.read: Callable[[], Coroutine[Any, Any, bytes]] = connection.read
        """Await it for the next piece of the body, b"" at its end. Raises EngineTimeout or EngineBroken."""

    async def body(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the rest and finish. Raises as ``read`` does, and EngineBroken when it is larger than ``max_bytes``."""
        pieces, size = [], 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise EngineBroken(f"the answer is larger than {max_bytes} bytes")
        self.finish()
        return b"".join(pieces)

    def finish(self) -> None:
        """All that is wanted was read; what is left of the transport's own framing is read behind the scenes."""
        if not self._is_over:
            self._is_over = True
            self.connection.finish()

    async def aclose(self) -> None:
        """Close the connection now, unless ``finish`` was called; it is closed when this returns. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self.connection.abort()
            await self.connection.closed()


class HttpOrigin:
    """Connections to one ``http`` or ``https`` origin. ``headers`` go out with each request.

    Credentials in the URL go out as Basic auth, unless ``headers`` have others.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float = 5.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {without_credentials(url)!r}")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path.rstrip("/")
        self._ssl = (ssl_context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        known = {"Host": parts.netloc.rpartition("@")[2], "Accept": "*/*"}
        if (auth := basic_auth(url)) is not None:
            known["Authorization"] = auth
        self._head = _header_lines({**known, **(headers or {})})
        self._idle: deque[HttpConnection] = deque()
        self._all: set[HttpConnection] = set()

    @property
    def open_connections(self) -> int:
        """Connections that are open, idle ones included."""
        return len(self._all)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        head_timeout_s: float,
    ) -> Response:
        """Send a request and wait for the head of its answer; the time limit also holds for the first ``read``.

        A pooled connection that turns out to be dead before it answered anything is replaced by a new one, once.
        Raises EngineUnavailable (not connected, or closed without an answer), EngineTimeout or EngineBroken.
        """
        lines = self._head + _header_lines(headers or {})
        if body or method == "POST":
            lines += b"Content-Length: %d\r\n" % len(body)
        request = f"{method} {self._path}{path} HTTP/1.1\r\n".encode("ascii") + lines + b"\r\n" + body
        deadline_s = asyncio.get_running_loop().time() + head_timeout_s
        pooled = self._take_idle()
        if pooled:
            with contextlib.suppress(EngineUnavailable):
                return await self._exchange(pooled, request, deadline_s)
        return await self._exchange(await self._connect(), request, deadline_s)

    async def aclose(self) -> None:
        """Close every connection."""
        for connection in tuple(self._all):
            connection.abort()
            await connection.closed()

    async def _exchange(self, connection: HttpConnection, request: bytes, deadline_s: float) -> Response:
        is_answered = False
        try:
            connection.begin(request, deadline_s)
            await connection.head()
            is_answered = True
        finally:
            if not is_answered:
                connection.abort()
                await connection.closed()
        return Response(connection)

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        try:
            async with PeerTimeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(self._keep, self._forget), self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            raise EngineUnavailable(f"no connection to {self._host}:{self._port} in time") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise EngineUnavailable(f"no connection to {self._host}:{self._port}: {reason}") from error
        if not connection.is_closed:
            self._all.add(connection)
        return connection

    def _take_idle(self) -> HttpConnection | None:
        self._close_expired()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    def _keep(self, connection: HttpConnection) -> None:
        self._idle.append(connection)
        self._close_expired()

    def _close_expired(self) -> None:
        oldest_s = asyncio.get_running_loop().time() - IDLE_EXPIRY_S
        while self._idle and (len(self._idle) > IDLE_CONNECTIONS or self._idle[0].idle_since_s < oldest_s):
            self._idle.popleft().abort()

    def _forget(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def _header_lines(headers: Mapping[str, str]) -> bytes:
    text = "\r\n".join([*[f"{name}: {value}" for name, value in headers.items()], ""])
    if text.count("\r") != len(headers) or text.count("\n") != len(headers):
        raise ValueError("a header holds a line end")
    return text.encode("latin-1")
