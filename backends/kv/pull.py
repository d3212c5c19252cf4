"""KV paths on which the decode engine fetches the KV itself, as soon as it is asked for the prompt.

The transfer is a *warm leg* to the main-decode engine: the prompt and one token, which is dropped. Its end means that
the prompt's KV is in that engine's own cache, where the extends find it. Nothing can be seen of it meanwhile, and an
engine that has begun to fetch does not stop when the leg is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from backends.base import Engine
from backends.errors import BackendError, TransferFailed
from backends.kv.open_transfers import OpenTransfers
from backends.types import (
    LegChunk,
    LegRequest,
    LinkState,
    PathTraits,
    Sampling,
    TransferPriority,
    TransferProgress,
    TransferRequest,
)

GREEDY = Sampling(temperature=0.0)


class EnginePull:
    """``KvPath`` by warm legs: the engines share a store that the main-decode engine reads over the link."""

    traits = PathTraits(can_stop=False, reports_progress=False, overlaps_prefill=False)

    def __init__(self, find_engine: Callable[[str], Engine]) -> None:
        self._find_engine = find_engine
        self._open = OpenTransfers()

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """See ``KvPath``. An engine that is missing, refuses, dies or does not keep the deadline: TransferFailed."""
        total = len(request.token_ids) // request.chunk_tokens
        with self._open.counted(request):
            yield TransferProgress("open", total, 0, 0, 0)
            if total:
                try:
                    async with asyncio.timeout(request.deadline_s):
                        await self._fetch(request)
                except BackendError as error:
                    raise TransferFailed(f"engine pull: {error}") from error
                except TimeoutError:
                    raise TransferFailed("engine pull: the deadline is over") from None
        yield TransferProgress("complete", total, total, 0, 0)

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """Change nothing: engines fetch in an order of their own."""

    async def link(self) -> LinkState:
        """What this process has under way."""
        return self._open.state()

    async def aclose(self) -> None:
        """Nothing is held: the engines belong to the pools."""

    async def _fetch(self, request: TransferRequest) -> None:
        await self._warm(request, None)

    async def _warm(self, request: TransferRequest, ticket: Mapping[str, Any] | None) -> None:
        await self._run(request.main, _leg(request, "warm", data_parallel_rank=request.main_rank, kv_ticket=ticket))

    async def _run(self, engine_id: str | None, leg: LegRequest) -> Mapping[str, Any] | None:
        """Run a leg to its end; the ticket that it brought. Raises BackendError."""
        if engine_id is None:
            raise TransferFailed("no instance can be asked")
        ticket = None

        def take(chunk: LegChunk) -> None:
            nonlocal ticket
            ticket = chunk.kv_ticket or ticket

        await self._find_engine(engine_id).generate(leg, take)
        return ticket


class NixlPull(EnginePull):
    """``KvPath`` where the main-decode engine reads P's memory by NIXL.

    P frees the KV that it lends when one reader has it, or when the lease ends before a reader has come. So this reader
    has a ticket of its own: a second leg on P, whose prompt P has in its cache, directly before the warm leg.
    """

    traits = PathTraits(can_stop=False, reports_progress=False, overlaps_prefill=False, lends=True)

    async def _fetch(self, request: TransferRequest) -> None:
        lending = _leg(request, "lend", data_parallel_rank=request.prefill_rank, lends_kv=True)
        ticket = await self._run(request.prefill, lending)
        if ticket is None:
            raise TransferFailed("P lends no KV: it runs without a NixlConnector")
        await self._warm(request, ticket)


def _leg(request: TransferRequest, kind: str, **fields: Any) -> LegRequest:
    return LegRequest(
        request_id=f"{request.transfer_id}-{kind}",
        model=request.served_model,
        prompt=request.token_ids,
        max_tokens=1,
        sampling=GREEDY,
        cache_salt=request.salt,
        first_token_timeout_s=request.deadline_s,
        **fields,
    )
