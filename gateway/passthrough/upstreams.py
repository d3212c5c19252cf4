"""Servers that requests are passed to as they are: what they are, whether they live, how busy they are."""

import asyncio
import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from backends.errors import BackendError, EngineBroken, EngineUnavailable
from backends.transport.client import HttpOrigin
from backends.transport.patience import PeerTimeout
from gateway.errors import reason_of

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """One server, from the configuration. ``models`` None: it says itself; ``paths`` None: every path is asked for."""

    id: str
    url: str = field(repr=False)
    models: frozenset[str] | None = None
    paths: frozenset[str] | None = None
    region: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_running: int = 64
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0


class _Card(msgspec.Struct):
    id: str


class _Cards(msgspec.Struct):
    data: list[_Card]


class Upstream:
    """One server and its live state. ``in_flight`` counts this process's own requests."""

    def __init__(self, spec: UpstreamSpec, ssl_context: ssl.SSLContext | None = None) -> None:
        self.spec = spec
        self.origin = make_origin(spec.url, spec.api_key, ssl_context)
        self.models = spec.models or frozenset()
        self.reachable = False
        self.last_error = "not asked yet"
        self.in_flight = 0

    @property
    def id(self) -> str:
        """Name in the configuration, metrics and timelines."""
        return self.spec.id

    @property
    def region(self) -> str | None:
        """Where it stands; None: nobody says."""
        return self.spec.region

    @property
    def max_running(self) -> int:
        """Requests that it takes at once."""
        return self.spec.max_running

    @property
    def first_byte_timeout_s(self) -> float:
        """Longest wait for an answer's first byte."""
        return self.spec.first_byte_timeout_s

    @property
    def idle_timeout_s(self) -> float:
        """Longest silence inside an answer."""
        return self.spec.idle_timeout_s

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Count one request as running."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def offers(self, model: str, path: str) -> bool:
        """Say whether it serves a model at a path, be it up or not."""
        return model in self.models and (self.spec.paths is None or path in self.spec.paths)

    def note_failure(self, error: BackendError) -> None:
        """A request found it away: nothing is sent there until it has answered the watch again."""
        self.reachable = False
        self.last_error = str(error)

    async def check(self) -> None:
        """Ask for its models: it lives when it answers; without such a list too, if its models are named."""
        try:
            async with PeerTimeout(PROBE_TIMEOUT_S):
                found = await self._ask_models()
        except (BackendError, TimeoutError) as error:
            if self.reachable:
                log.warning("upstream %s is lost: %s", self.id, reason_of(error))
            self.reachable = False
            self.last_error = reason_of(error)
            return
        if self.spec.models is None:
            self.models = found
        if not self.reachable:
            log.info("upstream %s is ready", self.id)
        self.reachable = True

    async def _ask_models(self) -> frozenset[str]:
        named = self.spec.models
        response = await self.origin.send("GET", "/v1/models", head_timeout_s=PROBE_TIMEOUT_S)
        try:
            body = await response.body()
        finally:
            await response.aclose()
        if response.status == 200 and named is None:
            try:
                return frozenset(card.id for card in msgspec.json.decode(body, type=_Cards).data)
            except (msgspec.DecodeError, RecursionError):
                raise EngineBroken("/v1/models does not list models") from None
        if response.status == 200 or (named is not None and response.status in (404, 405)):
            return named or frozenset()
        raise EngineUnavailable(f"/v1/models answered {response.status}")


class UpstreamWatch:
    """Asks every upstream again and again."""

    def __init__(self, upstreams: Sequence[Upstream], interval_s: float) -> None:
        self._upstreams = upstreams
        self._interval_s = interval_s
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Ask each once, then go on in the background."""
        await asyncio.gather(*(upstream.check() for upstream in self._upstreams))
        self._tasks = [asyncio.create_task(self._watch(upstream)) for upstream in self._upstreams]

    async def aclose(self) -> None:
        """Stop asking, and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in self._upstreams:
            await upstream.origin.aclose()

    async def _watch(self, upstream: Upstream) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await upstream.check()


def make_origin(url: str, api_key: str | None, ssl_context: ssl.SSLContext | None = None) -> HttpOrigin:
    """Return the connections to a server. Without a key of its own no Authorization header goes out at all."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return HttpOrigin(url, headers=headers, ssl_context=ssl_context)
