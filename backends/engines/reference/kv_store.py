"""The engine's KV store, through LMCache: find the chunks of a prompt, bring them, put them there."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

import torch
from lmcache.v1.cache_engine import LMCacheEngine, LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

from backends.engines.reference.blocks import store_salt
from backends.engines.reference.model import ModelRunner
from backends.engines.reference.store_connector import PLUGIN, StoreConnector, connector_settings

RETRY_AFTER_S = 5.0
SLICE_BYTES = 4 << 20
"""KV moves in slices of about this size; between two of them a cancelled fetch stops."""


class PoolConnector(GPUConnectorInterface):
    """Copies chunks between LMCache's buffers and the paged pool, of the heads of one rank of ``ranks``.

    ``blocks`` is the block table of the sequence.
    """

    def __init__(self, runner: ModelRunner, rank: int, ranks: int) -> None:
        self._runner = runner
        self._heads = runner.shape.kv_heads // ranks
        self._first_head = rank * self._heads

    def batched_from_gpu(self, memory_objs: list[MemoryObj], starts: list[int], ends: list[int], **kwargs: Any) -> None:
        for memory, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory, start, end, **kwargs)

    def batched_to_gpu(self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **kwargs: Any) -> None:
        for memory, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory, start, end, **kwargs)

    def from_gpu(self, memory_obj: MemoryObj, start: int, end: int, **kwargs: Any) -> None:
        width = self._runner.shape.head_dim
        kv = self._runner.read_kv(self._runner.slots(kwargs["blocks"], start, end))
        memory_obj.tensor.copy_(kv[..., self._first_head * width : (self._first_head + self._heads) * width])

    def to_gpu(self, memory_obj: MemoryObj, start: int, end: int, **kwargs: Any) -> None:
        """Tokens before ``have`` are in blocks that other sequences may be reading: they stay as they are."""
        first = max(start, kwargs["have"])
        if first < end:
            slots = self._runner.slots(kwargs["blocks"], first, end)
            self._runner.write_kv(slots, memory_obj.tensor[:, :, first - start :].contiguous(), self._first_head)

    def get_shape(self, num_tokens: int) -> torch.Size:
        shape = self._runner.shape
        return torch.Size([2, shape.layers, num_tokens, self._heads * shape.head_dim])


class KvStore:
    """One engine's access to its region's store, in which its KV lies as that of ``ranks`` tensor-parallel ranks."""

    def __init__(
        self,
        runner: ModelRunner,
        url: str,
        model_name: str,
        *,
        instance_id: str,
        chunk_tokens: int = 64,
        timeout_s: float = 2.0,
        buffer_bytes: int = 256 << 20,
        ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.chunk_tokens = chunk_tokens
        self._ids = [instance_id, *(f"{instance_id}-rank{rank}" for rank in range(1, ranks))]
        self._timeout_s = timeout_s
        self._clock = clock
        self._down_until = 0.0
        chunk_bytes = chunk_tokens * runner.shape.kv_bytes_per_token
        self._slice_tokens = chunk_tokens * max(1, min(SLICE_BYTES, buffer_bytes // 4) // chunk_bytes)
        buffer_bytes = max(buffer_bytes, 8 * chunk_bytes) // ranks
        self._engines = [self._build(runner, url, model_name, buffer_bytes, rank) for rank in range(ranks)]
        self._connectors = [self._find_connector(engine) for engine in self._engines]

    @property
    def failures(self) -> int:
        """Store operations that failed so far."""
        return sum(connector.failures for connector in self._connectors)

    @property
    def available(self) -> bool:
        """False for a while after a failure: nothing is asked of the store then."""
        return self._clock() >= self._down_until

    def present(self, tokens: Sequence[int], cache_salt: str | None) -> int:
        """How many tokens of the prefix the store holds, in full chunks; 0 when it cannot be asked."""
        if not self.available:
            return 0
        before = self.failures
        found = min(int(engine.lookup(list(tokens), request_configs=_configs(cache_salt))) for engine in self._engines)
        self._watch(before)
        return found

    def fetch(
        self,
        tokens: Sequence[int],
        cache_salt: str | None,
        start: int,
        blocks: Sequence[int],
        cancelled: Callable[[], bool],
    ) -> int:
        """Bring KV of ``tokens[start:]`` (whose end is the end of a chunk) into ``blocks``; the end of what came.

        Stops early when a chunk is missing, when the store fails, or between two slices once ``cancelled``.
        """
        have = start
        for first, end in self._slices(start // self.chunk_tokens * self.chunk_tokens, len(tokens)):
            if cancelled() or not self.available:
                break
            before = self.failures
            came = self._retrieve(tokens, cache_salt, first, end, blocks, start)
            self._watch(before)
            have = max(have, first + came)
            if first + came < end:
                break
        return have

    def store(self, tokens: Sequence[int], cache_salt: str | None, start: int, blocks: Sequence[int]) -> None:
        """Put the full chunks of ``tokens`` from ``start`` (the start of a chunk) on into the store.

        Returns when they are there. Raises StoreFailed.
        """
        for first, end in self._slices(start, len(tokens) // self.chunk_tokens * self.chunk_tokens):
            if not self.available:
                raise StoreFailed("the KV store is not available")
            before = self.failures
            for engine in self._engines:
                engine.store(
                    list(tokens[:end]),
                    mask=_suffix_mask(end, first),
                    blocks=blocks,
                    request_configs=_configs(cache_salt),
                )
            self._settle()
            if self.failures > before:
                self._back_off()
                raise StoreFailed("the KV store failed")

    def close(self) -> None:
        """Stop LMCache's threads, and close its event loop, which it would leave open."""
        for id_, engine in zip(self._ids, self._engines, strict=True):
            loop = engine.storage_manager.loop
            LMCacheEngineBuilder.destroy(id_)
            if not loop.is_running():
                loop.close()

    def _retrieve(
        self,
        tokens: Sequence[int],
        cache_salt: str | None,
        first: int,
        end: int,
        blocks: Sequence[int],
        have: int,
    ) -> int:
        return min(
            int(
                engine.retrieve(
                    list(tokens[:end]),
                    mask=_suffix_mask(end, first),
                    blocks=blocks,
                    have=have,
                    request_configs=_configs(cache_salt),
                ).sum()
            )
            for engine in self._engines
        )

    def _slices(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(first, min(first + self._slice_tokens, end)) for first in range(start, end, self._slice_tokens)]

    def _settle(self) -> None:
        for engine, connector in zip(self._engines, self._connectors, strict=True):
            waiting = asyncio.run_coroutine_threadsafe(connector.settle(), engine.storage_manager.loop)
            try:
                waiting.result(4 * self._timeout_s)
            except FutureTimeout as error:
                waiting.cancel()
                self._back_off()
                raise StoreFailed("the KV store is too slow") from error

    def _watch(self, failures_before: int) -> None:
        if self.failures > failures_before:
            self._back_off()

    def _back_off(self) -> None:
        self._down_until = self._clock() + RETRY_AFTER_S

    def _build(self, runner: ModelRunner, url: str, model_name: str, buffer_bytes: int, rank: int) -> LMCacheEngine:
        shape, ranks = runner.shape, len(self._ids)
        config = LMCacheEngineConfig.from_dict(
            {
                "chunk_size": self.chunk_tokens,
                # The block pool is the only local cache: a second one would hide what the store really holds.
                "local_cpu": False,
                "max_local_cpu_size": buffer_bytes / (1 << 30),
                "save_unfull_chunk": False,
                "remote_storage_plugins": [PLUGIN],
                "blocking_timeout_secs": max(1, round(2 * self._timeout_s)),
                "py_enable_gc": True,
                "extra_config": connector_settings(url, self._timeout_s),
            }
        )
        metadata = LMCacheMetadata(
            model_name=model_name,
            world_size=ranks,
            local_world_size=ranks,
            worker_id=rank,
            local_worker_id=rank,
            kv_dtype=shape.dtype,
            kv_shape=(shape.layers, 2, self.chunk_tokens, shape.kv_heads // ranks, shape.head_dim),
            chunk_size=self.chunk_tokens,
        )
        engine = LMCacheEngineBuilder.get_or_create(
            self._ids[rank],
            config,
            metadata,
            PoolConnector(runner, rank, ranks),
            lambda _tensor, _rank: None,
            lambda item, _: item,
        )
        engine.post_init()
        return engine

    @staticmethod
    def _find_connector(engine: LMCacheEngine) -> StoreConnector:
        backend = engine.storage_manager.storage_backends[f"RemoteBackend-{PLUGIN}"]
        connector = backend.connection.getWrappedConnector()
        if not isinstance(connector, StoreConnector):
            raise TypeError(f"LMCache chose {type(connector).__name__} for the KV store")
        return connector


def _configs(cache_salt: str | None) -> dict[str, str]:
    return {"lmcache.tag.salt": store_salt(cache_salt)} if cache_salt else {}


def _suffix_mask(tokens: int, first: int) -> torch.Tensor:
    mask = torch.ones(tokens, dtype=torch.bool)
    mask[:first] = False
    return mask


logger = logging.getLogger(__name__)


class StoreFailed(Exception):
    """KV could not be put into the store."""


class Store(Protocol):
    """What the engine asks of a KV store. All methods block, for a bounded time."""

    @property
    def chunk_tokens(self) -> int:
        """KV is stored in chunks of this many tokens."""
        ...

    def present(self, tokens: Sequence[int], cache_salt: str | None) -> int:
        """How many tokens of the prefix the store holds, in full chunks; 0 when it cannot be asked."""
        ...

    def store(self, tokens: Sequence[int], cache_salt: str | None, start: int, blocks: Sequence[int]) -> None:
        """Put the full chunks of ``tokens`` from ``start`` on into the store. Raises StoreFailed."""
        ...


class Writeback:
    """One sequence's writes. Made anywhere, ``put`` runs on the store's thread."""

    def __init__(self, store: Store, prompt: Sequence[int], cache_salt: str | None) -> None:
        self._store = store
        self._prompt = list(prompt)
        self._cache_salt = cache_salt
        self._stored_tokens: int | None = None

    def put(self, tokens: Sequence[int], blocks: Sequence[int]) -> bool:
        """Make sure that the store has the full chunks of ``tokens``; False when it cannot."""
        end = len(tokens) // self._store.chunk_tokens * self._store.chunk_tokens
        if end == 0:
            return True
        if self._stored_tokens is None:
            self._stored_tokens = self._store.present(self._prompt, self._cache_salt)
        if end <= self._stored_tokens:
            return True
        try:
            self._store.store(tokens[:end], self._cache_salt, self._stored_tokens, blocks)
        except StoreFailed as error:
            logger.warning("storing KV failed: %s", error)
            return False
        self._stored_tokens = end
        return True
