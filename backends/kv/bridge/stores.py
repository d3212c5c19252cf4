"""The two stores that a bridge joins, as it sees them, over connections that are opened again whenever they break."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from backends.kv.bridge.guards import guarded_size_bytes, regrouped_guard
from backends.kv.bridge.keys import DIALECTS
from backends.kv.bridge.resp import (
    Buffer,
    CommandRefused,
    ConnectionLost,
    StoreAddress,
    StoreConnection,
    StoreReply,
    WrongSize,
)
from backends.kv.bridge.types import WRONG_SIZE, ChunkId, Made

_FIRST_PAUSE_S = 0.05


_LONGEST_PAUSE_S = 1.0


class StoreLine:
    """Keeps one connection open while ``keep`` runs.

    ``on_change`` is called after the line came up or went down; ``on_bytes`` with each count of received bytes.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        silence_s: float,
        on_change: Callable[[], None] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._address = address
        self._silence_s = silence_s
        self._on_change = on_change
        self._on_bytes = on_bytes
        self._up = asyncio.Event()
        self.connection: StoreConnection | None = None
        self.opened_count = 0

    async def keep(self) -> None:
        """Hold the line up until cancelled."""
        pause_s = 0.0
        try:
            while True:
                await asyncio.sleep(pause_s)
                try:
                    connection = await StoreConnection.open(
                        self._address, silence_s=self._silence_s, on_bytes=self._on_bytes
                    )
                except (ConnectionLost, CommandRefused) as error:
                    if not pause_s:
                        log.warning("store %s is away: %s", self._address, error)
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s or _FIRST_PAUSE_S)
                    continue
                pause_s = 0.0
                self.opened_count += 1
                self._set(connection)
                await asyncio.shield(connection.closed)
                self._set(None)
        finally:
            if self.connection is not None:
                self.connection.abort("the bridge is stopping")
                self._set(None)

    async def ready(self) -> StoreConnection:
        """Wait until the line is up."""
        while self.connection is None:
            await self._up.wait()
        return self.connection

    def _set(self, connection: StoreConnection | None) -> None:
        self.connection = connection
        if connection is None:
            self._up.clear()
        else:
            self._up.set()
        if self._on_change is not None:
            self._on_change()


_TRANSIENT_ERRORS = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")
_RETRY_PAUSE_S = 0.05
_PRESENCE_BATCH = 1024


SIZE_TOLERANCE = 0.01
"""How far a chunk's size may be from the one that it must have."""


class Shard(NamedTuple):
    """One string of a chunk, and the guard beside it (empty where its dialect has none)."""

    guard: bytes
    value: Buffer


class ChunkRefused(Exception):
    """A store cannot give or take a chunk, and asking again will not help; the message says why."""


