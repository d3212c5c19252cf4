"""LMCache's way to a region's Redis or Valkey server.

The entries are those of LMCache's own Redis connector (``<key>kv_bytes`` written first, then ``<key>metadata``), so
that either may read what the other wrote. This one differs in how it fails: every socket operation is bounded in time,
a batch is one round trip, a value is only taken when it has the exact size and shape of a chunk, and ``settle`` tells
when the puts so far have reached the server.
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import redis
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
from redis.backoff import NoBackoff
from redis.retry import Retry

PLUGIN = "pdd_store"
"""Name under which LMCache's plugin settings refer to this connector."""


class StoreConnector(RemoteConnector):
    """Made by LMCache's plugin loader; settings arrive in ``config.extra_config`` under ``pdd_store.*``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, local_cpu_backend: Any, config: Any) -> None:
        super().__init__(config, local_cpu_backend.metadata)
        self._buffers = local_cpu_backend
        timeout_s = float(config.extra_config["pdd_store.timeout_s"])
        # A pooled connection may have been closed by the server meanwhile: that alone is worth a second try.
        self._client = redis.Redis.from_url(
            config.extra_config["pdd_store.url"],
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
        self._metadata = RemoteMetadata(
            self.full_chunk_size_bytes, self.meta_shapes, self.meta_dtypes, self.meta_fmt
        ).serialize()
        self._lock = threading.Lock()
        self._failures = 0
        self._puts: set[asyncio.Task[None]] = set()

    @property
    def failures(self) -> int:
        """Operations that failed since the start."""
        with self._lock:
            return self._failures

    async def settle(self) -> None:
        """Return when every put that was submitted before this call has ended, well or not."""
        while self._puts:
            await asyncio.wait(set(self._puts))

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[CacheEngineKey]) -> int:
        """How many of ``keys``, from the first on, the server has in full."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            name = key.to_string()
            pipeline.exists(name + "kv_bytes", name + "metadata")
        found = self._attempt(pipeline.execute) or []
        for count, entries in enumerate(found):
            if entries != 2:
                return count
        return len(found)

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Sequence[CacheEngineKey]) -> list[MemoryObj | None]:
        """Values of ``keys``; None where one is missing, has another size or shape, or no buffer is left."""
        return await asyncio.to_thread(self._get, [key.to_string() for key in keys])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Sequence[CacheEngineKey], memory_objs: Sequence[MemoryObj]) -> None:
        """Write chunks in order, so that a reader who sees one chunk of a prompt can have all before it."""
        entries = [(key.to_string(), value.byte_array) for key, value in zip(keys, memory_objs, strict=True)]
        task = asyncio.ensure_future(asyncio.to_thread(self._put, entries))
        self._puts.add(task)
        try:
            await asyncio.shield(task)
        finally:
            self._puts.discard(task)

    async def exists(self, key: CacheEngineKey) -> bool:
        return await asyncio.to_thread(self.exists_sync, key)

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return self.batched_contains([key]) == 1

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        return (await self.batched_get([key]))[0]

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        await self.batched_put([key], [memory_obj])

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    def _get(self, names: list[str]) -> list[MemoryObj | None]:
        wanted = [name + part for name in names for part in ("metadata", "kv_bytes")]
        raw = self._attempt(lambda: self._client.mget(wanted)) or [None] * len(wanted)
        return [self._load(metadata, value) for metadata, value in zip(raw[::2], raw[1::2], strict=True)]

    def _load(self, metadata: bytes | None, value: bytes | None) -> MemoryObj | None:
        if metadata != self._metadata or value is None or len(value) != self.full_chunk_size_bytes:
            return None
        buffer = self._buffers.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False)
        if buffer is not None:
            memoryview(buffer.byte_array).cast("B")[:] = value
        return buffer

    def _put(self, entries: list[tuple[str, Any]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for name, value in entries:
            pipeline.set(name + "kv_bytes", memoryview(value).cast("B"))
            pipeline.set(name + "metadata", self._metadata)
        self._attempt(pipeline.execute)

    def _attempt(self, operation: Any) -> Any:
        try:
            return operation()
        except (redis.RedisError, OSError):
            with self._lock:
                self._failures += 1
            return None

    # Last in the class: after it, ``list`` names this method.
    async def list(self) -> list[str]:
        """Listing a whole store is of no use here."""
        return []


def connector_settings(url: str, timeout_s: float) -> dict[str, Any]:
    """Entries of LMCache's ``extra_config`` that make it use this connector."""
    return {
        f"remote_storage_plugin.{PLUGIN}.module_path": __name__,
        f"remote_storage_plugin.{PLUGIN}.class_name": StoreConnector.__name__,
        "pdd_store.url": url,
        "pdd_store.timeout_s": timeout_s,
    }
