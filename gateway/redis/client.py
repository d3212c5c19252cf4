"""How a process reaches Redis: which errors mean that it is away, and one line in the log whenever that changes.

Whoever keeps state in Redis is a ``RedisClient`` of the process's ``SharedRedis``, with a time limit and connections of
its own, so that a slow use holds up no other. A client knows whether its own last step was done, as its promise hangs
on that: limits are held alone while *their* steps fail. What the process says of Redis as a whole, in its metrics, at
``/admin/rules`` and in the log, is ``SharedRedis.up``.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import blake2b
from types import TracebackType
from typing import Self

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from backends.transport.patience import PeerTimeout
from gateway.errors import reason_of
from gateway.redis.scripts import SCRIPTS

log = logging.getLogger(__name__)

AWAY = (RedisError, OSError)
"""What a step raises that Redis did not do: no connection, no answer in time (TimeoutError), or a refusal."""
RedisCommands = redis.asyncio.Redis
RedisNotices = redis.asyncio.client.PubSub

_CONNECT_TIMEOUT_S = 2.0
_HEALTH_CHECK_S = 15
"""A connection that was silent for so long is tried before it is used."""
_MOST_CONNECTIONS = 1_000
"""Of one client. The index waits for an answer to each engine's ingest at once."""


class SharedRedis:
    """Redis or Valkey at ``url``, for one process; connections are made when they are needed. Raises ValueError.

    ``up``: every client's last step was done, and there was one.
    """

    def __init__(self, url: str) -> None:
        parse_url(url)
        self._url = url
        self._clients: list[RedisClient] = []
        self._failing: set[RedisClient] = set()
        self._told_up: bool | None = None

    @property
    def up(self) -> bool:
        """See the class."""
        return self._told_up is True

    def client(self, name: str, timeout_s: float) -> "RedisClient":
        """Return the way for one use of Redis, whose steps are done within ``timeout_s``."""
        client = RedisClient(self, self._url, name, timeout_s)
        self._clients.append(client)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, once the clients are done. Idempotent."""
        for client in self._clients:
            await client.commands.aclose()

    def note(self, client: "RedisClient", error: Exception | None) -> None:
        """Take in how a client's step ended; the log is told when that changes what holds for all."""
        if error is None:
            self._failing.discard(client)
        else:
            self._failing.add(client)
        up = not self._failing
        if up is self._told_up:
            return
        self._told_up = up
        if error is None:
            log.info("Redis answers")
        else:
            reason = reason_of(error)
            log.warning("Redis does not answer (%s): %s; this process goes on with what it knows", client.name, reason)


class RedisClient:
    """One use of Redis; see ``SharedRedis.client``. ``up``: its last step was done."""

    def __init__(self, shared: SharedRedis, url: str, name: str, timeout_s: float) -> None:
        self.shared = shared
        self.name = name
        # Neither retries nor time limits of the library: whoever takes a step does both. Below Python 3.12 its socket
        # timeout can swallow a cancellation.
        self.commands: RedisCommands = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            health_check_interval=_HEALTH_CHECK_S,
            max_connections=_MOST_CONNECTIONS,
            retry=Retry(NoBackoff(), 0),
        )
        self.up = False
        self.trouble = "Redis was not asked yet"
        """Why it is not up."""
        self._timeout_s = timeout_s
        self._scripts: dict[str, AsyncScript] = {}

    def script(self, name: str) -> AsyncScript:
        """Return a step of ``gateway/redis/lua``, which Redis is told of again whenever it does not know it."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.commands.register_script(SCRIPTS[name])
        return script

    def limit(self, timeout_s: float | None = None) -> PeerTimeout:
        """Bound what is in the block by ``timeout_s`` (None: the usual); how it ends is not noted."""
        return PeerTimeout(self._timeout_s if timeout_s is None else timeout_s)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note whether what is in the block was done. Raises what it raises."""
        try:
            yield
        except AWAY as error:
            self.up, self.trouble = False, f"Redis does not answer: {reason_of(error)}"
            self.shared.note(self, error)
            raise
        self.up, self.trouble = True, ""
        self.shared.note(self, None)

    @asynccontextmanager
    async def step(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Do a step, within ``timeout_s`` (None: the usual), and note whether it was done. Raises ``AWAY``."""
        with self.noted():
            async with self.limit(timeout_s):
                yield


def digest(name: str) -> str:
    """Names may hold anything; braces would move keys to other slots of a cluster."""
    return blake2b(name.encode(), digest_size=16).hexdigest()
