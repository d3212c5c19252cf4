"""Chunks as an engine with LMCache in it stores them."""

import os
import struct
from collections.abc import Sequence

import redis.asyncio

from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.kv.bridge.types import ChunkId

CHUNK_TOKENS = 16
CHUNK_BYTES = 2 * 4 * CHUNK_TOKENS * 512 * 4
METADATA = struct.pack("<7i", CHUNK_BYTES, 1, 4, 2, 4, CHUNK_TOKENS, 512)


def prompt(count: int, seed: int = 0) -> list[int]:
    """Token ids of ``count`` chunks; prompts of different seeds share none."""
    return [seed * 1_000_000 + index for index in range(count * CHUNK_TOKENS)]


def chunks_of(token_ids: Sequence[int], hash_seed: int | None = None) -> list[ChunkId]:
    """Chunks of a prompt."""
    keys = DIALECTS["lmcache"].chunk_keys(KeyRequest("demo", token_ids, CHUNK_TOKENS, hash_seed=hash_seed))
    return [ChunkId("lmcache", key) for key in keys]


async def store(client: redis.asyncio.Redis, chunks: Sequence[ChunkId]) -> None:
    """Store chunks the way an engine does, each with random KV."""
    for chunk in chunks:
        await client.set(chunk.key + "kv_bytes", os.urandom(CHUNK_BYTES))
        await client.set(chunk.key + "metadata", METADATA)
