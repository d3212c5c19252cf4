"""An ASGI app behind uvicorn's own HTTP protocol on a real loopback socket, without uvicorn's process machinery."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.fakes.gates import Watch


class TransportProtocol(HttpToolsProtocol):
    """Shows the app its connection as ``scope["state"]["transport"]``, so that a fake can cut it."""

    def __init__(self, config: uvicorn.Config, state: ServerState, watch: Watch) -> None:
        super().__init__(config, state, {})
        self._watch = watch

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch.changed()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


class AppServer:
    """Serves ``app`` on 127.0.0.1; the port stays the same over ``stop`` and ``start``."""

    def __init__(
        self, app: Callable[..., Any], *, ssl_context: ssl.SSLContext | None = None, keep_alive_s: float = 60.0
    ) -> None:
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
        )
        self._config.load()
        self._ssl_context = ssl_context
        self._state = ServerState()
        self._watch = Watch()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"{'https' if self._ssl_context else 'http'}://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Listen."""
        # Only of such a socket asyncio knows that its connections must not wait to fill packets.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TransportProtocol(self._config, self._state, self._watch),
            sock=listener,
            ssl=self._ssl_context,
            backlog=512,
        )

    async def stop(self) -> None:
        """Die as a killed process does: nothing listens, every connection is cut."""
        if self._server is None:
            return
        self._server.close()
        for protocol in tuple(self._state.connections):
            protocol.transport.abort()
        tasks = tuple(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.connections_left(0)
        self._server = None

    async def connections_left(self, count: int) -> None:
        """Wait until no more than ``count`` connections are open."""
        await self._watch.until(lambda: self.connections <= count)

    def drop_connections(self) -> None:
        """Close every connection, as a server does with idle ones, and go on listening."""
        for protocol in tuple(self._state.connections):
            protocol.transport.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
