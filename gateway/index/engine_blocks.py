"""Engine blocks as the index keeps them, and their records, from which another process goes on.

A record holds hashes only: the block's tiers, the own key before it, its own keys, and the chain's digest at its end.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from backends.hashing import DIGEST_BYTES, block_keys
from backends.kv_events import BlockHash
from gateway.index.mirror import Delta

ROOT = -1
_ROOT_FLAG = 0x80
_KEY_BYTES = 8


@dataclass(slots=True)
class EngineBlock:
    """A resident engine block: the own keys that end in it, and how the chain goes on after it."""

    keys: list[int]
    tail_key: int
    digest: bytes
    rest: "array[int]"
    rest_owners: tuple[BlockHash, ...]
    tiers: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """The last message that was applied: its sequence number and its payload's digest."""

    sequence: int
    digest: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one rank's events changed: the blocks that count, and the records of engine blocks.

    ``mark`` None: another process cannot go on from the records.
    """

    delta: Delta
    saved: Mapping[bytes, bytes] = field(default_factory=dict)
    dropped: Sequence[bytes] = ()
    mark: Mark | None = None


def pack_hash(block_hash: BlockHash) -> bytes:
    """Return the name of a record."""
    return msgspec.msgpack.encode(block_hash)


def unpack_hash(name: bytes) -> BlockHash:
    """Return the engine's hash that a record is named by."""
    block_hash: BlockHash = msgspec.msgpack.decode(name)
    return block_hash


def pack_block(parent: int, block: EngineBlock) -> bytes:
    """Return the record of a block that ends with an own block; ``parent`` is the own key before it, or ROOT."""
    flags = block.tiers | (_ROOT_FLAG if parent == ROOT else 0)
    before = array("Q", [0 if parent == ROOT else parent, *block.keys[:-1]])
    return bytes([flags]) + before.tobytes() + block.digest


def unpack_block(record: bytes) -> tuple[int, EngineBlock]:
    """Return what ``pack_block`` packed."""
    flags, digest = record[0], record[-DIGEST_BYTES:]
    parent, *keys = memoryview(record)[1:-DIGEST_BYTES].cast("Q").tolist()
    keys += block_keys([digest])
    block = EngineBlock(keys, keys[-1], digest, array("I"), (), flags & ~_ROOT_FLAG)
    return ROOT if flags & _ROOT_FLAG else parent, block
