"""The index of many gateway processes: state in Redis, a mirror of it in each process, one ingester an instance."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import lru_cache

from zmq.asyncio import Context

from gateway.index.follower import Follower
from gateway.index.hashing import BLOCK_TOKENS, chain_seed, hash_blocks
from gateway.index.ingest import IngestTimes
from gateway.index.leased import LeasedIngest
from gateway.index.mirror import Mirror
from gateway.index.store import ModelStore, Note, StoreLimits
from gateway.index.types import CacheHit, CacheSpec, IndexStats
from gateway.redis.client import AWAY, SharedRedis
from gateway.tasks import TaskSet


class LocalIndex:
    """The part of a ``PrefixIndex`` that needs no I/O.

    ``key``: secret of the deployment that block names depend on, at most 64 bytes, the same in all processes.
    ``predicted_ttl_s``: how long an entry made by ``note_routed`` stands. ``now`` counts seconds and never goes back.
    ``on_change`` is called after each change of what is held.
    """

    def __init__(
        self, key: bytes, predicted_ttl_s: float, now: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        self._mirror = Mirror(now, on_change)
        self._counters: Counter[str] = Counter()
        self._predicted_ttl_s = predicted_ttl_s
        self._now = now
        self._named: deque[tuple[Sequence[int], bytes, Sequence[int]]] = deque(maxlen=_PROMPTS_KEPT)
        self._seed = lru_cache(_SEEDS_KEPT)(lambda model, lora, salt: chain_seed(model, lora, salt, key))

    async def name_ahead(self, model: str, token_ids: Sequence[int], salt: str | None = None) -> None:
        """See ``PrefixIndex.name_ahead``."""
        seed = self._seed(model, None, salt)
        if len(token_ids) > _INLINE_TOKENS and self._find_named(token_ids, seed) is None:
            self._named.append((token_ids, seed, await asyncio.to_thread(hash_blocks, token_ids, seed)))

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, CacheHit]:
        """See ``PrefixIndex.lookup``."""
        self._counters["lookups"] += 1
        return self._mirror.hits(model, self._name_blocks(token_ids, self._seed(model, lora, salt)), len(token_ids))

    def note_routed(
        self,
        instance_id: str,
        model: str,
        token_ids: Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        rank: int = 0,
    ) -> None:
        """See ``PrefixIndex.note_routed``."""
        holding = self._mirror.get(instance_id)
        if holding is not None and rank < len(holding.predicted):
            block_keys = self._name_blocks(token_ids, self._seed(model, lora, salt))
            until = self._now() + self._predicted_ttl_s
            if holding.predicted[rank].stands(block_keys, until - _NEWS_SHARE * self._predicted_ttl_s):
                return  # this process, or one that shares the index, has said so a moment ago
            self._mirror.predict(instance_id, rank, block_keys, until)
            self._share_note(holding.spec, rank, block_keys)

    def _name_blocks(self, token_ids: Sequence[int], seed: bytes) -> Sequence[int]:
        """Name a prompt's blocks; each leg of a request asks with the same prompt again."""
        if (known := self._find_named(token_ids, seed)) is not None:
            return known
        block_keys = hash_blocks(token_ids, seed)
        self._named.append((token_ids, seed, block_keys))
        return block_keys

    def _find_named(self, token_ids: Sequence[int], seed: bytes) -> Sequence[int] | None:
        for ids, known_seed, block_keys in self._named:
            if ids is token_ids and known_seed == seed and len(block_keys) == len(ids) // BLOCK_TOKENS:
                return block_keys
        return None

    def _share_note(self, spec: CacheSpec, rank: int, block_keys: Sequence[int]) -> None:
        """Tell other processes, if there are any, of predicted blocks."""

    def _seeds_of(self, model: str) -> Callable[[str | None, str | None], bytes]:
        """Return the function from LoRA adapter and salt to the seed of ``model``'s chains.

        An adapter that is served as a model of its own is that model: its requests do not name it twice.
        """
        return lambda lora, salt: self._seed(model, None if lora == model else lora, salt)

    def _stats(self, redis_up: bool) -> IndexStats:
        return IndexStats(self._mirror.stats(), dict(self._counters), redis_up)


_NOTES_QUEUED = 1_000
_GATHERED_S = 0.02
"""Notes that come within it are one step of Redis, and one read of every process that follows."""
_INLINE_TOKENS = 100_000
"""Longer prompts are named beside the event loop: a millisecond or two."""
_PROMPTS_KEPT = 8
"""Whose blocks were named last: requests are set up one after another, and their legs soon follow."""
_NEWS_SHARE = 0.1
"""Of an entry's time: one that loses less of it is not worth a step of every process and of Redis."""


