"""Chained block hashes of the local prefix cache.

A block's hash covers every token before it and the cache salt, so equal hashes mean equal KV, and one tenant cannot
find another's blocks. They are the same in every engine process; KV events carry their first eight bytes.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
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
