"""Which server a request is passed to: upstreams for their models, engines for the gateway's own."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from backends.errors import BackendError
from backends.transport.client import HttpOrigin
from gateway.fleet.pools import Instance, Pools
from gateway.passthrough.upstreams import Upstream, make_origin
from policies.types import Role
from policies.where import ANYWHERE, Where


class PassthroughServer(Protocol):
    """Somewhere to pass a request to."""

    @property
    def id(self) -> str:
        """Name in the configuration."""
        ...

    @property
    def region(self) -> str | None:
        """Where it stands; None: that is not known."""
        ...

    @property
    def origin(self) -> HttpOrigin: ...

    @property
    def first_byte_timeout_s(self) -> float:
        """Longest wait for an answer's first byte."""
        ...

    @property
    def idle_timeout_s(self) -> float:
        """Longest silence inside an answer."""
        ...

    def occupied(self) -> AbstractContextManager[None]:
        """Count one request as running."""
        ...

    def note_failure(self, error: BackendError) -> None:
        """A request found it away."""
        ...


@dataclass(frozen=True, slots=True)
class EngineServer:
    """An engine instance, asked at its own HTTP API beside the gateway's legs."""

    instance: Instance
    pools: Pools
    origin: HttpOrigin
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self.instance.spec.id

    @property
    def region(self) -> str:
        """Where the instance stands."""
        return self.instance.spec.region

    def occupied(self) -> AbstractContextManager[None]:
        """Count one request as running, as legs are counted."""
        return self.instance.occupied()

    def note_failure(self, error: BackendError) -> None:
        """Count it as a leg's failure is counted."""
        self.pools.report_failure(self.instance, error)


@dataclass(slots=True)
class Servers:
    """Finds the least loaded server; those that are equally loaded take turns."""

    upstreams: Sequence[Upstream]
    pools: Pools
    own_models: Collection[str]
    _origins: dict[tuple[str, str], HttpOrigin] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _turn: int = 0

    def models(self) -> list[str]:
        """Names of the upstreams' models, also of those that are down."""
        names = {name for upstream in self.upstreams for name in upstream.models}
        return sorted(names.difference(self.own_models))

    def passes(self, model: object) -> bool:
        """Say whether requests for a model are passed on whatever they ask for."""
        return model not in self.own_models and any(model in upstream.models for upstream in self.upstreams)

    def offers(self, model: str, path: str) -> bool:
        """Say whether anything serves the model at the path, be it up or not."""
        if model in self.own_models:
            return True
        return any(upstream.offers(model, path) for upstream in self.upstreams)

    def choose(
        self, model: str, path: str, tried: Collection[str] = (), where: Where = ANYWHERE
    ) -> PassthroughServer | None:
        """Return the server to try next; None: none is left that is up, has room and stands where it may."""
        found = self._engines(model) if model in self.own_models else self._upstreams(model, path)
        found = [entry for entry in found if entry[2].id not in tried and where.allows(entry[2].region)]
        if not found:
            return None
        _, _, server = min(found, key=lambda entry: entry[:2])
        self._turn += 1
        self._turns[server.id] = self._turn
        return server

    async def aclose(self) -> None:
        """Close the connections to engines."""
        for origin in self._origins.values():
            await origin.aclose()

    def _upstreams(self, model: str, path: str) -> list[tuple[float, int, PassthroughServer]]:
        return [
            (upstream.in_flight / upstream.max_running, self._turns.get(upstream.id, 0), upstream)
            for upstream in self.upstreams
            if upstream.reachable and upstream.in_flight < upstream.max_running and upstream.offers(model, path)
        ]

    def _engines(self, model: str) -> list[tuple[float, int, PassthroughServer]]:
        now_s = self.pools.clock()
        usable = [i for i in self.pools.of_model(model) if i.usable(now_s)]
        main = [instance for instance in usable if instance.spec.role is Role.MD]
        return [
            (instance.view(now_s).load, self._turns.get(instance.spec.id, 0), self._engine(instance))
            for instance in main or usable
        ]

    def _engine(self, instance: Instance) -> EngineServer:
        spec = instance.spec
        key = (spec.id, spec.url)
        if key not in self._origins:
            self._origins[key] = make_origin(spec.url, spec.api_key)
        return EngineServer(instance, self.pools, self._origins[key])
