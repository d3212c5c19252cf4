"""The index of a single process: every instance's events are followed here, and nothing is shared."""

import asyncio
import time
from collections.abc import Callable, Sequence

from zmq.asyncio import Context
from zmq.error import ZMQError

from gateway.index.ingest import Ingester, IngestTimes
from gateway.index.local import LocalIndex
from gateway.index.mirror import Delta, Mirror
from gateway.index.types import Hit, IndexStats, InstanceSpec

_ENDPOINT_RETRY_S = 5.0


class MemoryIndex:
    """A ``PrefixIndex`` without Redis.

    ``key``: secret of the deployment that block names depend on, at most 64 bytes. ``predicted_ttl_s``: how long an
    entry made by ``note_routed`` stands. ``now`` counts seconds and never goes back. ``on_change``
    is called after each change of what is held.
    """

    def __init__(
        self,
        *,
        key: bytes = b"",
        predicted_ttl_s: float = 600.0,
        times: IngestTimes | None = None,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._local = LocalIndex(Mirror(now, on_change), key)
        self._predicted_ttl_s = predicted_ttl_s
        self._times = times or IngestTimes()
        self._now = now
        self._context: Context | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """See ``PrefixIndex.start``."""
        self._context = Context()
        for holding in self._local.mirror:
            self._follow(holding.spec)

    def add_instance(self, spec: InstanceSpec) -> None:
        """See ``PrefixIndex.add_instance``."""
        if self._local.mirror.admit(spec):
            self._unfollow(spec.id)
            self._follow(spec)

    def remove_instance(self, instance_id: str) -> None:
        """See ``PrefixIndex.remove_instance``."""
        self._local.mirror.remove(instance_id)
        self._unfollow(instance_id)

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, Hit]:
        """See ``PrefixIndex.lookup``."""
        return self._local.lookup(model, token_ids, salt, lora)

    def note_routed(
        self,
        instance_id: str,
        model: str,
        token_ids: Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
    ) -> None:
        """See ``PrefixIndex.note_routed``."""
        mirror = self._local.mirror
        if mirror.is_predicted(instance_id):
            keys = self._local.keys(model, token_ids, salt, lora)
            mirror.predict(instance_id, keys, self._now() + self._predicted_ttl_s)

    def stats(self) -> IndexStats:
        """See ``PrefixIndex.stats``."""
        return self._local.stats(redis_up=None)

    async def aclose(self) -> None:
        """See ``PrefixIndex.aclose``."""
        tasks = list(self._tasks.values())
        for instance_id in list(self._tasks):
            self._unfollow(instance_id)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _follow(self, spec: InstanceSpec) -> None:
        if self._context is not None and spec.sources:
            self._tasks[spec.id] = asyncio.create_task(self._ingest(spec, self._context))

    def _unfollow(self, instance_id: str) -> None:
        task = self._tasks.pop(instance_id, None)
        if task is not None:
            task.cancel()

    async def _ingest(self, spec: InstanceSpec, context: Context) -> None:
        sink = MirrorSink(self._local.mirror, spec.id)
        local = self._local
        while True:
            ingester = Ingester(spec, sink, context, local.seeds_of(spec.model), local.counters, self._now, self._times)
            try:
                await ingester.run()
            except* ZMQError:
                local.counters["endpoint_errors"] += 1
            await asyncio.sleep(_ENDPOINT_RETRY_S)


class MirrorSink:
    """Puts an instance's changes into a mirror."""

    def __init__(self, mirror: Mirror, instance_id: str) -> None:
        self._mirror = mirror
        self._instance_id = instance_id

    async def publish(self, rank: int, delta: Delta) -> None:
        """See ``Sink.publish``."""
        self._mirror.apply(self._instance_id, rank, delta)

    async def set_known(self, known: bool) -> None:
        """See ``Sink.set_known``."""
        self._mirror.set_known(self._instance_id, known)
