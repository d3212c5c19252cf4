"""Runs one ASGI application as the whole of a process: says where it listens, and ends cleanly on a signal."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from backends.transport.accepting import Acceptor, Doorkeeper, Guest
from backends.transport.private import TooOpen, find_openness

log = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 2
LAST_WORDS_S = 2
"""How long answers that are told to end may take for it."""
KEEP_ALIVE_S = 75
"""Idle connections live longer than the minute that load balancers keep theirs, so that the balancer closes first."""


class CannotListen(Exception):
    """The address is not free, or not this machine's; the message says which."""


class BadTls(Exception):
    """A certificate or a key cannot be used; ``key`` names which file."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and private key as PEM files. ``client_ca_file``: clients must show a certificate signed by it."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None

    def check(self) -> None:
        """Read the files. Raises BadTls."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for key, path in (("cert_file", self.cert_file), ("key_file", self.key_file)):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise BadTls(key, f"cannot read {path}: {error.strerror}") from None
        try:
            if (openness := find_openness(Path(self.key_file))) is not None:
                log.warning("key_file: %s", openness)
        except TooOpen as error:
            raise BadTls("key_file", str(error)) from None
        try:
            # A key with a password would be asked for at a terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        except ssl.SSLError as error:
            raise BadTls("cert_file", f"no certificate that fits the private key: {error.reason}") from None
        if self.client_ca_file is not None:
            try:
                context.load_verify_locations(self.client_ca_file)
            except OSError as error:
                raise BadTls("client_ca_file", f"no certificates: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class ServedApp:
    """An application and where it is served. ``label``: what is said before the address once it listens."""

    app: ASGIApp
    listener: socket.socket
    http: Callable[..., asyncio.Protocol] | Literal["auto"] = "auto"
    """Takes the place of uvicorn's own protocol class."""
    tls: Tls | None = None
    keep_alive_s: int = KEEP_ALIVE_S
    """How long a connection without a request stays open."""
    label: str = "listening on"
    doors: Doorkeeper | None = None
    """Counts connections, of a protocol that is a ``Guest``; None: nobody does."""
    handshake_timeout_s: float = 30.0


def parse_listen(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; port 0 asks for a free one. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def bind(host: str, port: int, is_shared: bool = False) -> socket.socket:
    """Open a listening socket; ``is_shared``: one of several at a reserved address. Raises CannotListen."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024, reuse_port=is_shared)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    # Connections take it over. uvloop sets it anyhow; asyncio's own loop overlooks a listener that was made like this.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def reserve(host: str, port: int) -> socket.socket:
    """Take an address at which nobody listens, for several listeners that share what comes. Raises CannotListen."""
    with bind(host, port) as probe:  # sharing would not notice that another command listens there
        address, family = probe.getsockname(), probe.family
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved


def bind_shared(reserved: socket.socket) -> socket.socket:
    """Open one of the listening sockets at a reserved address. Raises CannotListen."""
    host, port = reserved.getsockname()[:2]
    return bind(host, port, is_shared=True)


async def serve(
    app: ASGIApp, listener: socket.socket, on_stop: Callable[[], None], *, grace_s: int = SHUTDOWN_GRACE_S
) -> None:
    """Serve one application; see ``serve_sites``."""
    await serve_sites(ServedApp(app, listener), on_stop=on_stop, grace_s=grace_s)


async def serve_sites(
    main: ServedApp,
    *beside: ServedApp,
    on_stop: Callable[[], None],
    on_cut: Callable[[], None] | None = None,
    grace_s: int = SHUTDOWN_GRACE_S,
) -> None:
    """Serve until SIGTERM or SIGINT; ``on_stop`` is called at once then, so that long answers can end.

    Answers that still run ``grace_s`` later are cut off; with ``on_cut``, that is called first, so that they can say
    so. The sites ``beside`` the main one end after it.
    """
    last_words_s = 0 if on_cut is None else LAST_WORDS_S
    server, others = _Server(main, grace_s + last_words_s), [_Server(site, SHUTDOWN_GRACE_S) for site in beside]
    loop = asyncio.get_running_loop()
    cutting: list[asyncio.TimerHandle] = []

    def stop() -> None:
        if on_cut is not None and not cutting:
            cutting.append(loop.call_later(grace_s, on_cut))
        server.should_exit = True
        on_stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop)
    try:
        async with asyncio.TaskGroup() as group:
            for other in others:
                group.create_task(other.run_to_end())
            await server.run_to_end()
            for other in others:
                other.should_exit = True
    finally:
        for timer in cutting:
            timer.cancel()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)
        for site in (main, *beside):
            site.listener.close()


def make_config(site: ServedApp, grace_s: int = SHUTDOWN_GRACE_S) -> uvicorn.Config:
    """Return uvicorn's configuration for a site. Nothing that a client says of its address is believed here."""
    tls = site.tls
    return uvicorn.Config(
        site.app,
        http=site.http,  # type: ignore[arg-type]  # called like a class, and nothing else is asked of it
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=site.keep_alive_s,
        ssl_certfile=tls.cert_file if tls else None,
        ssl_keyfile=tls.key_file if tls else None,
        ssl_ca_certs=tls.client_ca_file if tls else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca_file else ssl.CERT_NONE,
    )


def open_doors(site: ServedApp, config: uvicorn.Config, state: ServerState) -> Acceptor:
    """Accept a site's connections, with uvicorn's loaded ``config`` and its state."""
    assert site.doors is not None

    def make_guest() -> Guest:
        guest: Guest = config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[assignment, call-arg]
        return guest

    return Acceptor(site.listener, make_guest, site.doors, config.ssl, site.handshake_timeout_s)


class _Server(uvicorn.Server):
    """uvicorn's server, with the signals left to ``serve_sites`` and the address told once it listens."""

    def __init__(self, site: ServedApp, grace_s: int) -> None:
        super().__init__(make_config(site, grace_s))
        self._site = site

    async def run_to_end(self) -> None:
        """Serve until ``should_exit``."""
        await self.serve(sockets=[self._site.listener])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where."""
        if self._site.doors is None:
            await super().startup(sockets=sockets)
        else:
            self.servers: list[Any] = [open_doors(self._site, self.config, self.server_state)]
            self.started = True
        scheme = "https" if self._site.tls else "http"
        sys.stdout.write(f"{self._site.label} {scheme}://{_spell(self._site.listener.getsockname())}\n")
        sys.stdout.flush()


def _spell(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
