"""Keeps the instances' state fresh: probes what is unknown or lost, reads the load of what lives."""

import asyncio
import logging
from collections.abc import Callable

from backends.errors import BackendError
from backends.transport.patience import PeerTimeout
from backends.types import Capabilities, EngineLoad
from gateway.errors import reason_of
from gateway.fleet.pools import Instance
from gateway.tasks import TaskSet

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0


class HealthWatch:
    """One task per instance. ``on_known`` is told whenever an engine process has said what it is."""

    def __init__(
        self,
        instances: list[Instance],
        interval_s: float,
        on_known: Callable[[Instance], None],
    ) -> None:
        self._instances = instances
        self._interval_s = interval_s
        self._on_known = on_known
        self._tasks = TaskSet()
        self._watched: set[int] | None = None
        """Instances that have a task, by their identity; None before the start."""

    async def start(self) -> None:
        """Ask every instance once, then go on watching in the background."""
        await asyncio.gather(*(self.check(instance) for instance in self._instances))
        self._watched = {id(instance) for instance in self._instances}
        for instance in self._instances:
            self._tasks.start(str(id(instance)), self._watch(instance, self._interval_s))

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def follow(self, instances: list[Instance]) -> None:
        """Watch these instances from now on and no others; new ones are asked at once."""
        self._instances = instances
        if self._watched is None:
            return
        for gone in self._watched - {id(instance) for instance in instances}:
            self._tasks.end(str(gone))
        for instance in instances:
            if id(instance) not in self._watched:
                self._tasks.start(str(id(instance)), self._watch(instance, 0.0))
        self._watched = {id(instance) for instance in instances}

    async def check(self, instance: Instance) -> None:
        """Probe an instance if it is not known to live, or if its process is another one; read its load."""
        try:
            async with PeerTimeout(PROBE_TIMEOUT_S):
                if not instance.reachable:
                    self._learn(instance, await instance.engine.probe())
                instance.load = await instance.engine.load()
                if instance.reachable and _is_another(instance.capabilities, instance.load):
                    self._learn(instance, await instance.engine.probe())
        except (BackendError, TimeoutError) as error:
            if instance.reachable:
                log.warning("instance %s is lost: %s", instance.spec.id, reason_of(error))
            instance.reachable = False
            instance.load = None
            instance.last_error = reason_of(error)

    def _learn(self, instance: Instance, found: Capabilities) -> None:
        if instance.spec.model not in found.models:
            instance.reachable = False
            instance.last_error = f"serves {', '.join(found.models) or 'nothing'}, not {instance.spec.model}"
            return
        instance.capabilities = found
        self._on_known(instance)
        instance.reachable = True
        instance.forgive()
        log.info("instance %s is ready", instance.spec.id)

    async def _watch(self, instance: Instance, first_after_s: float) -> None:
        await asyncio.sleep(first_after_s)
        while True:
            await self.check(instance)
            await asyncio.sleep(self._interval_s)


def _is_another(known: Capabilities | None, load: EngineLoad) -> bool:
    """Whether an engine has restarted between two looks."""
    return known is not None and load.boot_id is not None and load.boot_id != known.boot_id
