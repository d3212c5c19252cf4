"""The two stores that a bridge joins, as it sees them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from backends.kv.bridge.guards import guarded_size_bytes, regrouped_guard
from backends.kv.bridge.keys import DIALECTS
from backends.kv.bridge.lines import Sender
from backends.kv.bridge.resp import Buffer, CommandRefused, ConnectionLost, StoreAddress, StoreReply, WrongSize
from backends.kv.bridge.servers import RETRY_PAUSE_S, TRANSIENT_ERRORS, StoreServers
from backends.kv.bridge.types import WRONG_SIZE, ChunkId, Made

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
    """The sending region's store, across the link."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        connections: int,
        silence_s: float,
        on_change: Callable[[], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        self.servers = StoreServers(
            address, connections=connections, silence_s=silence_s, on_change=on_change, on_bytes=on_bytes
        )

    @property
    def opened_count(self) -> int:
        """Connections opened since the start."""
        return sum(line.opened_count for line in self.servers.lines)

    async def round_trip_s(self) -> float:
        """Measure the link's round trip, to the farthest server. Raises ConnectionLost."""
        clock = asyncio.get_running_loop().time
        connections = [await server.control.ready() for server in self.servers.all]
        if not connections:
            raise ConnectionLost("no server of the cluster is known")
        start_s = clock()
        await asyncio.gather(*(connection.send(b"PING") for connection in connections))
        return clock() - start_s

    async def stay_awake(self) -> None:
        """Have every idle connection answer, so that one that has silently died is found before it is needed."""
        open_ = [line.connection for line in self.servers.lines if line.connection is not None]
        idle = [connection for connection in open_ if connection.is_idle]
        await asyncio.gather(*(connection.send(b"PING") for connection in idle), return_exceptions=True)

    async def sizes(self, chunks: Sequence[ChunkId]) -> list[int | ChunkRefused | None]:
        """Sizes of ``chunks``, None for those that the store does not hold. Raises ConnectionLost."""
        sender = await self.servers.controller()
        replies = await asyncio.gather(*(_ask_size(sender, chunk) for chunk in chunks), return_exceptions=True)
        sizes: list[int | ChunkRefused | None] = []
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, ChunkRefused):
                raise reply
            sizes.append(reply)
        return sizes

    async def fetch(self, sender: Sender, chunk: ChunkId, size_bytes: int) -> list[Shard] | None:
        """Receive all that is read for a chunk; None when the store lost it.

        Raises ConnectionLost, or ChunkRefused for a wrong size.
        """
        shard_bytes = size_bytes // len(chunk.read_keys)
        replies = [_ask_shard(sender, chunk.dialect, key, shard_bytes) for key in chunk.read_keys]
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
    """The receiving region's store, near by: one line to each server."""

    def __init__(self, address: StoreAddress, *, silence_s: float) -> None:
        self.servers = StoreServers(address, connections=0, silence_s=silence_s)

    async def present(self, chunks: Sequence[ChunkId]) -> frozenset[ChunkId]:
        """Which of ``chunks`` the store holds whole; they become the last to be evicted.

        Waits for a store that is away. Raises ChunkRefused.
        """
        found: list[ChunkId] = []
        for start in range(0, len(chunks), _PRESENCE_BATCH):
            batch = chunks[start : start + _PRESENCE_BATCH]
            replies = iter(await self._insist([command for chunk in batch for command in _presence_commands(chunk)]))
            found += (chunk for chunk in batch if _is_present(chunk, islice(replies, _count_presence(chunk))))
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
            sender = await self.servers.controller()
            try:
                return await asyncio.gather(*(sender.send(*command) for command in commands))
            except ConnectionLost:
                await asyncio.sleep(RETRY_PAUSE_S)
            except CommandRefused as error:
                if not str(error).startswith(TRANSIENT_ERRORS):
                    raise _refusal("receiving", error) from None
                await asyncio.sleep(RETRY_PAUSE_S)