class SourceStore:
    """The sending region's store, across the link: one control line, and ``lines`` for chunks."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        connections: int,
        silence_s: float,
        on_change: Callable[[], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        self.control = StoreLine(address, silence_s=silence_s, on_change=on_change, on_bytes=on_bytes)
        self._lines = [
            StoreLine(address, silence_s=silence_s, on_change=on_change, on_bytes=on_bytes) for _ in range(connections)
        ]

    @property
    def lines(self) -> list[StoreLine]:
        """All lines, the control line first."""
        return [self.control, *self._lines]

    @property
    def opened_count(self) -> int:
        """Connections opened since the start."""
        return sum(line.opened_count for line in self.lines)

    def idlest(self, spread: int) -> StoreConnection | None:
        """Of the first ``spread`` connections that are up, the one with the fewest bytes on order."""
        usable = (line.connection for line in self._lines if line.connection is not None and line.connection.usable)
        return min(islice(usable, spread), key=lambda connection: connection.due_bytes, default=None)

    async def round_trip_s(self) -> float:
        """Measure the link's round trip. Raises ConnectionLost."""
        connection = await self.control.ready()
        clock = asyncio.get_running_loop().time
        start_s = clock()
        await connection.send(b"PING")
        return clock() - start_s

    async def stay_awake(self) -> None:
        """Have every idle connection answer, so that one that has silently died is found before it is needed."""
        idle = [line.connection for line in self._lines if line.connection is not None and line.connection.is_idle]
        await asyncio.gather(*(connection.send(b"PING") for connection in idle), return_exceptions=True)

    async def sizes(self, chunks: Sequence[ChunkId]) -> list[int | ChunkRefused | None]:
        """Sizes of ``chunks``, None for those that the store does not hold. Raises ConnectionLost."""
        connection = await self.control.ready()
        replies = await asyncio.gather(*(_ask_size(connection, chunk) for chunk in chunks), return_exceptions=True)
        sizes: list[int | ChunkRefused | None] = []
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, ChunkRefused):
                raise reply
            sizes.append(reply)
        return sizes

    async def fetch(self, connection: StoreConnection, chunk: ChunkId, size_bytes: int) -> list[Shard] | None:
        """Receive all that is read for a chunk; None when the store lost it.

        Raises ConnectionLost, or ChunkRefused for a wrong size.
        """
        shard_bytes = size_bytes // len(chunk.read_keys)
        replies = [_ask_shard(connection, chunk.dialect, key, shard_bytes) for key in chunk.read_keys]
        shards: list[Shard] = []
        found = await asyncio.gather(*replies, return_exceptions=True)
        for shard in found:
            if isinstance(shard, BaseException):
                raise shard
            if shard is None:
                return None
            shards.append(shard)
        return shards


class DestinationStore:
    """The receiving region's store, near by: one line."""

    def __init__(self, address: StoreAddress, *, silence_s: float) -> None:
        self.line = StoreLine(address, silence_s=silence_s)

    async def present(self, chunks: Sequence[ChunkId]) -> frozenset[ChunkId]:
        """Which of ``chunks`` the store holds whole; they become the last to be evicted.

        Waits for a store that is away. Raises ChunkRefused.
        """
        found: list[ChunkId] = []
        for start in range(0, len(chunks), _PRESENCE_BATCH):
            batch = chunks[start : start + _PRESENCE_BATCH]
            replies = iter(await self._insist([command for chunk in batch for command in _presence_commands(chunk)]))
            found += (chunk for chunk in batch if _is_present(chunk, islice(replies, len(chunk.written_keys))))
        return frozenset(found)

    async def put(self, chunk: ChunkId, shards: Sequence[Shard]) -> None:
        """Store a chunk so that no shard is ever seen half. Waits for a store that is away. Raises ChunkRefused."""
        dialect = DIALECTS[chunk.dialect]
        for key, (guard, value) in zip(chunk.written_keys, shards, strict=True):
            guard_key = dialect.guard_key(key)
            await self._insist([(b"SET", dialect.value_key(key), value)])
            if guard_key is not None:
                await self._insist([(b"SET", guard_key, guard)])

    async def _insist(self, commands: Sequence[tuple[Buffer, ...]]) -> list[StoreReply]:
        """Send commands until the store has answered all of them."""
        while True:
            connection = await self.line.ready()
            try:
                return await asyncio.gather(*(connection.send(*command) for command in commands))
            except ConnectionLost:
                await asyncio.sleep(_RETRY_PAUSE_S)
            except CommandRefused as error:
                if not str(error).startswith(_TRANSIENT_ERRORS):
                    raise _refusal("receiving", error) from None
                await asyncio.sleep(_RETRY_PAUSE_S)


def make_shards(made: Made, shards: Sequence[Shard]) -> list[Shard]:
    """What is written, of what was read. Takes milliseconds for each of its megabytes. Raises ChunkRefused."""
    try:
        guards = [shard.guard for shard in shards]
        guard = regrouped_guard(guards, made.regrouping) if guards[0] else b""
        values = made.regrouping.apply([shard.value for shard in shards])
    except ValueError as error:
        raise ChunkRefused(f"cannot be regrouped: {error}") from None
    return [Shard(guard, values[number]) for number in made.made]


