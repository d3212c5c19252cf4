"""The index's state in Redis, for one model: sets of block keys an instance, and one stream of what changes in them.

An instance is filed under its id and boot id, so nothing of an earlier engine process is ever read for the present one.
Everything is keyed by hashes; token ids are never written. Every key has a time to live.
"""

from array import array
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeVar

from gateway.index.engine_blocks import Change, EventMark
from gateway.index.mirror import CacheDelta
from gateway.index.types import CacheSpec
from gateway.redis.client import RedisClient

_SCAN_COUNT = 10_000
_RECORDS_COUNT = 1_000
_T = TypeVar("_T")
Note = tuple[CacheSpec, int, Sequence[int]]
"""Predicted blocks of a rank of an instance."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of what is kept, and of the wait for a reply (``reply_s``).

    ``delta_blocks``: most block keys in one entry of the stream.
    """

    reply_s: float = 5.0
    lease_s: float = 3.0
    ttl_s: float = 600.0
    stream_entries: int = 2_000
    delta_blocks: int = 4_096
    predicted_blocks: int = 200_000


@dataclass(frozen=True, slots=True)
class InstanceState:
    """Where an instance's state stands: what the stream's entries up to ``seq`` have made of generation ``gen``.

    ``sizes`` holds the number of blocks of each rank in turn.
    """

    gen: int
    seq: int
    known: bool
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of the stream. ``ttl_s`` goes with ``op`` "note", ``known`` with "known"."""

    name: str
    op: str
    gen: int
    seq: int
    rank: int
    delta: CacheDelta
    known: bool
    ttl_s: float


LAYOUT = 2
"""Of keys and deltas. Gateways of another layout share no index: what they left would be read as an empty cache."""


class ModelStore:
    """Redis keys and steps of one model. Methods raise ``AWAY``."""

    def __init__(self, redis: RedisClient, prefix: str, model: str, limits: StoreLimits) -> None:
        # A digest as the tag: model names may hold braces, which would move keys to other slots of a cluster.
        tag = blake2b(model.encode(), digest_size=8).hexdigest()
        self._base = f"{prefix}:index{LAYOUT}:{{{tag}}}"
        self.redis = redis
        self._client = redis.commands
        self._ttl_ms = int(limits.ttl_s * 1000)
        self._limits = limits
        self._deltas = f"{self._base}:deltas"
        self._hold = redis.script("index_hold")
        self._release = redis.script("index_release")
        self._open = redis.script("index_open")
        self._publish = redis.script("index_publish")
        self._set_known = redis.script("index_set_known")
        self._note = redis.script("index_note")
        self._state = redis.script("index_state")

    async def hold(self, spec: CacheSpec, token: str) -> int | None:
        """Take or keep the lease of an instance. Returns the generation there, 0 for none; None: another holds it."""
        keys = [self._key("lease", spec), self._key("meta", spec), self._deltas, *self._all_keys(spec)]
        held, gen = await self._soon(self._hold(keys, [token, int(self._limits.lease_s * 1000), self._ttl_ms]))
        return int(gen or 0) if held else None

    async def release(self, spec: CacheSpec, token: str, *, drop: bool) -> None:
        """Give the lease up, if it is held; ``drop``: with all that is kept of the instance."""
        keys = [self._key("lease", spec)]
        await self._soon(
            self._release([*keys, self._key("meta", spec), *self._all_keys(spec)] if drop else keys, [token])
        )

    async def open(self, spec: CacheSpec, token: str) -> int | None:
        """Begin an empty generation and return it; None when the lease is lost."""
        keys = [self._key("lease", spec), self._key("meta", spec), self._deltas, *self._all_keys(spec)]
        gen = await self._soon(self._open(keys, [token, spec.filed_as, self._ttl_ms, self._limits.stream_entries]))
        return int(gen) if gen else None

    async def publish(self, spec: CacheSpec, token: str, gen: int, rank: int, change: Change) -> bool:
        """Apply a change of a rank's blocks; False when lease or generation are lost."""
        keys = [self._key("lease", spec), self._key("meta", spec), self._deltas]
        keys += [self._key(f"blocks:{rank}", spec), self._key(f"records:{rank}", spec)]
        for part in _split(change, self._limits.delta_blocks):
            delta = part.delta
            arguments: list[int | str | bytes] = [token, gen, spec.filed_as, rank, int(delta.clear)]
            arguments += [_pack(delta.held), _pack(delta.gone)]
            arguments += [self._ttl_ms, self._limits.stream_entries, _pack_mark(part.mark), len(part.saved)]
            arguments += [*chain.from_iterable(part.saved.items()), *part.dropped]
            if not await self._soon(self._publish(keys, arguments)):
                return False
        return True

    async def marks(self, spec: CacheSpec) -> list[EventMark] | None:
        """Return each rank's last message; None when a process cannot go on from the records."""
        names = [f"mark:{rank}" for rank in range(spec.dp_size)]
        marks: Any = await self._soon(self._client.hmget(self._key("meta", spec), names))
        return None if None in marks else [EventMark(*map(int, mark.split(b":"))) for mark in marks]

    async def records(self, spec: CacheSpec, rank: int) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """Yield a rank's records, about a thousand at a time."""
        key = self._key(f"records:{rank}", spec)
        cursor = 0
        while True:
            page: Any = await self._soon(self._client.hscan(key, cursor, count=_RECORDS_COUNT))
            cursor, members = page
            yield list(members.items())
            if not cursor:
                return

    async def set_known(self, spec: CacheSpec, token: str, gen: int, known: bool) -> bool:
        """Say whether the blocks are all that the instance holds; False when lease or generation are lost."""
        keys = [self._key("lease", spec), self._key("meta", spec), self._deltas]
        arguments: list[int | str] = [token, gen, spec.filed_as, int(known), self._limits.stream_entries]
        return bool(await self._soon(self._set_known(keys, arguments)))

    async def note(self, notes: Iterable[Note], ttl_s: float) -> None:
        """Add predicted blocks of ranks of instances."""
        limits = [int(ttl_s * 1000), self._limits.predicted_blocks, self._limits.stream_entries]
        async with self._client.pipeline(transaction=False) as pipeline:
            for spec, rank, block_keys in notes:
                keys = [self._key("meta", spec), self._key(_notes(rank), spec), self._deltas]
                await self._note(keys, [spec.filed_as, _pack(block_keys), *limits, rank], client=pipeline)
            await self._soon(pipeline.execute())

    async def states(self, specs: Iterable[CacheSpec]) -> list[InstanceState | None]:
        """Return where instances stand, each as of one moment; None where nothing is."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for spec in specs:
                await self._state([self._key("meta", spec), *self._set_keys(spec)], client=pipeline)
            return [_read_state(fields) for fields in await self._soon(pipeline.execute())]

    async def left_s(self, specs: Iterable[CacheSpec]) -> list[float | None]:
        """Return the seconds that each instance's state will stand if nobody confirms it again; None: there is none."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for spec in specs:
                pipeline.pttl(self._key("meta", spec))
            return [left_ms / 1000 if left_ms >= 0 else None for left_ms in await self._soon(pipeline.execute())]

    async def scan(self, spec: CacheSpec, rank: int) -> set[int]:
        """Return a rank's blocks; what changes meanwhile may or may not be in them."""
        key = self._key(f"blocks:{rank}", spec)
        blocks: set[int] = set()
        cursor = 0
        while True:
            page: Any = await self._soon(self._client.sscan(key, cursor, count=_SCAN_COUNT))
            cursor, members = page
            blocks.update(_unpack(b"".join(members)))
            if not cursor:
                return blocks

    async def notes(self, spec: CacheSpec, rank: int) -> Mapping[float, Sequence[int]]:
        """Return a rank's predicted blocks by the seconds that they have left."""
        seconds, micros = await self._soon(self._client.time())
        now_ms = seconds * 1000 + micros // 1000
        by_left: dict[float, list[bytes]] = {}
        cursor = 0
        while True:
            page: Any = await self._soon(self._client.zscan(self._key(_notes(rank), spec), cursor, count=_SCAN_COUNT))
            cursor, members = page
            for key, score in members:
                by_left.setdefault((score - now_ms) / 1000, []).append(key)
            if not cursor:
                return {left_s: _unpack(b"".join(keys)) for left_s, keys in sorted(by_left.items()) if left_s > 0}

    async def last_entry(self) -> str:
        """Return the id of the stream's newest entry."""
        newest: Any = await self._soon(self._client.xrevrange(self._deltas, count=1))
        return newest[0][0].decode() if newest else "0-0"

    async def tail(self, after: str, block_s: float, count: int) -> AsyncGenerator[tuple[str, StreamEntry], None]:
        """Yield entries that follow ``after``, with their ids; waits up to ``block_s`` for the first one."""
        block_ms = max(1, int(block_s * 1000)) if block_s else None
        streams: Any = await self._soon(self._client.xread({self._deltas: after}, count=count, block=block_ms))
        for _, entries in streams or ():
            for entry_id, fields in entries:
                yield entry_id.decode(), _read_entry(fields)

    async def _soon(self, reply: Awaitable[_T]) -> _T:
        """Wait for a reply, but not for ever: a half-open connection never answers."""
        async with self.redis.limit():
            return await reply

    def _key(self, kind: str, spec: CacheSpec) -> str:
        return f"{self._base}:{kind}:{spec.filed_as}"

    def _set_keys(self, spec: CacheSpec) -> list[str]:
        return [self._key(f"blocks:{rank}", spec) for rank in range(spec.dp_size)]

    def _all_keys(self, spec: CacheSpec) -> list[str]:
        return self._set_keys(spec) + [self._key(f"records:{rank}", spec) for rank in range(spec.dp_size)]