def make_shards(made: Made, shards: Sequence[Shard]) -> list[Shard]:
    """What is written, of what was read. Takes milliseconds for each of its megabytes. Raises ChunkRefused."""
    try:
        guards = [shard.guard for shard in shards]
        guard = regrouped_guard(guards, made.regrouping) if guards[0] else b""
        values = made.regrouping.apply([shard.value for shard in shards])
    except ValueError as error:
        raise ChunkRefused(f"cannot be regrouped: {error}") from None
    return [Shard(guard, values[number]) for number in made.made]


async def _ask_size(sender: Sender, chunk: ChunkId) -> int | None:
    """What all that is read for a chunk has together; None while a part is missing."""
    replies = [_ask_shard_size(sender, chunk.dialect, key) for key in chunk.read_keys]
    sizes = await asyncio.gather(*replies)
    total = 0
    for size in sizes:
        if size is None:
            return None
        _check_size("sending", size, chunk.size_bytes, is_exact=chunk.made is not None)
        total += size
    return total


async def _ask_shard_size(sender: Sender, dialect_name: str, key: str) -> int | None:
    dialect = DIALECTS[dialect_name]
    guard_key = dialect.guard_key(key)
    try:
        if guard_key is None:
            size = await sender.send(b"STRLEN", dialect.value_key(key))
            return size if isinstance(size, int) and size > 0 else None
        metadata = await sender.send(b"GET", guard_key)
    except WrongSize as error:
        raise ChunkRefused(f"{WRONG_SIZE}{error}") from None
    except CommandRefused as error:
        raise _refusal("sending", error) from None
    return _announced_bytes(bytes(metadata)) if isinstance(metadata, Buffer) else None


async def _ask_shard(sender: Sender, dialect_name: str, key: str, size_bytes: int) -> Shard | None:
    dialect = DIALECTS[dialect_name]
    guard_key = dialect.guard_key(key)
    guard_reply = sender.send(b"GET", guard_key) if guard_key is not None else None
    value_reply = sender.send(b"GET", dialect.value_key(key), size_bytes=size_bytes)
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
    if words.startswith(TRANSIENT_ERRORS):
        return ConnectionLost(f"the {which} store is busy: {words}")
    if words.startswith("OOM"):
        return ChunkRefused(f"the {which} store is full")
    return ChunkRefused(f"the {which} store refused: {words}")


def _presence_commands(chunk: ChunkId) -> Iterator[tuple[bytes, ...]]:
    """Commands that tell whether a chunk is there and keep it from being evicted soon.

    One for each value, or one for it and one for its guard: in a cluster these may lie apart.
    """
    dialect = DIALECTS[chunk.dialect]
    for key in chunk.written_keys:
        value_key, guard_key = dialect.value_key(key), dialect.guard_key(key)
        if guard_key is None:
            yield b"STRLEN", value_key
        else:
            yield b"TOUCH", value_key
            yield b"TOUCH", guard_key


def _count_presence(chunk: ChunkId) -> int:
    return len(chunk.written_keys) * (1 if DIALECTS[chunk.dialect].guard_suffix is None else 2)


def _is_present(chunk: ChunkId, replies: Iterable[StoreReply]) -> bool:
    """Read the answers to all of a chunk's commands. Raises ChunkRefused for a value that no engine there can use."""
    counts = [reply if isinstance(reply, int) else 0 for reply in replies]
    if DIALECTS[chunk.dialect].guard_suffix is not None:
        return all(counts)
    for size in filter(None, counts):
        _check_size("receiving", size, chunk.written_bytes)
    return all(counts)


def _check_size(which: str, size: int, wanted: int | None, *, is_exact: bool = False) -> None:
    if wanted is not None and abs(size - wanted) > (0 if is_exact else SIZE_TOLERANCE * wanted):
        raise ChunkRefused(
            f"{WRONG_SIZE}the {which} store's chunk has {size} bytes, and the model's figures make {wanted}: "
            "kv_bytes_per_token, the KV's dtype, the tokens of a chunk or the ranks are not as given"
        )
