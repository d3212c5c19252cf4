"""One ingester an engine instance among all gateway processes: whoever holds the lease in Redis follows the engine."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from zmq.asyncio import Context
from zmq.error import ZMQError

from gateway.index.engine_blocks import Change
from gateway.index.ingest import Ingester, IngestTimes
from gateway.index.mirror import Mirror
from gateway.index.store import ModelStore
from gateway.index.types import CacheSpec
from gateway.redis.client import AWAY
from gateway.tasks import TaskSet

_MEND_PAUSE_S = (30.0, 3600.0)


class RedisSink:
    """Writes an instance's changes to Redis.

    While Redis is away they go to this process's own mirror; ``broken`` then says that Redis needs everything again.
    """

    def __init__(self, store: ModelStore, spec: CacheSpec, token: str, mirror: Mirror) -> None:
        self._store = store
        self._spec = spec
        self._token = token
        self._mirror = mirror
        self.gen = 0
        self.broken = True

    async def publish(self, rank: int, change: Change) -> None:
        """See ``Sink.publish``."""
        if not self.broken:
            try:
                self.broken = not await self._store.publish(self._spec, self._token, self.gen, rank, change)
            except AWAY:
                self.broken = True
        if self.broken:
            self._mirror.apply(self._spec.id, rank, change.delta)

    async def set_known(self, known: bool) -> None:
        """See ``Sink.set_known``."""
        if not self.broken:
            try:
                self.broken = not await self._store.set_known(self._spec, self._token, self.gen, known)
            except AWAY:
                self.broken = True
        if self.broken:
            self._mirror.set_known(self._spec.id, known)


class LeasedIngest:
    """Follows one boot of one instance while this process holds its lease: ``run()`` until cancelled."""

    def __init__(
        self,
        spec: CacheSpec,
        store: ModelStore,
        mirror: Mirror,
        context: Context,
        seed_of: Callable[[str | None, str | None], bytes],
        counters: Counter[str],
        now: Callable[[], float],
        times: IngestTimes,
        lease_s: float,
    ) -> None:
        self._spec = spec
        self._store = store
        self._counters = counters
        self._now = now
        self._mend_at = now()
        self._mend_pause_s = _MEND_PAUSE_S[0]
        self._renew_s = lease_s / 3
        self._token = uuid4().hex
        self._lost = False
        self._retired = False
        self._sink = RedisSink(store, spec, self._token, mirror)
        self._new_ingester: Callable[[], Ingester] = lambda: Ingester(
            spec, self._sink, context, seed_of, counters, now, times, records=True
        )

    def report_loss(self) -> None:
        """Say that Redis has lost blocks of the instance: they are written again at the next renewal."""
        self._lost = True

    def retire(self) -> None:
        """Say that this engine process is gone: what is kept of it goes with the lease."""
        self._retired = True

    async def run(self) -> None:
        """Take the lease when it is free, and follow the engine while it lasts."""
        try:
            while True:
                with suppress(*AWAY):
                    gen = await self._store.hold(self._spec, self._token)
                    if gen is not None:
                        await self._ingest(gen)
                await asyncio.sleep(self._renew_s)
        finally:
            with suppress(*AWAY):
                await self._store.release(self._spec, self._token, drop=self._retired)

    async def _ingest(self, gen: int) -> None:
        """Follow the engine until the lease is another's or the endpoint cannot be used."""
        self._counters["leases_taken"] += 1
        ingester = self._new_ingester()
        if not await self._resume(ingester, gen) and not await self._open():
            return
        tasks = TaskSet()
        task = tasks.start("engine", self._follow_engine(ingester))
        try:
            while not task.done():
                await asyncio.wait([task], timeout=self._renew_s)
                if not await self._keep(ingester):
                    return
        finally:
            await tasks.aclose()
            ingester.close()

    async def _follow_engine(self, ingester: Ingester) -> None:
        try:
            await ingester.run()
        except* ZMQError:
            self._counters["endpoint_errors"] += 1

    async def _resume(self, ingester: Ingester, gen: int) -> bool:
        """Go on from what the last holder of the lease wrote; False when that is not possible."""
        marks = await self._store.marks(self._spec) if gen else None
        if marks is None:
            return False
        residencies = []
        for rank in range(self._spec.dp_size):
            residency = ingester.new_residency()
            async for records in self._store.records(self._spec, rank):
                residency.restore(records)
                if await self._store.hold(self._spec, self._token) is None:
                    return False
            residencies.append(residency)
        (state,) = await self._store.states([self._spec])
        sizes = tuple(residency.size for residency in residencies)
        if state is None or state.gen != gen or state.sizes != sizes:
            return False
        ingester.resume(residencies, marks, state.known)
        self._sink.gen, self._sink.broken, self._lost = gen, False, False
        self._counters["resumed"] += 1
        return True

    async def _keep(self, ingester: Ingester) -> bool:
        """Renew the lease and mend what Redis lacks; False when another process holds it."""
        try:
            gen = await self._store.hold(self._spec, self._token)
            if gen is None:
                return False
            if self._sink.broken or gen != self._sink.gen or self._may_mend():
                self._counters["republished"] += 1
                if not await self._open():
                    return False
                await ingester.republish()
        except AWAY:
            self._sink.broken = True
        return True

    def _may_mend(self) -> bool:
        """Whether to write lost blocks again now. Ever more rarely, as a Redis that is too small loses them again."""
        now = self._now()
        if not self._lost or now < self._mend_at:
            return False
        self._mend_at = now + self._mend_pause_s
        self._mend_pause_s = min(2 * self._mend_pause_s, _MEND_PAUSE_S[1])
        return True

    async def _open(self) -> bool:
        gen = await self._store.open(self._spec, self._token)
        if gen is None:
            return False
        self._sink.gen, self._sink.broken, self._lost = gen, False, False
        return True
