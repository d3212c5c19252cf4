"""An engine that is of use only while its LMCache server knows it.

vLLM registers its KV memory with the server at start, and again when it sees the server come back. It looks only every
10 s. A server that restarts faster than that is never told: whoever asks the engine then waits for an answer that does
not come, and after ``lmcache.mp.mq_timeout`` the engine ends.
"""

from backends.base import Engine, Take
from backends.errors import EngineUnavailable
from backends.kv.lmcache import CacheServer
from backends.types import Capabilities, EngineLoad, LegRequest


class CacheBoundEngine:
    """``Engine`` around another one, which is unavailable while ``server`` is away or has forgotten it."""

    def __init__(self, engine: Engine, server: CacheServer) -> None:
        self.wrapped = engine
        self._server = server
        self._boot_id: str | None = None
        self._server_boot_id: str | None = None
        self._is_closed = False
        server.users += 1

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self.wrapped.id

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """See ``Engine.generate``."""
        await self.wrapped.generate(leg, take)

    async def probe(self) -> Capabilities:
        """See ``Engine.probe``."""
        found = await self.wrapped.probe()
        await self._check(found.boot_id)
        return found

    async def load(self) -> EngineLoad:
        """See ``Engine.load``."""
        found = await self.wrapped.load()
        await self._check(found.boot_id)
        return found

    async def aclose(self) -> None:
        """See ``Engine.aclose``. The server's connections are closed with the last engine that uses it."""
        await self.wrapped.aclose()
        if not self._is_closed:
            self._is_closed = True
            self._server.users -= 1
            if self._server.users == 0:
                await self._server.aclose()

    async def _check(self, boot_id: str | None) -> None:
        """Compare the server with the one that the engine registered with. Raises EngineUnavailable or EngineBroken."""
        status = await self._server.status()
        if not status.engines:
            raise EngineUnavailable("its LMCache server knows no engine")
        is_known = self._server_boot_id is not None and boot_id == self._boot_id
        if is_known and status.boot_id != self._server_boot_id and status.engines < self._server.users:
            raise EngineUnavailable("its LMCache server has restarted without it: restart the engine")
        self._boot_id, self._server_boot_id = boot_id, status.boot_id
