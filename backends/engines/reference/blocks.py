"""The block pool: who owns which KV block, which blocks hold a cached prefix by their chained hashes, and which one is
evicted next.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NewType

BlockHash = NewType("BlockHash", bytes)


HASH_BYTES = 16


def root_hash(cache_salt: str | None) -> BlockHash:
    """Parent of a sequence's first block."""
    return BlockHash(hashlib.blake2b((cache_salt or "").encode(), digest_size=HASH_BYTES).digest())


def chain_hashes(parent: BlockHash, token_ids: Sequence[int], block_tokens: int) -> Iterator[BlockHash]:
    """Hashes of the full blocks of ``token_ids``, the first after ``parent`` and each after the one before."""
    ids = memoryview(array("q", token_ids)).cast("B")
    step = block_tokens * 8
    for start in range(0, len(ids) - step + 1, step):
        digest = hashlib.blake2b(parent, digest_size=HASH_BYTES)
        digest.update(ids[start : start + step])
        parent = BlockHash(digest.digest())
        yield parent


def external_hash(value: BlockHash) -> int:
    """The unsigned 64-bit form that KV events carry."""
    return int.from_bytes(value[:8], "big")


def store_salt(cache_salt: str) -> str:
    """How a cache salt is spelt in the keys of the KV store: the salt itself stays out of Redis."""
    return hashlib.sha256(cache_salt.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Stored:
    """A full block became findable. ``parent`` None: it is the first of its sequence; only that one names the salt."""

    hash: BlockHash
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A cached block was evicted."""

    hash: BlockHash


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every cached block was dropped."""


PoolEvent = Stored | Removed | Cleared


class BlockPool:
    """``blocks`` blocks of ``block_size_tokens`` tokens each. Not thread-safe: one owner calls it."""

    def __init__(self, blocks: int, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self.total_blocks = blocks
        self._references = [0] * blocks
        self._hashes: list[BlockHash | None] = [None] * blocks
        self._by_hash: dict[BlockHash, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._is_free = bytearray(b"\x01" * blocks)
        self._free_heap = list(range(blocks))
        self._in_heap = bytearray(b"\x01" * blocks)
        self._free_blocks = blocks
        self._events: list[PoolEvent] = []

    @property
    def available_blocks(self) -> int:
        """Blocks that ``allocate`` can hand out: free ones and idle cached ones."""
        return self._free_blocks + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold, 0..1."""
        return 1.0 - self.available_blocks / self.total_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that ``find_prefix`` can find."""
        return len(self._by_hash)

    def find_prefix(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Blocks of the longest cached prefix of ``hashes``. Nothing changes; call ``hold`` before anything else."""
        found: list[int] = []
        for value in hashes:
            block = self._by_hash.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that are cached or held."""
        for block in blocks:
            if self._references[block] == 0:
                del self._idle[block]
            self._references[block] += 1

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """``count`` blocks, held once and not cached, or None (and no change) when there are too few.

        Blocks that follow ``after`` and each other in memory are preferred: attention reads a run of adjacent blocks
        without copying it. Idle cached blocks are evicted as needed, least recently used first.
        """
        if count > self.available_blocks:
            return None
        while self._free_blocks < count:
            self._evict()
        blocks: list[int] = []
        last = after
        for _ in range(count):
            follows = last is not None and last + 1 < self.total_blocks and self._is_free[last + 1]
            last = last + 1 if last is not None and follows else self._lowest_free()
            self._is_free[last] = 0
            self._free_blocks -= 1
            self._references[last] = 1
            blocks.append(last)
        return blocks

    def commit(
        self,
        block: int,
        value: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        cache_salt: str | None,
    ) -> None:
        """Make a held block that is full findable; a second block with the same content stays private."""
        if value in self._by_hash or self._hashes[block] is not None:
            return
        self._by_hash[value] = block
        self._hashes[block] = value
        self._events.append(Stored(value, parent, tuple(token_ids), cache_salt if parent is None else None))

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each. Later blocks of a sequence become evictable before earlier ones."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if self._hashes[block] is None:
                self._mark_free(block)
            else:
                self._idle[block] = None

    def clear(self) -> None:
        """Forget every cached prefix; blocks in use stay with their owners, but no longer cached."""
        for block in self._idle:
            self._mark_free(block)
        self._idle.clear()
        self._by_hash.clear()
        self._hashes = [None] * self.total_blocks
        self._events.append(Cleared())

    def take_events(self) -> list[PoolEvent]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost or owned twice (for tests and idle moments)."""
        for block in range(self.total_blocks):
            states = [bool(self._is_free[block]), self._references[block] > 0, block in self._idle]
            if sum(states) != 1:
                raise AssertionError(f"block {block} has states {states}")
            value = self._hashes[block]
            if value is not None and self._by_hash.get(value) != block:
                raise AssertionError(f"block {block} is cached under a hash that finds another block")
        if self._free_blocks != sum(self._is_free):
            raise AssertionError("the count of free blocks is wrong")
        if len(self._by_hash) != sum(value is not None for value in self._hashes):
            raise AssertionError("a hash finds a block that does not carry it")

    def _lowest_free(self) -> int:
        while True:
            block = heappop(self._free_heap)
            self._in_heap[block] = 0
            if self._is_free[block]:
                return block

    def _mark_free(self, block: int) -> None:
        self._is_free[block] = 1
        self._free_blocks += 1
        if not self._in_heap[block]:
            self._in_heap[block] = 1
            heappush(self._free_heap, block)

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        value = self._hashes[block]
        if value is not None:
            del self._by_hash[value]
            self._hashes[block] = None
            self._events.append(Removed(value))
        self._mark_free(block)