def _notes(rank: int) -> str:
    return f"notes:{rank}" if rank else "notes"


def _pack(block_keys: Sequence[int]) -> bytes:
    return array("Q", block_keys).tobytes()


def _unpack(packed: bytes) -> "array[int]":
    block_keys = array("Q")
    block_keys.frombytes(packed)
    return block_keys


def _pack_mark(mark: EventMark | None) -> str:
    return "" if mark is None else f"{mark.sequence}:{mark.digest}"


def _split(change: Change, most: int) -> list[Change]:
    """Cut a change into parts of at most ``most`` entries a list.

    The mark goes with the last part: a process that goes on from an earlier one applies the rest again.
    """
    delta, names = change.delta, list(change.saved)
    if max(map(len, (delta.held, delta.gone, names, change.dropped))) <= most:
        return [change]
    parts = [Change(CacheDelta(clear=True))] if delta.clear else []
    for field in ("gone", "held"):
        blocks = getattr(delta, field)
        parts += [Change(CacheDelta(**{field: blocks[at : at + most]})) for at in range(0, len(blocks), most)]
    for at in range(0, len(names), most):
        parts.append(Change(CacheDelta(), {name: change.saved[name] for name in names[at : at + most]}))
    parts += [Change(CacheDelta(), {}, change.dropped[at : at + most]) for at in range(0, len(change.dropped), most)]
    return [*parts, Change(CacheDelta(), mark=change.mark)]


def _read_state(fields: Sequence[Any]) -> InstanceState | None:
    gen, seq, known, *sizes = fields
    if gen is None or seq is None:
        return None
    return InstanceState(int(gen), int(seq), known == b"1", tuple(sizes))


def _read_entry(fields: Mapping[bytes, bytes]) -> StreamEntry:
    return StreamEntry(
        name=fields[b"n"].decode(),
        op=fields[b"o"].decode(),
        gen=int(fields[b"g"]),
        seq=int(fields[b"s"]),
        rank=int(fields.get(b"r", b"0")),
        delta=CacheDelta(
            fields.get(b"c") == b"1",
            _unpack(fields.get(b"d", b"")),
            _unpack(fields.get(b"x", b"")),
        ),
        known=fields.get(b"k") == b"1",
        ttl_s=int(fields.get(b"u", b"0")) / 1000,
    )
