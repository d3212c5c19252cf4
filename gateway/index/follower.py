"""Keeps this process's mirror of one model in line with Redis: a snapshot of each instance, then the stream's tail.

An entry that does not follow what the mirror has seen (the stream was trimmed, Redis lost data or its clock) is never
guessed at: the instance is read anew. While Redis is away or empty the mirror keeps what it knew.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.index.mirror import Mirror, RankBlocks
from gateway.index.store import InstanceState, ModelStore, StreamEntry
from gateway.index.types import CacheSpec
from gateway.redis.client import AWAY

_ENTRIES_AT_ONCE = 500
_LOADS_AT_ONCE = 4
_BLOCKS_AT_ONCE = 20_000
"""So many are applied before others may run."""
_WAIT_S = 0.2
_CHECK_S = 0.5
_RETRY_S = (0.05, 1.0)
_ABSENT_S = 10.0


@dataclass(slots=True)
class _Position:
    """What of an instance's changes the mirror holds; ``absent_since``: when its state went missing in Redis."""

    gen: int
    seq: int
    absent_since: float | None = None


class Follower:
    """Follows one model: ``run()`` until cancelled. ``on_loss`` is told of an instance whose blocks Redis has lost."""

    def __init__(
        self,
        store: ModelStore,
        model: str,
        mirror: Mirror,
        counters: Counter[str],
        now: Callable[[], float],
        on_loss: Callable[[str], None],
    ) -> None:
        self._store = store
        self._model = model
        self._mirror = mirror
        self._counters = counters
        self._now = now
        self._on_loss = on_loss
        self._positions: dict[str, _Position] = {}
        self._cursor = "0-0"
        self._checked: set[str] = set()

    @property
    def caught_up(self) -> bool:
        """Whether every instance of the model was compared with Redis."""
        return self._store.redis.up and self._specs().keys() <= self._checked

    async def run(self) -> None:
        """Follow for ever; errors of Redis are waited out."""
        pause_s = _RETRY_S[0]
        while True:
            try:
                with self._store.redis.noted():
                    self._cursor = await self._store.last_entry()
                pause_s = _RETRY_S[0]
                await self._follow()
            except AWAY:
                self._counters["redis_errors"] += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S[1])

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        checked_at = loop.time() - _CHECK_S
        while True:
            names = set(self._specs())
            with self._store.redis.noted():
                if loop.time() - checked_at >= _CHECK_S or names != self._checked:
                    await self._check()
                    self._checked, checked_at = names, loop.time()
                await self._read_tail(_WAIT_S)

    async def _read_tail(self, wait_s: float) -> bool:
        specs = self._specs()
        count = blocks = 0
        async for entry_id, entry in self._store.tail(self._cursor, wait_s, _ENTRIES_AT_ONCE):
            self._cursor = entry_id
            count += 1
            if entry.name in specs:
                self._apply(specs[entry.name], entry)
                blocks += len(entry.delta)
            if blocks > _BLOCKS_AT_ONCE:
                blocks = 0
                await asyncio.sleep(0)
        return count == _ENTRIES_AT_ONCE

    def _specs(self) -> dict[str, CacheSpec]:
        return {holding.spec.filed_as: holding.spec for holding in self._mirror.of_model(self._model)}

    async def _check(self) -> None:
        """Compare every instance with Redis, and read those anew that differ once the stream is read to its end."""
        specs = self._specs()
        self._positions = {name: position for name, position in self._positions.items() if name in specs}
        states = await self._store.states(specs.values())
        while await self._read_tail(0.0):
            pass
        stale = []
        for (name, spec), state in zip(specs.items(), states, strict=True):
            position = self._positions.get(name)
            if state is None:
                self._note_absence(spec, position)
            elif position is None or position.gen != state.gen or position.seq < state.seq:
                stale.append(spec)
            else:
                position.absent_since = None
                if position.seq == state.seq and self._sizes(spec) != state.sizes:
                    self._on_loss(spec.id)
        turns = asyncio.Semaphore(_LOADS_AT_ONCE)
        await asyncio.gather(*(self._load(spec, turns) for spec in stale))

    def _note_absence(self, spec: CacheSpec, position: _Position | None) -> None:
        if position is None:
            return
        now = self._now()
        if position.absent_since is None:
            position.absent_since = now
        elif now - position.absent_since > _ABSENT_S:
            del self._positions[spec.filed_as]
            self._mirror.forget(spec.id)

    def _sizes(self, spec: CacheSpec) -> tuple[int, ...]:
        holding = self._mirror.get(spec.id)
        ranks = holding.ranks if holding is not None else []
        return tuple(len(rank.held) for rank in ranks)

    async def _load(self, spec: CacheSpec, turns: asyncio.Semaphore) -> None:
        """Read an instance. What changes during the scan is in the stream, and is applied again from there."""
        async with turns:
            self._counters["loads"] += 1
            (before,) = await self._store.states([spec])
            if before is None:
                return
            if not spec.sources:
                for rank in range(spec.dp_size):
                    for left_s, block_keys in (await self._store.notes(spec, rank)).items():
                        self._mirror.predict(spec.id, rank, block_keys, self._now() + left_s)
            ranks = [RankBlocks(await self._store.scan(spec, rank)) for rank in range(spec.dp_size)]
            (after,) = await self._store.states([spec])
        if after is not None and after.gen == before.gen and self._specs().get(spec.filed_as) == spec:
            self._take(spec, before, ranks)

    def _take(self, spec: CacheSpec, state: InstanceState, ranks: list[RankBlocks]) -> None:
        self._positions[spec.filed_as] = _Position(state.gen, state.seq)
        self._mirror.load(spec.id, ranks, state.known)

    def _apply(self, spec: CacheSpec, entry: StreamEntry) -> None:
        if entry.op == "note":
            self._mirror.predict(spec.id, entry.rank, entry.delta.held, self._now() + entry.ttl_s)
        position = self._positions.get(entry.name)
        if entry.op == "open" and (position is None or position.gen < entry.gen):
            self._take(
                spec, InstanceState(entry.gen, entry.seq, False, ()), [RankBlocks() for _ in range(spec.dp_size)]
            )
        elif position is not None and position.gen == entry.gen and position.seq + 1 == entry.seq:
            position.seq = entry.seq
            if entry.op == "delta":
                self._mirror.apply(spec.id, entry.rank, entry.delta)
            elif entry.op == "known":
                self._mirror.set_known(spec.id, entry.known)
