"""A KV path through the prefetch API of the receiving region's LMCache server, whose L2 is the sending region's store.

A prefetch says nothing until it has ended, and cannot be stopped. So a prompt is asked for in slices: prefixes that
grow by some chunks at a time, of which the server fetches only what it lacks. To stop is to ask for no more of them.
The server does not wait for KV that P has not stored yet: it finds fewer keys, and the slice is asked for again.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from backends.errors import BackendError, TransferFailed
from backends.kv.lmcache import CacheServer
from backends.kv.open_transfers import OpenTransfers
from backends.types import LinkState, PathTraits, TransferPriority, TransferProgress, TransferRequest

POLL_INTERVAL_S = 0.02
AGAIN_INTERVAL_S = 0.1
"""Between two tries of a slice that P has not stored yet."""


class _Wanted(msgspec.Struct):
    model_name: str
    world_size: int
    token_ids: list[int]
    cache_salt: str = ""


class _Submitted(msgspec.Struct):
    request_id: str | None = None


class _Polled(msgspec.Struct):
    status: str
    found_keys: int = 0
    total_keys: int = 0


@dataclass(frozen=True, slots=True)
class PrefetchPace:
    """How to ask: least chunks of one slice, most slices of one prompt, and pauses in seconds.

    Every slice names the whole prefix again, so that many slices of a long prompt would be much to say.
    """

    slice_chunks: int = 4
    most_slices: int = 16
    poll_interval_s: float = POLL_INTERVAL_S
    again_interval_s: float = AGAIN_INTERVAL_S


class PrefetchPath:
    """``KvPath`` through ``server``."""

    traits = PathTraits(can_stop=True, reports_progress=True, overlaps_prefill=True)

    def __init__(self, server: CacheServer, *, pace: PrefetchPace | None = None) -> None:
        self._server = server
        self._pace = pace or PrefetchPace()
        self._open = OpenTransfers()

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """See ``KvPath``. A server that is away, refuses or does not keep the deadline raises TransferFailed."""
        total = len(request.token_ids) // request.chunk_tokens
        chunk_bytes = request.chunk_tokens * request.kv_bytes_per_token
        end_s = asyncio.get_running_loop().time() + request.deadline_s
        with self._open.counted(request) as counted:
            yield TransferProgress("open", total, 0, 0, 0)
            step = max(self._pace.slice_chunks, -(-total // self._pace.most_slices))
            for first in range(0, total, step):
                done = min(first + step, total)
                await self._fetch(request, done * request.chunk_tokens, end_s)
                counted.left_bytes = (total - done) * chunk_bytes
                if done < total:
                    yield TransferProgress("moving", total, done, 0, done * chunk_bytes)
        yield TransferProgress("complete", total, total, 0, total * chunk_bytes)

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """Change nothing: the server fetches in an order of its own."""

    async def link(self) -> LinkState:
        """What this process has under way, if the server answers. Raises EngineUnavailable or EngineBroken."""
        await self._server.status()
        return self._open.state()

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._server.aclose()

    async def _fetch(self, request: TransferRequest, tokens: int, end_s: float) -> None:
        """Have the first ``tokens`` of the prompt in the server, asking again until P has stored them."""
        is_latent = request.kv_shape is not None and request.kv_shape.layout == "latent"
        world_size = 1 if is_latent else request.world_size  # LMCache keeps a latent once, whatever the ranks
        wanted = _Wanted(request.model, world_size, list(request.token_ids[:tokens]), request.salt or "")
        body = msgspec.json.encode(wanted)
        try:
            async with asyncio.timeout_at(end_s):
                while True:
                    if await self._prefetch(body):
                        return
                    await asyncio.sleep(self._pace.again_interval_s)
        except BackendError as error:
            raise TransferFailed(f"prefetch: {error}") from error
        except TimeoutError:
            raise TransferFailed("prefetch: the deadline is over") from None

    async def _prefetch(self, body: bytes) -> bool:
        """Run one prefetch; whether all was found."""
        submitted = await self._server.ask("POST", "/cache/prefetches", body, _Submitted)
        if submitted.request_id is None:
            return True
        path = f"/cache/prefetches/{submitted.request_id}"
        while True:
            polled = await self._server.ask("GET", path, b"", _Polled)
            if polled.status == "completed":
                return polled.found_keys >= polled.total_keys
            await asyncio.sleep(self._pace.poll_interval_s)