class RedisIndex(LocalIndex):
    """A ``PrefixIndex`` over ``redis``, its keys under ``prefix``. For the rest see ``LocalIndex``.

    Lookups never wait for Redis; while it is away the mirror goes on with what it knows and with what this process
    ingests itself. ``follows_engines`` False: it only reads what other processes ingest, and takes no lease.
    """

    def __init__(
        self,
        redis: SharedRedis,
        *,
        prefix: str = "pdd",
        key: bytes = b"",
        predicted_ttl_s: float = 600.0,
        times: IngestTimes | None = None,
        limits: StoreLimits | None = None,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
        follows_engines: bool = True,
    ) -> None:
        super().__init__(key, predicted_ttl_s, now, on_change)
        self._prefix = prefix
        self._follows_engines = follows_engines
        self._times = times or IngestTimes()
        self._limits = limits or StoreLimits()
        self._redis = redis
        self._context: Context | None = None
        self._stores: dict[str, ModelStore] = {}
        self._followers: dict[str, Follower] = {}
        self._ingests: dict[str, LeasedIngest] = {}
        self._tasks = TaskSet()
        self._notes: asyncio.Queue[Note] = asyncio.Queue(_NOTES_QUEUED)

    async def start(self) -> None:
        """See ``PrefixIndex.start``."""
        self._context = Context()
        self._tasks.start("notes", self._send_notes())
        for holding in self._mirror:
            self._follow(holding.spec)

    def add_instance(self, spec: CacheSpec) -> None:
        """See ``PrefixIndex.add_instance``."""
        before = self._mirror.get(spec.id)
        old_boot_id = before.spec.boot_id if before is not None else None
        new_boot = spec.boot_id is not None and spec.boot_id != old_boot_id
        if self._mirror.admit(spec) or new_boot:
            if new_boot and spec.id in self._ingests:
                self._ingests[spec.id].retire()
            self._tasks.end(f"ingest {spec.id}")
            self._follow(spec)

    async def ages(self) -> dict[str, float | None]:
        """Return for how many seconds nobody has confirmed an instance's state in Redis; None: nothing is there.

        Raises ``AWAY``.
        """
        ages: dict[str, float | None] = {}
        for model, store in self._stores.items():
            specs = [holding.spec for holding in self._mirror.of_model(model)]
            for spec, left_s in zip(specs, await store.left_s(specs), strict=True):
                ttl_s = self._limits.ttl_s if spec.sources else self._predicted_ttl_s
                ages[spec.id] = None if left_s is None else max(0.0, ttl_s - left_s)
        return ages

    def remove_instance(self, instance_id: str) -> None:
        """See ``PrefixIndex.remove_instance``."""
        self._mirror.remove(instance_id)
        self._tasks.end(f"ingest {instance_id}")
        self._ingests.pop(instance_id, None)

    @property
    def caught_up(self) -> bool:
        """Whether all that Redis has of the tracked instances was read."""
        return all(follower.caught_up for follower in self._followers.values())

    def stats(self) -> IndexStats:
        """See ``PrefixIndex.stats``."""
        return self._stats(redis_up=self._redis.up)

    async def aclose(self) -> None:
        """See ``PrefixIndex.aclose``."""
        await self._tasks.aclose()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _share_note(self, spec: CacheSpec, rank: int, block_keys: Sequence[int]) -> None:
        if self._notes.full():
            self._notes.get_nowait()
            self._counters["dropped_notes"] += 1
        self._notes.put_nowait((spec, rank, block_keys))

    async def _send_notes(self) -> None:
        while True:
            by_model: dict[str, list[Note]] = {}
            note = await self._notes.get()
            by_model[note[0].model] = [note]
            await asyncio.sleep(_GATHERED_S)
            while not self._notes.empty():
                note = self._notes.get_nowait()
                by_model.setdefault(note[0].model, []).append(note)
            for model, notes in by_model.items():
                try:
                    await self._store_of(model).note(notes, self._predicted_ttl_s)
                except AWAY:
                    self._counters["dropped_notes"] += len(notes)

    def _store_of(self, model: str) -> ModelStore:
        store = self._stores.get(model)
        if store is None:
            client = self._redis.client(f"index of {model}", self._limits.reply_s)
            store = self._stores[model] = ModelStore(client, self._prefix, model, self._limits)
        return store

    def _follow(self, spec: CacheSpec) -> None:
        if self._context is None:
            return
        store = self._store_of(spec.model)
        if spec.model not in self._followers:
            follower = Follower(store, spec.model, self._mirror, self._counters, self._now, self._report_loss)
            self._followers[spec.model] = follower
            self._tasks.start(f"follow {spec.model}", follower.run())
        if spec.sources and self._follows_engines:
            ingest = LeasedIngest(
                spec,
                store,
                self._mirror,
                self._context,
                self._seeds_of(spec.model),
                self._counters,
                self._now,
                self._times,
                self._limits.lease_s,
            )
            self._ingests[spec.id] = ingest
            self._tasks.start(f"ingest {spec.id}", ingest.run())

    def _report_loss(self, instance_id: str) -> None:
        ingest = self._ingests.get(instance_id)
        if ingest is not None:
            ingest.report_loss()


_SEEDS_KEPT = 4096
