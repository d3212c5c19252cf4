"""Runs one ASGI application as the whole of a process: says where it listens, and ends cleanly on a signal."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

SHUTDOWN_GRACE_S = 2
KEEP_ALIVE_S = 75
"""Idle connections live longer than the minute that load balancers keep theirs, so that the balancer closes first."""


class CannotListen(Exception):
    """The address is not free, or not this machine's; the message says which."""


def parse_listen(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; port 0 asks for a free one. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises CannotListen."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    on_stop: Callable[[], None],
    *,
    grace_s: int = SHUTDOWN_GRACE_S,
    http: type[asyncio.Protocol] | Literal["auto"] = "auto",
) -> None:
    """Serve ``app`` until SIGTERM or SIGINT; ``on_stop`` is called at once then, so that long answers can end.

    Answers that still run ``grace_s`` later are cut off. ``http`` takes the place of uvicorn's own protocol class.
    """
    config = uvicorn.Config(
        app,
        http=http,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        on_stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop)
    try:
        await server.serve(sockets=[listener])
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn's server, with the signals left to ``serve`` and the address told once it listens."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where."""
        await super().startup(sockets=sockets)
        for listener in sockets or []:
            sys.stdout.write(f"listening on http://{_spell(listener.getsockname())}\n")
        sys.stdout.flush()


def _spell(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
