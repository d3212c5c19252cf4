"""Texts in Redis that nobody reads there: packed, and sealed with the deployment's secret (AES-256 in GCM).

A name and its tenant are bound to what is sealed, and stand in Redis as keyed hashes alone. Another secret finds
nothing.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.auth.secrets import derive
from gateway.redis.client import RedisClient

NONCE_BYTES = 12
MOST_BYTES = 32 << 20
"""Of what is sealed, unpacked."""
INLINE_BYTES = 64 << 10


Worked = TypeVar("Worked")


async def beside_the_loop(work: Callable[[str, bytes], Worked], key: str, data: bytes) -> Worked:
    """Do work on data, in a thread where it is much of it."""
    return work(key, data) if len(data) <= INLINE_BYTES else await asyncio.to_thread(work, key, data)


class SealedStore:
    """Keeps what it is given for ``keep_s`` seconds. ``kind``: what it is, apart from all else in Redis."""

    def __init__(self, client: RedisClient, secret: bytes, kind: str, keep_s: int) -> None:
        self._client = client
        self._secret = secret
        self._kind = kind
        self._keep_s = keep_s
        self._cipher = AESGCM(bytes.fromhex(derive(secret, f"sealed-{kind}")))

    async def put(self, tenant: str, name: str, data: bytes) -> None:
        """Keep something, in place of what had its name. Raises ``AWAY``."""
        key = self._key(tenant, name)
        sealed = await beside_the_loop(self._seal, key, data)
        async with self._client.step():
            await self._client.commands.set(key, sealed, ex=self._keep_s)

    async def get(self, tenant: str, name: str) -> bytes | None:
        """Return what a tenant has of that name; None: nothing, or what was not sealed here. Raises ``AWAY``."""
        key = self._key(tenant, name)
        async with self._client.step():
            sealed = await self._client.commands.get(key)
        if not isinstance(sealed, bytes):
            return None
        return await beside_the_loop(self._unseal, key, sealed)

    async def delete(self, tenant: str, name: str) -> bool:
        """Keep something no longer, and say whether it was there. Raises ``AWAY``."""
        async with self._client.step():
            return bool(await self._client.commands.delete(self._key(tenant, name)))

    def _seal(self, key: str, data: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, zstandard.compress(data), key.encode())

    def _unseal(self, key: str, sealed: bytes) -> bytes | None:
        try:
            packed = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], key.encode())
            return zstandard.decompress(packed, max_output_size=MOST_BYTES)
        except (InvalidTag, ValueError, zstandard.ZstdError):
            return None

    def _key(self, tenant: str, name: str) -> str:
        return f"pdd:{self._kind}:{derive(self._secret, f'name-{self._kind}', tenant, name)[:32]}"