async def _ask_size(connection: StoreConnection, chunk: ChunkId) -> int | None:
    """What all that is read for a chunk has together; None while a part is missing."""
    replies = [_ask_shard_size(connection, chunk.dialect, key) for key in chunk.read_keys]
    sizes = await asyncio.gather(*replies)
    total = 0
    for size in sizes:
        if size is None:
            return None
        _check_size("sending", size, chunk.size_bytes, is_exact=chunk.made is not None)
        total += size
    return total


async def _ask_shard_size(connection: StoreConnection, dialect_name: str, key: str) -> int | None:
    dialect = DIALECTS[dialect_name]
    guard_key = dialect.guard_key(key)
    try:
        if guard_key is None:
            size = await connection.send(b"STRLEN", dialect.value_key(key))
            return size if isinstance(size, int) and size > 0 else None
        metadata = await connection.send(b"GET", guard_key)
    except WrongSize as error:
        raise ChunkRefused(f"{WRONG_SIZE}{error}") from None
    except CommandRefused as error:
        raise _refusal("sending", error) from None
    return _announced_bytes(bytes(metadata)) if isinstance(metadata, Buffer) else None


async def _ask_shard(connection: StoreConnection, dialect_name: str, key: str, size_bytes: int) -> Shard | None:
    dialect = DIALECTS[dialect_name]
    guard_key = dialect.guard_key(key)
    guard_reply = connection.send(b"GET", guard_key) if guard_key is not None else None
    value_reply = connection.send(b"GET", dialect.value_key(key), size_bytes=size_bytes)
    try:
        value = await value_reply
        guard = await guard_reply if guard_reply is not None else b""
    except WrongSize as error:
        raise ChunkRefused(f"{WRONG_SIZE}{error}") from None
    except CommandRefused as error:
        raise _refusal("sending", error) from None
    if not isinstance(value, Buffer) or not isinstance(guard, Buffer):
        return None
    if guard_key is not None and _announced_bytes(bytes(guard)) != size_bytes:
        raise ChunkRefused(f"{WRONG_SIZE}the chunk's metadata changed while it was read")
    return Shard(bytes(guard), value)


def _announced_bytes(metadata: bytes) -> int:
    try:
        return guarded_size_bytes(metadata)
    except ValueError as error:
        raise ChunkRefused(f"{WRONG_SIZE}{error}") from None


def _refusal(which: str, error: CommandRefused) -> Exception:
    """What to make of a store's error: wait and ask again, or give the chunk up."""
    words = str(error)
    if words.startswith(_TRANSIENT_ERRORS):
        return ConnectionLost(f"the {which} store is busy: {words}")
    if words.startswith("OOM"):
        return ChunkRefused(f"the {which} store is full")
    return ChunkRefused(f"the {which} store refused: {words}")


def _presence_commands(chunk: ChunkId) -> Iterator[tuple[bytes, ...]]:
    """Commands, one for each value, that tell whether it is there and keep it from being evicted soon."""
    dialect = DIALECTS[chunk.dialect]
    for key in chunk.written_keys:
        value_key, guard_key = dialect.value_key(key), dialect.guard_key(key)
        yield (b"STRLEN", value_key) if guard_key is None else (b"TOUCH", value_key, guard_key)


def _is_present(chunk: ChunkId, replies: Iterable[StoreReply]) -> bool:
    """Read the answers to all of a chunk's commands. Raises ChunkRefused for a value that no engine there can use."""
    counts = [reply if isinstance(reply, int) else 0 for reply in replies]
    if DIALECTS[chunk.dialect].guard_suffix is not None:
        return all(count == 2 for count in counts)
    for size in filter(None, counts):
        _check_size("receiving", size, chunk.written_bytes)
    return all(counts)


def _check_size(which: str, size: int, wanted: int | None, *, is_exact: bool = False) -> None:
    if wanted is not None and abs(size - wanted) > (0 if is_exact else SIZE_TOLERANCE * wanted):
        raise ChunkRefused(
            f"{WRONG_SIZE}the {which} store's chunk has {size} bytes, and the model's figures make {wanted}: "
            "kv_bytes_per_token, the KV's dtype, the tokens of a chunk or the ranks are not as given"
        )


log = logging.getLogger(__name__)
