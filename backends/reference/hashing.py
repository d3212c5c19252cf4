"""Chained block hashes of the local prefix cache.

A block's hash covers every token before it and the cache salt, so equal hashes mean equal KV, and one tenant cannot
find another's blocks. They are the same in every engine process; KV events carry their first eight bytes.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 16


def root_hash(cache_salt: str | None) -> BlockHash:
    """Parent of a sequence's first block."""
    return BlockHash(hashlib.blake2b((cache_salt or "").encode(), digest_size=HASH_BYTES).digest())


def block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Hash of one full block after ``parent``."""
    return BlockHash(hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=HASH_BYTES).digest())


def external_hash(value: BlockHash) -> int:
    """The unsigned 64-bit form that KV events carry."""
    return int.from_bytes(value[:8], "big")


def store_salt(cache_salt: str) -> str:
    """How a cache salt is spelt in the keys of the KV store: the salt itself stays out of Redis."""
    return hashlib.sha256(cache_salt.encode()).hexdigest()[:32]
