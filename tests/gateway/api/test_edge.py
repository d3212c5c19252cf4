"""Cutting a connection."""

import asyncio

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.api.edge import EdgeProtocol, cut_connection


async def test_cut_connection() -> None:
    """A cut connection is gone at once, whatever was written to it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        cut_connection(scope)

    config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_config=None, http=EdgeProtocol)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EdgeProtocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readuntil(b"never sent")
    writer.close()
    server.close()
    assert not state.connections


def test_no_transport() -> None:
    """Without the protocol there is nothing to cut, and no error."""
    cut_connection({"type": "http"})
