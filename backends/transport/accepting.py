"""Takes connections one by one, so that each is counted from its first moment on, TLS handshakes included."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

MOST_AT_ONCE = 64
"""Connections taken in one turn of the event loop."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 0.1


class Guest(asyncio.Protocol):
    """An asyncio protocol that is told how to drop its connection while it has no transport yet."""

    abandon: Callable[[], object] | None
    sent_bytes: int

    def drop(self) -> None:
        """End the connection at once."""
        raise NotImplementedError


class Doorkeeper(Protocol):
    """Who may connect."""

    def enter(self, guest: Guest, peer: str) -> bool:
        """Count a new connection; False: it is not wanted."""
        ...

    def leave(self, guest: Guest) -> None:
        """It has ended. Idempotent; the protocol itself says so once it was connected."""
        ...

    @property
    def refusal(self) -> bytes:
        """What a client without TLS is told that may not enter."""
        ...


class Acceptor:
    """Accepts on a listener until ``close``. ``make_guest`` returns the asyncio protocol of a new connection."""

    def __init__(
        self,
        listener: socket.socket,
        make_guest: Callable[[], Guest],
        doors: Doorkeeper,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        self._listener = listener
        self._make_guest = make_guest
        self._doors = doors
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take no more, and end handshakes. Connections that are there stay."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        for opening in self._opening:
            opening.cancel()

    async def wait_closed(self) -> None:
        """Wait for the ends of handshakes."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                # Until some were closed, the listener would be ready all the time.
                self._loop.remove_reader(self._listener.fileno())
                self._pause = self._loop.call_later(PAUSE_S, self._listen)
                return
            connection.setblocking(False)
            guest = self._make_guest()
            if not self._doors.enter(guest, address[0]):
                self._refuse(connection)
                continue
            opening = self._loop.create_task(self._open(guest, connection))
            guest.abandon = opening.cancel
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _refuse(self, connection: socket.socket) -> None:
        """Close at once: whoever is waited for holds a descriptor."""
        if self._tls is None:
            with contextlib.suppress(OSError):
                connection.send(self._doors.refusal)
        connection.close()

    async def _open(self, guest: Guest, connection: socket.socket) -> None:
        timeout_s = self._handshake_timeout_s if self._tls is not None else None
        is_open = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: guest, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
            is_open = True
        except (OSError, TimeoutError):
            pass  # a client that went, or whose TLS is none
        finally:
            guest.abandon = None
            if not is_open:
                self._doors.leave(guest)
