"""The HTTP API of an LMCache server (0.5.6), as far as the gateway uses it."""

from typing import TypeVar

import msgspec

from backends.errors import BackendError, EngineBroken, EngineUnavailable
from backends.transport.client import HttpOrigin

_Answer = TypeVar("_Answer")


class _Events(msgspec.Struct):
    incarnation: int


class _Status(msgspec.Struct):
    kv_events: _Events
    registered_gpu_ids: list[int] = []
    registered_non_cuda_instance_ids: list[int] = []


class CacheStatus(msgspec.Struct, frozen=True):
    """``boot_id`` changes when the server restarts; ``engines`` counts those that have their KV memory registered."""

    boot_id: str
    engines: int


class CacheServer:
    """One LMCache server at ``url``, its HTTP port. ``users`` counts the engines of the gateway that use it."""

    def __init__(self, url: str, *, timeout_s: float = 3.0) -> None:
        self._origin = HttpOrigin(url)
        self._timeout_s = timeout_s
        self.users = 0

    async def status(self) -> CacheStatus:
        """Ask what it is and whom it knows. Raises EngineUnavailable or EngineBroken."""
        found = await self.ask("GET", "/status", b"", _Status)
        engines = {*found.registered_gpu_ids, *found.registered_non_cuda_instance_ids}
        return CacheStatus(str(found.kv_events.incarnation), len(engines))

    async def ask(self, verb: str, path: str, body: bytes, answer: type[_Answer]) -> _Answer:
        """One call. Raises EngineUnavailable when it fails, EngineBroken when its answer is not what was agreed on."""
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            response = await self._origin.send(verb, path, body, headers=headers, head_timeout_s=self._timeout_s)
            try:
                text = await response.body()
            finally:
                await response.aclose()
        except BackendError as error:
            raise EngineUnavailable(f"its LMCache server is away: {error}") from None
        if response.status >= 300:
            raise EngineUnavailable(f"the LMCache server answered {path} with {response.status}")
        return _decode(text, path, answer)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._origin.aclose()


def _decode(text: bytes, path: str, answer: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(text, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineBroken(f"the LMCache server's answer to {path} is malformed") from None
