"""Engine blocks as the index keeps them, and their records, from which another process goes on.

A record holds hashes only: the block's tiers, the own key before it, its own keys, and the chain's digest at its end.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from backends.kv.events import EngineBlockHash
from gateway.index.block_tree import ROOT
from gateway.index.hashing import DIGEST_BYTES, block_keys
from gateway.index.mirror import CacheDelta

NO_TOKENS = array("I")
_ROOT_FLAG = 0x80


class EngineBlock(msgspec.Struct, gc=False):
    """A resident engine block: the own key before it, those that end in it, and how the chain goes on after it.

    There may be millions, which the garbage collector must not visit: that would stall the event loop.
    """

    parent_key: int
    keys: tuple[int, ...]
    tail_key: int
    digest: bytes
    rest: "array[int]"
    rest_owners: tuple[EngineBlockHash, ...]
    tiers: int = 0


@dataclass(frozen=True, slots=True)
class EventMark:
    """The last message that was applied: its sequence number and its payload's digest."""

    sequence: int
    digest: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one rank's events changed: the blocks that count, and the records of engine blocks.

    ``mark`` None: another process cannot go on from the records.
    """

    delta: CacheDelta
    saved: Mapping[bytes, bytes] = field(default_factory=dict)
    dropped: Sequence[bytes] = ()
    mark: EventMark | None = None


def pack_hash(block_hash: EngineBlockHash) -> bytes:
    """Return the name of a record."""
    return msgspec.msgpack.encode(block_hash)


def unpack_hash(name: bytes) -> EngineBlockHash:
    """Return the engine's hash that a record is named by."""
    block_hash: EngineBlockHash = msgspec.msgpack.decode(name)
    return block_hash


def pack_block(block: EngineBlock) -> bytes:
    """Return the record of a block that ends with an own block."""
    flags = block.tiers | (_ROOT_FLAG if block.parent_key == ROOT else 0)
    before = array("Q", [max(block.parent_key, 0), *block.keys[:-1]])
    return bytes([flags]) + before.tobytes() + block.digest


def unpack_block(record: bytes) -> EngineBlock:
    """Return what ``pack_block`` packed."""
    flags, digest = record[0], record[-DIGEST_BYTES:]
    parent_key, *keys = memoryview(record)[1:-DIGEST_BYTES].cast("Q").tolist()
    keys += block_keys([digest])
    if flags & _ROOT_FLAG:
        parent_key = ROOT
    return EngineBlock(parent_key, tuple(keys), keys[-1], digest, NO_TOKENS, (), flags & ~_ROOT_FLAG)
