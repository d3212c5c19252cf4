"""In-process engines and links that answer exactly as a test says, and a clock."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from backends.base import Take
from backends.errors import BackendError
from backends.types import (
    Capabilities,
    EngineLoad,
    LegRequest,
    LinkState,
    PathTraits,
    TransferPriority,
    TransferProgress,
    TransferRequest,
)
from gateway.fleet.pools import Instance, InstanceSpec
from policies.types import Role
from tests.fakes.gates import Watch
from tests.fakes.kv_path import SEEN

MODEL = "m"

_NO_PROGRESS: tuple[TransferProgress, ...] = ()


class Clock:
    """Monotonic seconds under the test's control."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@dataclass(slots=True)
class ScriptedEngine:
    """Implements ``Engine`` but for legs. ``error``: what every question meets; ``hangs``: none is answered."""

    id: str = "p1"
    models: tuple[str, ...] = (MODEL,)
    boot_id: str | None = "boot1"
    tells_boot: bool = True
    running: int = 0
    error: BackendError | None = None
    hangs: bool = False
    probes: int = 0
    loads: int = 0
    asked: Watch = field(default_factory=Watch)

    async def probe(self) -> Capabilities:
        """Say what it is."""
        self.probes += 1
        await self._answer()
        return Capabilities(self.models, 8192, 16, streams_token_ids=True, boot_id=self.boot_id)

    async def load(self) -> EngineLoad:
        """Say how many requests run."""
        self.loads += 1
        await self._answer()
        return EngineLoad(self.running, 0, 0.25, self.boot_id if self.tells_boot else None)

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Say nothing."""

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _answer(self) -> None:
        self.asked.changed()
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class ScriptedPath:
    """Implements ``MeasuredPath`` but for transfers. ``error``: what every question meets."""

    state: LinkState
    error: BackendError | None = None
    hangs: bool = False
    traits: PathTraits = SEEN
    asked_times: int = 0
    is_closed: bool = False
    asked: Watch = field(default_factory=Watch)

    async def link(self) -> LinkState:
        """Say what was measured."""
        self.asked_times += 1
        self.asked.changed()
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        return self.state

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """Move nothing."""
        for progress in _NO_PROGRESS:
            yield progress

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """Change nothing: there is nothing to order."""

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.is_closed = True


def build_instance(engine: ScriptedEngine, role: Role = Role.P) -> Instance:
    """An instance over ``engine`` that was not asked yet."""
    return Instance(InstanceSpec(engine.id, role, MODEL, "a", "http://engine.invalid", max_running=8), engine)
