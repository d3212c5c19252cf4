"""An application behind the gateway's own protocol, as ``pdd serve`` runs it, without signals."""

import asyncio
import functools
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from backends.transport.serving import ServedApp, Tls, bind, make_config, open_doors
from gateway.http.edge import Edge, EdgeProtocol


class EdgeServer:
    """Serves on a free loopback port."""

    def __init__(
        self, app: ASGIApp, edge: Edge | None = None, *, tls: Tls | None = None, keep_alive_s: int = 75
    ) -> None:
        self.edge = edge or Edge()
        protocol = functools.partial(EdgeProtocol, edge=self.edge)
        doors, timeout_s = self.edge.doors, self.edge.head_timeout_s
        self._site = ServedApp(
            app, bind("127.0.0.1", 0), protocol, tls, keep_alive_s, doors=doors, handshake_timeout_s=timeout_s
        )
        self.state = ServerState()
        self.port: int = self._site.listener.getsockname()[1]

    @property
    def url(self) -> str:
        """Base URL."""
        return f"{'https' if self._site.tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        config = make_config(self._site)
        # It reads the files of certificates.
        await asyncio.to_thread(config.load)
        self._acceptor = open_doors(self._site, config, self.state)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._acceptor.close()
        self._site.listener.close()
        for protocol in tuple(self.state.connections):
            protocol.transport.abort()
        tasks = tuple(self.state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
