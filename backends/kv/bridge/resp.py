"""A thin pipelined client for Redis strings, made for values of many megabytes.

A large reply is received straight into its own buffer. Silence while a reply is due counts as a broken connection, and
``abort`` resets the connection, so that the sender stops at once.
"""

import asyncio
import functools
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self, cast
from urllib.parse import unquote, urlsplit

Buffer = bytes | bytearray | memoryview
StoreReply = bytes | bytearray | int | None

_CLUSTER = "-cluster"
_SCRATCH_BYTES = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
DEFAULT_LIMIT_BYTES = 64 * 1024


class ConnectionLost(Exception):
    """The connection broke, was silent for too long or was aborted; nothing is known of its open requests."""


class CommandRefused(Exception):
    """The server answered with an error; the message is the server's."""


class WrongSize(Exception):
    """A reply did not have the size that was asked for; its bytes were not read."""


@dataclass(frozen=True, slots=True)
class StoreTls:
    """PEM files for stores with TLS. None: the authorities that the system trusts, and no certificate of one's own."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@functools.cache
def make_context(files: StoreTls) -> ssl.SSLContext:
    """Read the files, once. Raises ValueError."""
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
        if files.cert_file is not None:
            context.load_cert_chain(files.cert_file, files.key_file, password="")
    except OSError as error:
        raise ValueError(f"the stores' certificates cannot be used: {error.strerror or error}") from None
    return context


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is. ``str()`` leaves out the credentials.

    ``seeds``: it is a cluster, and these are some of its servers.
    """

    host: str
    port: int
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    files: StoreTls = StoreTls()
    seeds: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read ``redis[s]://[user[:password]@]host[:port][/database]`` (or ``valkey[s]``). Raises ValueError.

        ``redis-cluster://[user[:password]@]host:port[,host:port]*`` (and so on) are some servers of a cluster.
        """
        scheme, _, rest = url.partition("://")
        if scheme.endswith(_CLUSTER):
            return cls._parse_cluster(scheme.removesuffix(_CLUSTER), rest)
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "valkey", "valkeys"):
            raise ValueError(f"a store's address starts with redis:// or rediss://, not {parts.scheme or 'nothing'}")
        if not parts.hostname:
            raise ValueError("a store's address names a host")
        database = parts.path.strip("/") or "0"
        if not database.isdigit():
            raise ValueError("a store's address ends with a database number")
        return cls(
            host=parts.hostname,
            port=parts.port or 6379,
            database=int(database),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=parts.scheme in ("rediss", "valkeys"),
        )

    @classmethod
    def _parse_cluster(cls, scheme: str, rest: str) -> Self:
        credentials, at, hosts = rest.rpartition("@")
        seeds = [cls.parse(f"{scheme}://{credentials}{at}{host}") for host in hosts.split(",")]
        if any(seed.database for seed in seeds):
            raise ValueError("a cluster has no numbered databases")
        return replace(seeds[0], seeds=tuple((seed.host, seed.port) for seed in seeds))

    def __str__(self) -> str:
        if self.seeds:
            return ",".join(f"{host}:{port}" for host, port in self.seeds)
        return f"{self.host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class _Due:
    """A reply that is due: who waits, and how large its value may be (``exact``: must be)."""

    future: asyncio.Future[StoreReply]
    limit_bytes: int
    exact: bool


class StoreConnection(asyncio.BufferedProtocol):
    """One connection. All methods belong to the event loop that opened it."""

    def __init__(self, silence_s: float, on_bytes: Callable[[int], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._on_bytes = on_bytes
        self._transport: asyncio.Transport | None = None
        self._due: deque[_Due] = deque()
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._filled = 0
        self._skip = 0
        self._value: bytearray | None = None
        self._value_filled = 0
        self._last_sign = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._reason = "closed by the server"
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.due_bytes = 0
        """Exact sizes of the replies that are due."""

    @classmethod
    async def open(
        cls, address: StoreAddress, *, silence_s: float, on_bytes: Callable[[int], None] | None = None
    ) -> Self:
        """Connect, log in, choose the database and see the server answer. Raises ConnectionLost or CommandRefused."""
        loop = asyncio.get_running_loop()
        context = make_context(address.files) if address.tls else None
        try:
            async with asyncio.timeout(silence_s):
                _, connection = await loop.create_connection(
                    lambda: cls(silence_s, on_bytes), address.host, address.port, ssl=context
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"cannot reach {address}: {str(error) or 'no answer'}") from None
        try:
            if address.password is not None:
                login = [part.encode() for part in (address.username, address.password) if part is not None]
                await connection.send(b"AUTH", *login)
            if address.database:
                await connection.send(b"SELECT", str(address.database).encode())
            await connection.send(b"PING")
        except BaseException:
            connection.abort("the handshake failed")
            raise
        return connection

    @property
    def usable(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due."""
        return not self._due

    def send(
        self, *parts: Buffer, size_bytes: int | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> asyncio.Future[StoreReply]:
        """Send one command; the future gives its reply.

        With ``size_bytes`` the reply must be null or have exactly that size, else WrongSize; without, it is at most
        ``limit_bytes``. The future may also raise ConnectionLost or CommandRefused.
        """
        future: asyncio.Future[StoreReply] = self._loop.create_future()
        transport = self._transport
        if transport is None or transport.is_closing():
            future.set_exception(ConnectionLost(self._reason))
            return future
        if not self._due:
            self._last_sign = self._loop.time()
            self._arm()
        self._due.append(_Due(future, limit_bytes if size_bytes is None else size_bytes, size_bytes is not None))
        self.due_bytes += size_bytes or 0
        header = b"*%d\r\n" % len(parts)
        for part in parts:
            header += b"$%d\r\n" % len(part)
            if len(part) < _SCRATCH_BYTES:
                header += bytes(part) + b"\r\n"
            else:
                transport.write(header)
                transport.write(part)
                header = b"\r\n"
        transport.write(header)
        return future

    def abort(self, reason: str = "aborted") -> None:
        """Reset the connection; every open request fails with ConnectionLost. Idempotent."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.abort()
        self._fail(ConnectionLost(self._reason))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, without Nagle's delay; closing it sends a reset rather than a polite end."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own are no subclasses
        transport = self._transport
        handle = transport.get_extra_info("socket")
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is due."""
        if error is not None:
            self._reason = str(error)
        if self._watch is not None:
            self._watch.cancel()
        self._fail(ConnectionLost(self._reason))
        if not self.closed.done():
            self.closed.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give the rest of the large value under way, else the scratch buffer."""
        if self._value is not None:
            return memoryview(self._value)[self._value_filled :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take in ``nbytes`` that were received."""
        self._last_sign = self._loop.time()
        if self._on_bytes is not None:
            self._on_bytes(nbytes)
        if self._value is None:
            self._filled += nbytes
            self._parse()
            return
        self._value_filled += nbytes
        if self._value_filled == len(self._value):
            value, self._value, self._skip = self._value, None, 2
            self._answer(value)

    def _parse(self) -> None:
        """Consume complete replies from the scratch buffer; keep the rest at its front."""
        position = 0
        while position < self._filled and self._value is None and not self.closed.done():
            if self._skip:
                step = min(self._skip, self._filled - position)
                self._skip -= step
                position += step
                continue
            end = self._scratch.find(b"\r\n", position, self._filled)
            if end < 0:
                break
            consumed = self._take(bytes(self._scratch[position:end]), end + 2)
            if consumed is None:
                return
            position = consumed
        self._filled -= position
        self._scratch[: self._filled] = self._scratch[position : position + self._filled]
        if self._filled == _SCRATCH_BYTES:
            self.abort("the server sent an endless line")

    def _take(self, line: bytes, start: int) -> int | None:
        """Handle the reply that ``line`` begins; its value, if any, is at ``start``. None: the connection is gone."""
        kind, rest = line[:1], line[1:]
        if not self._due or kind not in b"+-:$" or not (kind in b"+-" or rest.lstrip(b"-").isdigit()):
            self.abort("the server does not speak the Redis protocol")
            return None
        if kind == b"+":
            self._answer(rest)
        elif kind == b"-":
            self._answer(CommandRefused(rest.decode(errors="replace")))
        elif kind == b":":
            self._answer(int(rest))
        elif rest.startswith(b"-"):
            self._answer(None)
        else:
            return self._take_value(int(rest), start)
        return start

    def _take_value(self, size: int, start: int) -> int | None:
        due = self._due[0]
        if size > due.limit_bytes or (due.exact and size != due.limit_bytes):
            self._answer(WrongSize(f"the store holds {size} bytes where {due.limit_bytes} were expected"))
            self.abort("a reply of the wrong size")
            return None
        held = min(size, self._filled - start)
        if held == size:
            self._answer(bytes(self._scratch[start : start + size]))
            self._skip = 2
        else:
            self._value = bytearray(size)
            self._value[:held] = self._scratch[start : start + held]
            self._value_filled = held
        return start + held

    def _answer(self, outcome: StoreReply | Exception) -> None:
        due = self._due.popleft()
        if due.exact:
            self.due_bytes -= due.limit_bytes
        if due.future.done():
            return
        if isinstance(outcome, Exception):
            due.future.set_exception(outcome)
        else:
            due.future.set_result(outcome)

    def _fail(self, error: ConnectionLost) -> None:
        while self._due:
            self._answer(ConnectionLost(*error.args))

    def _arm(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_at(self._last_sign + self._silence_s, self._check_silence)

    def _check_silence(self) -> None:
        self._watch = None
        if not self._due:
            return
        if self._loop.time() - self._last_sign >= self._silence_s:
            self.abort(f"silent for {self._silence_s:g} s")
        else:
            self._arm()
