"""An index without Redis: every instance's events are followed here, and nothing is shared."""

import asyncio
import time
from collections.abc import Callable

from zmq.asyncio import Context
from zmq.error import ZMQError

from gateway.index.engine_blocks import Change
from gateway.index.ingest import Ingester, IngestTimes
from gateway.index.mirror import Mirror
from gateway.index.shared import LocalIndex
from gateway.index.types import CacheSpec, IndexStats
from gateway.tasks import TaskSet

_ENDPOINT_RETRY_S = 5.0


class MemoryIndex(LocalIndex):
    """A ``PrefixIndex`` without Redis. Parameters: see ``LocalIndex``."""

    def __init__(
        self,
        *,
        key: bytes = b"",
        predicted_ttl_s: float = 600.0,
        times: IngestTimes | None = None,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(key, predicted_ttl_s, now, on_change)
        self._times = times or IngestTimes()
        self._context: Context | None = None
        self._tasks = TaskSet()

    async def start(self) -> None:
        """See ``PrefixIndex.start``."""
        self._context = Context()
        for holding in self._mirror:
            self._follow(holding.spec)

    def add_instance(self, spec: CacheSpec) -> None:
        """See ``PrefixIndex.add_instance``."""
        if self._mirror.admit(spec):
            self._tasks.end(spec.id)
            self._follow(spec)

    def remove_instance(self, instance_id: str) -> None:
        """See ``PrefixIndex.remove_instance``."""
        self._mirror.remove(instance_id)
        self._tasks.end(instance_id)

    def stats(self) -> IndexStats:
        """See ``PrefixIndex.stats``."""
        return self._stats(redis_up=True)

    async def aclose(self) -> None:
        """See ``PrefixIndex.aclose``."""
        await self._tasks.aclose()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _follow(self, spec: CacheSpec) -> None:
        if self._context is not None and spec.sources:
            self._tasks.start(spec.id, self._ingest(spec, self._context))

    async def _ingest(self, spec: CacheSpec, context: Context) -> None:
        sink = MirrorSink(self._mirror, spec.id)
        seed_of = self._seeds_of(spec.model)
        while True:
            try:
                await Ingester(spec, sink, context, seed_of, self._counters, self._now, self._times).run()
            except* ZMQError:
                self._counters["endpoint_errors"] += 1
            await asyncio.sleep(_ENDPOINT_RETRY_S)


class MirrorSink:
    """Puts an instance's changes into a mirror."""

    def __init__(self, mirror: Mirror, instance_id: str) -> None:
        self._mirror = mirror
        self._instance_id = instance_id

    async def publish(self, rank: int, change: Change) -> None:
        """See ``Sink.publish``."""
        self._mirror.apply(self._instance_id, rank, change.delta)

    async def set_known(self, known: bool) -> None:
        """See ``Sink.set_known``."""
        self._mirror.set_known(self._instance_id, known)
